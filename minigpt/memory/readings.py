"""A reading: one training step's memory, predicted beside measured, as one small JSON file.

Labs save them, the runner collects them, the report shows them side by side, and readings recorded on a
real GPU can be replayed on a machine that has none. All sizes are integer bytes.

    {"format": 1, "lab": "lab02", "case": "nano fp32", "device": "cpu", "instrument": "...",
     "versions": {...}, "architecture": {...}, "plan": {...},
     "predicted": {"ledger": {bucket: bytes}, "peak": {bucket: bytes}, "peak_at": "...", "frozen": bytes,
                   "card": {"allocated": bytes, "reserved": bytes}},
     "measured":  the same, or null where nothing was measured,
     "extra": {...}}

``card``: a card's allocator at its most. Predicted, it is a replay for a card, whose name is in ``extra``; measured,
it was read on a GPU. Left out where there is none, as in older readings.

``extra`` is free. The report draws these of its keys: ``card``, the name of the card of "card"; ``validation``
{"before", "after"} and ``curve`` {"train": [[step, value], ...], "validation": [...]}, both in bits per byte.
``samples`` [{"prompt", "before", "after"}, ...] is kept for who reads the file.

Left out: the timeline of a step, which is large and can be measured again. This file imports no torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from minigpt.memory.buckets import BUCKETS, Ledger, Reserved, StepMemory

FORMAT = 1
CARD = ("allocated", "reserved")  # of a card's allocator
LARGEST = 2**63 - 1  # no number in a reading is larger
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "unsloth")
NOT_ON_CPU = "not-on-cpu.jsonl"  # what a CPU could not do, one JSON object a line


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One case of one lab. ``measured`` is None where there was nothing to measure it with."""

    lab: str
    case: str
    device: str
    instrument: str
    predicted: StepMemory
    measured: StepMemory | None
    architecture: dict = field(default_factory=dict)
    plan: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)


def save_reading(
    directory: str | os.PathLike,
    *,
    lab: str,
    case: str,
    device: str,
    instrument: str,
    predicted: StepMemory,
    measured: StepMemory | None,
    architecture=None,
    plan=None,
    extra: dict | None = None,
) -> Path:
    """Write one reading and return its path, ``directory/lab-case.json``; an older one of that name is replaced.

    ``architecture`` and ``plan`` are dictionaries or dataclasses (``Architecture``, ``TrainingPlan``).
    Raises ValueError for an empty name, for something JSON cannot hold, and for a folder that cannot be written.
    """
    for name, value in (("lab", lab), ("case", case), ("device", device), ("instrument", instrument)):
        if not isinstance(value, str) or not _slug(value):
            raise ValueError(f"{name} is {value!r}; it must be a text with at least one letter or digit")
    if not isinstance(extra, (dict, type(None))):
        raise ValueError(f"extra is {extra!r}; it must be a dictionary, or None")
    content = {
        "format": FORMAT, "lab": lab, "case": case, "device": device, "instrument": instrument,
        "versions": _versions(), "architecture": _plain(architecture), "plan": _plain(plan),
        "predicted": _pack("predicted", predicted),
        "measured": None if measured is None else _pack("measured", measured),
        "extra": extra or {},
    }  # fmt: skip
    path = Path(directory) / f"{_slug(lab)}-{_slug(case)}.json"
    try:
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"the reading {lab} {case!r} cannot be written as JSON: {error}") from None
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ValueError(f"cannot write a reading to {str(directory)!r}: {error.strerror}") from None
    return path


def read_reading(path: str | os.PathLike) -> Reading:
    """Read one file. Raises ValueError naming the file and what is wrong with it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf8"))
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not a reading: it is not valid JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} is not a reading: format must be {FORMAT}")
    try:
        _check(content)
        measured = content["measured"]
        return Reading(
            **{key: content[key] for key in ("lab", "case", "device", "instrument")},
            **{key: content[key] for key in ("architecture", "plan", "versions", "extra")},
            predicted=_unpack(content["predicted"]),
            measured=None if measured is None else _unpack(measured),
        )
    except KeyError as error:
        raise ValueError(f"{str(path)!r} is not a reading: {error.args[0]!r} is missing") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is not a reading: {error}") from None


def load_readings(directory: str | os.PathLike) -> list[Reading]:
    """Every reading in ``directory``, by file name; none without the folder. Raises ValueError for a broken one."""
    return [read_reading(path) for path in sorted(Path(directory).glob("*.json"))]


def not_on_cpu(what: str, directory: str | os.PathLike | None = None) -> None:
    """Say, in the notebook and in the runner's report, what a machine without a GPU could not do here.

    ``directory`` is where readings go; by default the runner's ``LEDGER_READINGS``. Without either, it only prints.
    """
    if not isinstance(what, str) or not what.strip():
        raise ValueError(f"what is {what!r}; it must say what a CPU could not do")
    print(f"Not on a CPU: {what}")
    directory = directory or os.environ.get("LEDGER_READINGS")
    if directory:
        notebook = os.environ.get("LEDGER_NOTEBOOK", "notebook")
        Path(directory).mkdir(parents=True, exist_ok=True)
        with open(Path(directory) / NOT_ON_CPU, "a", encoding="utf8") as file:
            file.write(json.dumps({"notebook": notebook, "what": what}) + "\n")


def write_atomically(path: str | os.PathLike, text: str) -> None:
    """Write ``text`` to ``path`` whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes files that only the owner may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _pack(name: str, memory: StepMemory) -> dict:
    if not isinstance(memory, StepMemory):
        raise ValueError(f"{name} is a {type(memory).__name__}; it must be a StepMemory")
    card = memory.card and {name: getattr(memory.card, name) for name in CARD}
    return {
        "ledger": memory.ledger.as_dict(), "peak": memory.peak.as_dict(),
        "peak_at": memory.peak_at, "frozen": memory.frozen, **({"card": card} if card else {}),
    }  # fmt: skip


