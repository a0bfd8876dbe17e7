"""The report of a run: one page, ``build/report/index.html``, that asks the network for nothing.

It takes the readings that the notebooks saved and the runner's ``results.json`` and shows predicted beside
measured: as a table, and as bars of the instant of the peak. ``python -m tools.report`` builds it again.

An error is (predicted - measured) / measured. Left out: timelines, which are in the executed notebooks.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from math import ceil
from pathlib import Path
from typing import Any, get_type_hints

import jinja2

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.plan import ALLOWED
from minigpt.memory.plots import COLORS
from minigpt.memory.readings import NOT_ON_CPU, Reading, read_reading, write_atomically
from minigpt.memory.units import GB, MB, gb, gib, mb
from tools.supervise import Result

HERE = Path(__file__).resolve().parent
RECORD = {"environment": dict, "finished": str, "notebooks": list}
FACTS: dict[str, Any] = {name: str for name in ("python", "system", "cpu")}
FACTS |= {"cores": int | None, "ram": int, "packages": dict, "gpu": str | None, "vram": int | None}
RESULT = get_type_hints(Result) | {"problems": list, "seconds": int | float, "minutes_budget": int | float | None}
LINES = {"train": "#C8C8C8", "validation": "#D55E00"}  # not a bucket's colours
METHODS = ALLOWED["method"]


def error(predicted: int, measured: int) -> str:
    """How far off a prediction is, in words short enough for a table."""
    if predicted == measured:
        return "exact"
    if measured == 0:
        return f"{predicted:+,} B"
    percent = 100 * (predicted - measured) / measured
    return f"{percent:+.2f}%" if abs(percent) >= 0.01 else f"{predicted - measured:+,} B"


def table(reading: Reading) -> dict:
    """One reading's three rows: predicted, measured, error; a column a bucket, and the peak."""
    predicted = [*reading.predicted.ledger.as_dict().values(), reading.predicted.peak.total]
    scale, unit = (GB, "GB") if max(predicted) >= GB else (MB, "MB")
    rows = [("predicted", [f"{size / scale:,.3f}" for size in predicted])]
    if reading.measured is None:
        rows.append(("measured", []))
    else:
        measured = [*reading.measured.ledger.as_dict().values(), reading.measured.peak.total]
        rows.append(("measured", [f"{size / scale:,.3f}" for size in measured]))
        rows.append(("error", [error(*pair) for pair in zip(predicted, measured, strict=True)]))
    return {"reading": reading, "unit": unit, "rows": rows}


def bars(readings: list[Reading]) -> list[dict]:
    """Readings of one architecture together, on one scale: predicted above measured, at the instant of the peak."""
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(json.dumps(reading.architecture, sort_keys=True), []).append(reading)
    out = []
    for group in groups.values():
        pairs = [(r, [("predicted", r.predicted), *([("measured", r.measured)] if r.measured else [])]) for r in group]
        longest = max(memory.peak.total for _, pair in pairs for _, memory in pair) or 1
        show = gb if longest >= GB else mb
        drawn = [(reading, [bar(label, memory, longest, show) for label, memory in pair]) for reading, pair in pairs]
        out.append({"name": model(group[0].architecture), "longest": show(longest), "pairs": drawn})
    return out


def bar(label: str, memory, longest: int, show) -> dict:
    parts = [(name, size, 100 * size / longest) for name, size in memory.peak.as_dict().items() if size]
    text = ", ".join(f"{name} {show(size)}" for name, size, _ in parts)
    return {
        "label": label, "parts": parts, "total": show(memory.peak.total), "at": memory.peak_at,
        "text": f"{label} peak {show(memory.peak.total)} at {memory.peak_at}: {text}",
    }  # fmt: skip


def model(architecture: dict) -> str:
    """'minigpt, 4 layers, 128 wide', from an architecture's fields."""
    names = (("n_layer", "layers"), ("n_embd", "wide"))
    sizes = [f"{architecture[key]:,} {word}" for key, word in names if key in architecture]
    return ", ".join([architecture.get("family", "a model"), *sizes])


def finding(readings: list[Reading]) -> str:
    """The one sentence on top."""
    measured = [(r.predicted, r.measured) for r in readings if r.measured is not None]
    if not measured:
        return "Nothing has been measured yet."
    worst = max(abs(predicted.peak.total / (found.peak.total or 1) - 1) for predicted, found in measured)
    static = all(
        getattr(predicted.ledger, name) == getattr(found.ledger, name)
        for predicted, found in measured
        for name in BUCKETS[:3]
    )
    count = "the one step" if len(measured) == 1 else f"all {len(measured)} steps"
    how = "to the byte" if worst == 0 else f"to within {ceil(1e4 * worst) / 100:.2f}%"
    sentence = f"The peak memory of {count} measured here was predicted {how}"
    return sentence + ("; weights, gradients and optimizer state to the byte." if static else ".")


def curve(reading: Reading) -> str:
    """The loss curve of a reading as inline SVG, or nothing where it has none."""
    series = {name: points for name, points in reading.extra.get("curve", {}).items() if points}
    if not series:
        return ""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": reading.case, "font.family": "sans-serif"}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 2.9), layout="constrained")
        axes = figure.subplots()
        for name, points in series.items():
            steps, values = zip(*points, strict=True)
            marker = "o" if name == "validation" else None
            axes.plot(steps, values, color=LINES.get(name), marker=marker, markersize=4, label=name, linewidth=1.8)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("loss in bits per byte")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e6ea", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    svg = page.getvalue()
    title = f"Loss of {reading.case}: {', '.join(series)}, in bits per byte by optimizer step"
    return svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


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
            table(reading), curve(reading)  # what cannot be drawn is broken, too, and costs no other reading
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
    titles = {entry["name"].split("-")[0]: entry["title"] for entry in notebooks}
    for entry in notebooks:
        executed = run / f"{entry['name']}.html"
        entry["link"] = Path(os.path.relpath(executed, output)).as_posix() if executed.exists() else None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("report.html.j2").render(
        finding=finding(readings), results=results, notebooks=notebooks, titles=titles, colors=COLORS, buckets=BUCKETS,
        failed=[entry for entry in notebooks if entry["status"] != "passed"],
        minutes=sum(entry["seconds"] for entry in notebooks) / 60, facts=results["environment"],
        tables=[table(reading) for reading in readings], groups=bars(readings), broken=broken, not_on_cpu=not_on_cpu,
        trained=[(r, curve(r)) for r in readings if r.extra.get("curve") or r.extra.get("validation")],
        samples=[(r, r.extra["samples"]) for r in readings if r.extra.get("samples")], gb=gb, gib=gib,
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
