"""The report of a run: one page, ``build/report/index.html``, that asks the network for nothing.

It takes the readings that the notebooks saved and the runner's ``results.json`` and shows predicted beside
measured: as a table, and as bars of the instant of the peak. ``python -m tools.report`` builds it again.

An error is (predicted - measured) / measured. Left out: timelines, which are in the executed notebooks.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import os
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, get_type_hints

import jinja2
from markupsafe import Markup, escape

from minigpt.memory.buckets import BUCKETS, StepMemory
from minigpt.memory.plan import ALLOWED
from minigpt.memory.plots import COLORS
from minigpt.memory.readings import NOT_ON_CPU, Reading, read_reading, write_atomically
from minigpt.memory.units import GB, MB, gb
from tools.report_words import error, finding, label, labels, meaning, model, notes, size, tokens
from tools.supervise import Result

HERE = Path(__file__).resolve().parent
RECORD = {"environment": dict, "finished": str, "notebooks": list}
FACTS: dict[str, Any] = {name: str for name in ("python", "system", "cpu")}
FACTS |= {"cores": int | None, "ram": int, "packages": dict, "gpu": str | None, "vram": int | None}
RESULT = get_type_hints(Result) | {"problems": list, "seconds": int | float, "minutes_budget": int | float | None}
METHODS = ALLOWED["method"]


def table(reading: Reading) -> dict:
    """One reading's rows: predicted, measured, error, or one where they are the same.

    The columns: buckets, peak, and what a card's allocator holds at most, allocated and reserved. Where that was not
    read, the card that it is replayed for stands beside it.
    """
    predicted, cards = _numbers(reading.predicted)
    scale, unit = (GB, "GB") if max(predicted) >= GB else (MB, "MB")
    rows = [("predicted", [f"{size / scale:,.3f}" for size in predicted])]
    measured, read = ([], []) if reading.measured is None else _numbers(reading.measured)
    if reading.measured is None:
        rows.append(("measured", []))
    else:
        rows.append(("measured", [f"{size / scale:,.3f}" for size in measured]))
        rows.append(("error", [error(*pair) for pair in zip(predicted, measured, strict=True)]))
        if predicted == measured and not read:
            rows = [("both", rows[0][1])]
    replayed = "" if read else f" ({reading.extra.get('card', 'replayed')})"
    for name, cells in rows:
        if name in ("predicted", "both"):
            cells += [f"{size / scale:,.3f}{replayed}" for size in cards] or ["", ""]
        elif cells:
            cells += [f"{size / scale:,.3f}" for size in read] if read and name == "measured" else ["", ""]
    if cards and read:
        rows[-1][1][-2:] = [error(*pair) for pair in zip(cards, read, strict=True)]
    return {"reading": reading, "unit": unit, "rows": rows}


def _numbers(step: StepMemory) -> tuple[list[int], list[int]]:
    """Bytes: of the buckets and the peak; of the allocator, where it has been asked."""
    card = [step.card.allocated, step.card.reserved] if step.card else []
    return [*step.ledger.as_dict().values(), step.peak.total], card


def ledgers(readings: list[Reading]) -> list[tuple[Reading, list[tuple[str, dict]]]]:
    """Readings that were taken the same way in one lab: one of them, and for each its label and its table."""
    out: list[tuple[Reading, list[tuple[str, dict]]]] = []
    for reading, name in zip(readings, labels(readings), strict=True):
        last = out[-1][0] if out else None
        if last is None or any(getattr(last, k) != getattr(reading, k) for k in ("lab", "device", "instrument")):
            out.append((reading, []))
        out[-1][1].append((name, table(reading)))
    return out


def groups(readings: list[Reading]) -> list[dict]:
    """Readings of one architecture together, on one scale; in it those of a lab on as many tokens, with their meaning.

    A bar shows what fills memory at the instant of the predicted peak; a tick stands where the meter read.
    """
    together: dict[str, list[Reading]] = {}
    for reading in readings:
        together.setdefault(json.dumps(reading.architecture, sort_keys=True), []).append(reading)
    out = []
    for group in together.values():
        peaks = [m.peak.total for r in group for m in (r.predicted, r.measured) if m is not None]
        longest, sets = max(peaks) or 1, []
        for (lab, shape), some in groupby(group, key=lambda r: (r.lab, tokens(r))):
            of_lab = list(some)
            rows = [bar(reading, longest) for reading in of_lab]
            sets.append({"lab": lab, "tokens": shape, "rows": rows, "meaning": meaning(of_lab)})
        out.append({"name": model(group[0].architecture), "longest": size(longest), "sets": sets})
    return out


def bar(reading: Reading, longest: int) -> dict:
    """One reading's bar: its parts in per cent of the longest, where the meter read, and that in words."""
    peak, found = reading.predicted.peak, reading.measured
    parts = [(name, nbytes, 100 * nbytes / longest) for name, nbytes in peak.as_dict().items() if nbytes]
    text = f"predicted peak {size(peak.total)} at {reading.predicted.peak_at}: "
    text += ", ".join(f"{name} {size(nbytes)}" for name, nbytes, _ in parts)
    text += f"; measured {size(found.peak.total)}" if found else "; not measured here"
    return {
        "label": label(reading), "device": reading.device, "parts": parts, "total": size(peak.total), "text": text,
        "tick": 100 * found.peak.total / longest if found else None,
        "error": error(peak.total, found.peak.total) if found else "not measured",
    }  # fmt: skip


