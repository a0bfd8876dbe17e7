"""What the report says in words: a reading's name, the finding on top, what a group of readings means.

Every sentence is made from the readings, so that none outlives its numbers. Percentages are rounded as usual, here
and in the table, and a difference that would read 0.00% is given in bytes.
"""

from __future__ import annotations

from collections import Counter

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.readings import Reading
from minigpt.memory.units import GB, gb, mb

STATIC = BUCKETS[:3]  # weights, gradients, optimizer: what a formula by hand gives


def error(predicted: int, measured: int) -> str:
    """How far off a prediction is, in words short enough for a table."""
    if predicted == measured:
        return "exact"
    if measured == 0:
        return f"{predicted:+,} B"
    percent = 100 * (predicted - measured) / measured
    return f"{percent:+.2f}%" if abs(percent) >= 0.005 else f"{predicted - measured:+,} B"


def size(nbytes: int) -> str:
    return gb(nbytes) if nbytes >= GB else mb(nbytes)


def model(architecture: dict) -> str:
    """'minigpt, 4 layers, 128 wide', from an architecture's fields."""
    names = (("n_layer", "layers"), ("n_embd", "wide"))
    sizes = [f"{architecture[key]:,} {word}" for key, word in names if key in architecture]
    return ", ".join([architecture.get("family", "a model"), *sizes])


def dtypes(plan: dict) -> str:
    """'fp32', or with adapters what the base is kept in, 'nf4 base'; nothing where the plan does not say."""
    kept = plan.get("quantization") if plan.get("method") == "qlora" else plan.get("precision")
    if not isinstance(kept, str):
        return ""
    return kept if plan.get("method") == "full" else f"{kept} base"


def label(reading: Reading) -> str:
    """A reading's case with its dtypes, said once: 'nano full, fp32'."""
    kept = dtypes(reading.plan)
    said = kept.removesuffix(" base").lower() in reading.case.lower()
    return reading.case if said or not kept else f"{reading.case}, {kept}"


def labels(readings: list[Reading]) -> list[str]:
    """A label for each reading, no two the same: with its lab and its tokens where others have the same case."""
    short = [label(reading) for reading in readings]
    times = Counter(short)
    long = [name if times[name] == 1 else f"{name} ({r.lab}, {tokens(r)})" for name, r in zip(short, readings)]
    seen: Counter[str] = Counter()
    for i, name in enumerate(long):
        seen[name] += 1
        long[i] = name if seen[name] == 1 else f"{name}, again {seen[name]}"
    return long


def tokens(reading: Reading) -> str:
    """'8 × 96 tokens' of a forward pass."""
    return f"{reading.plan.get('batch', '?')} × {reading.plan.get('seq_len', '?')} tokens"


def finding(readings: list[Reading]) -> str:
    """The one sentence on top."""
    measured = [(r.predicted, r.measured, r.case) for r in readings if r.measured is not None]
    if not measured:
        return "No lab has saved a reading yet; what the lessons measure stands on their pages."
    exact = sum(predicted.peak.total == found.peak.total for predicted, found, _ in measured)
    predicted, found, name = max(measured, key=lambda case: abs(case[0].peak.total / (case[1].peak.total or 1) - 1))
    steps = "one training step" if len(measured) == 1 else f"{len(measured)} training steps"
    said = f"The peak memory of {steps}, predicted and then measured: "
    if exact == len(measured):
        said += "equal to the byte"
    else:
        largest = error(predicted.peak.total, found.peak.total).lstrip("+-")
        said += f"{exact or 'none'} equal to the byte, the largest difference {largest} ({name})"
    static = all(
        getattr(predicted.ledger, bucket) == getattr(found.ledger, bucket)
        for predicted, found, _ in measured
        for bucket in STATIC
    )
    return said + ("; weights, gradients and optimizer state to the byte." if static else ".")


def notes(readings: list[Reading]) -> list[str]:
    """Why a bucket can differ where the peak is exact."""
    apart: dict[int, list[str]] = {}
    for reading, name in zip(readings, labels(readings)):
        found = reading.measured
        if found and any(getattr(reading.predicted.ledger, b) != getattr(found.ledger, b) for b in STATIC):
            buffers = tables(reading)
            same = found.ledger.weights - reading.predicted.ledger.weights == buffers
            apart.setdefault(buffers if same else 0, []).append(name)
    said = []
    for buffers, names in apart.items():
        which = ", ".join(names)
        if buffers:
            said.append(
                f"{which}: the lab's formula counts parameters, and finds {buffers} bytes less than the meter. A llama "
                f"also keeps two tables of rotary frequencies, {buffers // 2} bytes each: buffers, not parameters. The "
                "peak is predict's, which knows them."
            )
        else:
            said.append(f"{which}: the buckets are the lab's own arithmetic, the peak is predict's.")
    return said


def meaning(readings: list[Reading]) -> str:
    """What readings of one model, in one lab, on as many tokens, say together: their peaks against the first one's."""
    if len(readings) < 2:
        return ""
    base, *others = readings
    first = base.predicted.peak
    shares = [(reading.predicted.peak.total / (first.total or 1) - 1, reading) for reading in others]
    said = [f"{short(reading)} {change(share)}" for share, reading in shares]
    text = f"Against {short(base)}: {', '.join(said)}."
    share, dearest = max(shares, key=lambda pair: pair[0])
    if base.plan.get("method") == "full" and share > 0 and dearest.plan.get("method") != "full":
        text += f" {why(dearest, base)}"
    return text


def why(dearest: Reading, base: Reading) -> str:
    """Why adapters can cost more than full fine-tuning: what they save and what they add, bucket by bucket."""
    first, second = base.predicted.peak.as_dict(), dearest.predicted.peak.as_dict()
    apart = {bucket: second[bucket] - first[bucket] for bucket in BUCKETS}
    less = ", ".join(f"{bucket} {size(-n)}" for bucket, n in apart.items() if size(max(-n, 0)) != size(0))
    more = ", ".join(f"{bucket} {size(n)}" for bucket, n in apart.items() if size(max(n, 0)) != size(0))
    return (
        f"{short(dearest)} needs more than full fine-tuning because it adds ({more}) more than it saves ({less}): "
        "adapters shrink what is kept for each parameter, not what is kept for each token, and a model this small has "
        "few parameters."
    )


def short(reading: Reading) -> str:
    """'LoRA r=8' of 'nano LoRA r=8': a case without the model's name, which stands above."""
    method = str(reading.plan.get("method"))
    at = reading.case.lower().find(method)
    return reading.case[at:] if at > 0 else reading.case


def change(share: float) -> str:
    return "the same" if abs(share) < 0.005 else f"{abs(share):.0%} {'more' if share > 0 else 'less'}"


def tables(reading: Reading) -> int:
    """Bytes of a llama's two tables of rotary frequencies, float32, half a head each: buffers, not parameters."""
    shape = reading.architecture
    heads, width = shape.get("n_head"), shape.get("n_embd")
    if shape.get("family") != "llama" or not isinstance(heads, int) or not isinstance(width, int) or heads < 1:
        return 0
    return 2 * 4 * ((shape.get("head_dim") or width // heads) // 2)