def _check(content: dict) -> None:
    """Refuse fields of another type than the report takes: ValueError naming one, KeyError where it is missing."""
    for names, kind in ((("lab", "case", "device", "instrument"), str), (("architecture", "plan"), dict)):
        for name in names:
            _must(isinstance(content[name], kind), name, content[name], "a text" if kind is str else "an object")
    architecture, extra = content["architecture"], content["extra"]
    _must(isinstance(architecture.get("family", ""), str), "family", architecture.get("family"), "a text")
    for name in ("n_layer", "n_embd"):
        _must(type(architecture.get(name, 0)) is int, name, architecture.get(name), "an integer")
    _must(isinstance(content["versions"], dict), "versions", content["versions"], "an object")
    _must(isinstance(extra, dict), "extra", extra, "an object")
    _must(isinstance(extra.get("card", ""), str), "card", extra.get("card"), "a text")
    bits = extra.get("validation") or {"before": 0, "after": 0}
    good = isinstance(bits, dict) and all(_finite(bits.get(name)) for name in ("before", "after"))
    _must(good, "validation", bits, '{"before": number, "after": number}')
    curve = extra.get("curve") or {}
    good = isinstance(curve, dict) and all(
        isinstance(line, list) and all(isinstance(p, list) and len(p) == 2 and all(map(_finite, p)) for p in line)
        for line in curve.values()
    )
    _must(good, "curve", curve, '{"train": [[step, value], ...], ...}')
    samples = extra.get("samples") or []
    words = ("prompt", "before", "after")
    good = isinstance(samples, list) and all(
        isinstance(sample, dict) and all(isinstance(sample.get(word), str) for word in words) for sample in samples
    )
    _must(good, "samples", samples, '[{"prompt": text, "before": text, "after": text}, ...]')


def _must(good: bool, name: str, value, allowed: str) -> None:
    if not good:
        raise ValueError(f"{name} is {str(value)[:60]!r}; it must be {allowed}")


def _finite(value) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _unpack(content: dict) -> StepMemory:
    ledgers = {}
    for name in ("ledger", "peak"):
        sizes = content[name]
        if set(sizes) != set(BUCKETS) or not all(type(n) is int and 0 <= n <= LARGEST for n in sizes.values()):
            raise ValueError(f"{name} must give integer bytes of at least 0 for {', '.join(BUCKETS)}")
        ledgers[name] = Ledger(**sizes)
    _must(isinstance(content["peak_at"], str), "peak_at", content["peak_at"], "a text")
    _must(type(content["frozen"]) is int and content["frozen"] >= 0, "frozen", content["frozen"], "integer bytes")
    return StepMemory(
        ledger=ledgers["ledger"], peak=ledgers["peak"], peak_at=content["peak_at"], frozen=content["frozen"],
        card=_card(content.get("card")),
    )  # fmt: skip


def _card(content) -> Reserved | None:
    """A card's counters; the instants and what loading took are not kept."""
    if content is None:
        return None
    good = isinstance(content, dict) and set(content) == set(CARD)
    good = good and all(type(n) is int and 0 <= n <= LARGEST for n in content.values())
    _must(good, "card", content, f"integer bytes of at least 0 for {', '.join(CARD)}")
    return Reserved(content["allocated"], "", content["reserved"], "", 0)


def _plain(thing) -> dict:
    return asdict(thing) if is_dataclass(thing) and not isinstance(thing, type) else dict(thing or {})


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _versions() -> dict[str, str]:
    """Python's version and that of each of ``PACKAGES`` that is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found