def trained(readings: list[Reading]) -> list[dict]:
    """The losses of each lab: one plot of all its runs, and validation before and after in words."""
    have = [r for r in readings if any(r.extra.get("curve", {}).values()) or r.extra.get("validation")]
    out = []
    for lab, some in groupby(have, key=lambda reading: reading.lab):
        of_lab = list(some)
        ends = [(label(r), r.extra["validation"]) for r in of_lab if r.extra.get("validation")]
        said = [f"{name} {loss['before']:.3f} before, {loss['after']:.3f} after" for name, loss in ends]
        out.append({"lab": lab, "svg": curves(of_lab), "validation": "; ".join(said)})
    return out


def curves(readings: list[Reading]) -> str:
    """All losses of a lab on one axis, as inline SVG, or nothing where no reading has any."""
    runs = {label(reading): reading.extra.get("curve", {}) for reading in readings}
    if not any(points for curve in runs.values() for points in curve.values()):
        return ""
    import matplotlib

    from minigpt.memory.plots import describe, losses

    ends = {name: curve["validation"][-1][1] for name, curve in runs.items() if curve.get("validation")}
    lowest = min(ends, key=lambda name: ends[name]) if len(ends) > 1 else None
    title = f"Lowest at the end: {lowest}, {ends[lowest]:.3f} bits per byte" if lowest else ""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif"}):
        figure = matplotlib.figure.Figure(figsize=(9, 3.4), layout="constrained")
        axes = losses(runs, title, axes=figure.subplots())
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=9)
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    svg = page.getvalue()
    return svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{html.escape(describe(axes))}" ', 1)


def code(text: str) -> Markup:
    """A sentence with its `code` marked up."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def in_turn(names: list[str]) -> list[str]:
    """Names of notebooks as they are read: the map, then each lesson, and after it the lab of its number."""
    return sorted(names, key=lambda n: (n != "index", n.split("-")[0].removeprefix("lab"), n.startswith("lab")))


def rung(reading: Reading) -> tuple:
    """Where a reading stands on the ladder: by lab and model, full before LoRA before QLoRA."""
    method = reading.plan.get("method")
    place = METHODS.index(method) if method in METHODS else len(METHODS)
    parts = [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", reading.case)]
    return reading.lab, model(reading.architecture), place, parts  # r=8 before r=32


def collect(run: Path) -> tuple[dict, list[Reading], list[dict], list[str]]:
    """Results, readings, what a CPU could not do, and what is broken, from a run's folder."""
    results, readings, notes, broken = read_results(run), [], [], []
    for path in sorted((run / "readings").glob("*.json")):
        try:
            reading = read_reading(path)
            (
                table(reading),
                bar(reading, 1),
                trained([reading]),
            )  # what cannot be drawn is broken, too, and costs no other reading
            readings.append(reading)
        except Exception as problem:
            broken.append(str(problem) if path.name in str(problem) else f"{path} cannot be drawn: {problem}")
    readings.sort(key=rung)
    try:
        notes = could_not(run)
    except ValueError as problem:
        broken.append(str(problem))
    return results, readings, notes, broken


def read_results(run: Path) -> dict:
    """The runner's record, ``results.json``. Raises ValueError where it is missing or not of the form it writes."""
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf8"))
    except OSError:
        raise ValueError(f"no results in {run}; make them with: make run") from None
    except (ValueError, RecursionError):
        results = None
    good = fits(results, RECORD) and fits(results["environment"], FACTS)
    if not good or not all(fits(entry, RESULT) for entry in results["notebooks"]):
        raise ValueError(f"{run / 'results.json'} is not a runner's record; make it again with: make run")
    return results


def fits(content, types: dict[str, Any]) -> bool:
    """Whether ``content`` is an object with these entries and no others, each of its type."""
    same = isinstance(content, dict) and set(content) == set(types)
    return same and all(isinstance(content[name], kind) for name, kind in types.items())


def could_not(run: Path) -> list[dict]:
    """What the notebooks said a CPU could not do, as {"notebook", "what"}, each once. Raises ValueError."""
    path = run / "readings" / NOT_ON_CPU
    notes = []
    try:
        for line in dict.fromkeys(path.read_text(encoding="utf8").splitlines() if path.exists() else []):
            notes.append(json.loads(line))
            if not fits(notes[-1], {"notebook": str, "what": str}):
                raise ValueError(f"{line[:60]!r}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a line that no notebook wrote; delete it ({error})") from None
    return notes


def build(run: Path, output: Path) -> tuple[Path, list[str]]:
    """Write ``output/index.html`` from the folder ``run``; returns its path and the readings that are broken."""
    results, readings, not_on_cpu, broken = collect(run)
    notebooks = results["notebooks"]
    turn = in_turn([entry["name"] for entry in notebooks])
    notebooks.sort(key=lambda entry: turn.index(entry["name"]))
    titles = {entry["name"].split("-")[0]: entry["title"] for entry in notebooks}
    for entry in notebooks:
        executed = run / f"{entry['name']}.html"
        entry["link"] = Path(os.path.relpath(executed, output)).as_posix() if executed.exists() else None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("report.html.j2").render(
        finding=finding(readings), results=results, notes=notes(readings), code=code,
        notebooks=notebooks, titles=titles, colors=COLORS, buckets=BUCKETS,
        failed=[entry for entry in notebooks if entry["status"] != "passed"],
        minutes=sum(entry["seconds"] for entry in notebooks) / 60, facts=results["environment"],
        ledgers=ledgers(readings), groups=groups(readings),
        broken=broken, not_on_cpu=not_on_cpu, trained=trained(readings), gb=gb,
    )  # fmt: skip
    write_atomically(output / "index.html", page)
    return output / "index.html", broken


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.report", description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("build/run"), help="the runner's folder (default build/run)")
    parser.add_argument("--output", type=Path, default=Path("build/report"), help="(default build/report)")
    args = parser.parse_args(argv)
    try:
        page, broken = build(args.run, args.output)
    except (ValueError, OSError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2
    print(page)
    for reason in broken:
        print(f"report: {reason}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
