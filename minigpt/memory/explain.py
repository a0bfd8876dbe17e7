"""explain(model, plan): what is alive at the peak, tensor by tensor, and where each was born.

"Tried to allocate 112.00 MiB" names no tensor; this list does: 8192 x 28672 weights in 4 bits are 112 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.run import run
from minigpt.memory.units import readable


@dataclass(frozen=True)
class Alive:
    """One storage at the peak.

    ``name``: the parameter, or the operation that made it. ``block``: where in the model; empty outside of blocks.
    ``phase``: when it was born; "before" the step, or in its forward, backward or step. ``shape`` and ``dtype`` are its
    first tensor's (None where that is not followed; "nf4" and "int8": packed weights); ``nbytes`` the storage's own.
    """

    bucket: str
    name: str
    block: str
    phase: str
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int


def explain(model, plan: TrainingPlan) -> tuple[Alive, ...]:
    """Every storage that is alive at the predicted peak, the largest first; their bytes add up to the peak.

    Raises ValueError as ``predict`` does.
    """
    alive = run(model, plan, lambda tape, _: tape.alive_at_peak())
    made = []
    for bucket, record in alive:
        phase, block, name = record.born
        made.append(Alive(BUCKETS[bucket], name, block, phase, record.shape, record.dtype, record.nbytes))
    return tuple(sorted(made, key=lambda one: -one.nbytes))


def table(alive: Sequence[Alive], most: int = 40) -> str:
    """Equal ones of different blocks in one row, the row of most bytes first; ``most`` rows, then what is left."""
    groups: dict[tuple, list[Alive]] = {}
    for one in alive:
        groups.setdefault((one.bucket, _without_block(one), one.phase, one.shape, one.dtype), []).append(one)
    rows = sorted(groups.values(), key=lambda group: -sum(one.nbytes for one in group))
    lines = [f"{'bytes':>10} {'times':>6} {'each':>10}  {'bucket':<12} {'dtype':<9} {'shape':<22} born"]
    for group in rows[:most]:
        one, total = group[0], sum(member.nbytes for member in group)
        shape = "" if one.shape is None else " x ".join(map(str, one.shape)) or "one number"
        born = f"{one.phase}, {_without_block(one)}"
        lines.append(
            f"{readable(total):>10} {len(group):>6} {readable(one.nbytes):>10}  {one.bucket:<12} {one.dtype:<9} "
            f"{shape:<22} {born}"
        )
    if rest := sum(one.nbytes for group in rows[most:] for one in group):
        lines.append(f"{readable(rest):>10} in {len(rows) - most} smaller rows")
    return "\n".join(lines)


def as_dicts(alive: Sequence[Alive]) -> list[dict]:
    """For JSON."""
    return [asdict(one) for one in alive]


def _without_block(one: Alive) -> str:
    """The name without its block's number: "blocks.3.q" and "block 3: silu" are met in every block."""
    parts = one.name.split(".")
    name = ".".join(part for part in parts if not part.isdigit())
    where = " ".join(word for word in one.block.split() if not word.rstrip(",").isdigit())
    return f"{where}: {name}" if where else name
