"""The bytes that stay between two QLoRA steps on the real libraries: the truth, and the slips people make.

    judge(qlora_stays, (config, rank), only)                  by the meter, on transformers, peft and bitsandbytes
    judge(qlora_stays, ((matrices, others), rank), only)      by arithmetic alone, for sizes that no llama has

What is compared is arithmetic. The meter is asked once in a process whether it is right, so nothing is kept that the
next answer could look up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import buckets
from minigpt.checks.four_bits.asking import FOUR_BITS
from minigpt.checks.naming import Hints, given
from minigpt.checks.optimizers.moments import moment_slips, moments
from minigpt.memory.families import Architecture
from minigpt.memory.measured.apart import measure_apart
from minigpt.memory.plan import TrainingPlan

knows(__name__, *FOUR_BITS, guard="NoKernels")
BUCKETS = ("frozen", "trainable", "gradients", "optimizer")
TABLES = 64 + 1024  # bytes: bitsandbytes keeps the 16 codes and the 256 values of the 8-bit map with every matrix

_confirmed: set[str] = set()  # the cases that the meter has been asked about, as JSON; not what it said


def judge(answer: Callable, case: tuple[dict | tuple, int], only: Iterable[str] = ()) -> None:
    """``answer(matrices, others, rank)`` for (config, rank), or ((matrices, others), rank); see above."""
    model, rank = case
    matrices, others = parts(model) if isinstance(model, dict) else model
    mine = by_hand(answer, matrices, others, rank)
    if isinstance(model, dict):
        _confirm(model, rank)
    zero, copies = {"nothing-counted": ("nothing is counted", 0)}, {"master-copy": (
        "8 bytes per number are booked: there is one float32 copy of it, and no master copy beside that",
        8 * rank * sum(map(sum, matrices)))}  # fmt: skip
    wrong = {bucket: zero | (copies if bucket in ("trainable", "gradients") else {}) for bucket in BUCKETS}
    what, truth = f"{len(matrices)} matrices, rank {rank}", stays(matrices, others, rank)
    buckets(mine, truth, what, wrong=wrong, slips=slips(matrices, others, rank), only=only)


def parts(config: dict) -> tuple[list[tuple[int, int]], int]:
    """The blocks' matrices as (out, in), block after block, and how many parameters the model has besides."""
    architecture = Architecture.of(config)
    matrices = [(t.shape[0], t.shape[1]) for t in architecture.tensors() if t.kind == "linear"]
    return matrices, architecture.parameters - architecture.linear_parameters


def _confirm(config: dict, rank: int) -> None:
    """RuntimeError if the meter on the installed libraries says otherwise than ``stays``; asked once for each case."""
    case = json.dumps((config, rank), sort_keys=True)
    if case in _confirmed:
        return
    if (reading := metered(config, rank)) != (right := stays(*parts(config), rank)):
        raise RuntimeError(
            f"the installed libraries keep {reading} on the meter, not {right}; this lab was written for other versions"
        )
    _confirmed.add(case)


def metered(config: dict, rank: int) -> dict[str, int]:
    """The bytes by the meter, in a process of its own."""
    plan = TrainingPlan(batch=1, seq_len=4, method="qlora", precision="bf16", optimizer="adamw8bit", rank=rank)
    reading = measure_apart(config, plan)
    rotary, ledger = sum(Architecture.of(config).buffers()), reading.ledger  # rotary: no parameters
    return dict(zip(BUCKETS, (reading.frozen - rotary, reading.trainable, ledger.gradients, ledger.optimizer)))


def stays(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, int]:
    """The right answer, in bytes."""
    sides = [rank * side for shape in matrices for side in shape]  # elements of each adapter tensor
    frozen = 4 * others
    for n in (out * width for out, width in matrices):
        frozen += n // 2 + n // 64 + 4 * _ceil(n, 64 * 256) + 4 + TABLES
    return {"frozen": frozen, "trainable": 4 * sum(sides), "gradients": 4 * sum(sides), "optimizer": moments(sides)}


def _ceil(n: int, group: int) -> int:
    return -(-n // group)


# ---------------------------------------------------------------- slips


def slips(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, list[Hints]]:
    """{bucket: bytes too many}."""
    rows, columns = (rank * sum(sizes) for sizes in zip(*matrices))  # elements of all B, of all A
    n, N = sum(out * width for out, width in matrices), rows + columns
    adapters = given({
        "no-rank": ("the rank is forgotten", N // rank - N),
        "rank-in-out": ("r * in * out is counted; an adapter is two thin matrices, r * in and out * r", rank * n - N),
        "only-a": ("only A is counted, r * in", -rows), "only-b": ("only B is counted, out * r", -columns),
        "a-twice": ("A and B are both booked with r * in elements; B has out * r", columns - rows),
        "b-twice": ("A and B are both booked with out * r elements; A has r * in", rows - columns),
    }, lambda extra: 4 * extra)  # fmt: skip
    return {
        "frozen": _frozen_slips(matrices, others, N),
        "trainable": [{
            "two-byte-adapters": ("2 bytes per adapter parameter; peft keeps adapters in float32", -2 * N), **adapters,
        }, {
            "rest-trainable": (
                "everything that is float32 is booked in it; embeddings, norms and head are frozen", 4 * others),
        }],
        "gradients": [{
            "two-byte-gradients": (
                "2 bytes per gradient; it has its weight's type, and adapters are float32", -2 * N), **adapters,
        }, {
            "rest-gradients": (
                "gradients are booked for what is float32; embeddings, norms and head are frozen", 4 * others),
            "frozen-gradients": ("gradients are booked for all weights; frozen ones have none", 4 * (n + others)),
        }],
        "optimizer": _optimizer_slips(matrices, others, rank),
    }  # fmt: skip


def _frozen_slips(matrices: list[tuple[int, int]], others: int, N: int) -> list[Hints]:
    M, n = len(matrices), sum(out * width for out, width in matrices)
    scales = [_ceil(out * width, 64) for out, width in matrices]  # of each matrix
    seconds = [_ceil(count, 256) for count in scales]
    plain = 3 * sum(scales) - 4 * sum(seconds)  # float32 scales instead of both
    of_scales = {
        "float32-scales": ("the scales are float32: double quantization is forgotten", plain - (4 + 1024) * M),
        "float32-scales-offsets": (
            "the scales are float32, without double quantization; yet its offsets and tables are booked", plain),
        "float32-scales-seconds": (
            "the scales are booked as float32 beside the second ones; where there are second scales, they are 8-bit",
            3 * sum(scales)),
        "no-scales": ("the 8-bit scales are missing: one byte for 64 weights", -sum(scales)),
        "no-seconds": ("the second scales are missing: a float32 for 256 scales", -4 * sum(seconds)),
        "seconds-rounded-down": (
            "the second scales are rounded down; a last group that is not full has a scale too",
            4 * sum(count // 256 - second for count, second in zip(scales, seconds))),
        "seconds-together": (
            "the second scales are taken over all matrices together; each matrix has its own",
            4 * (_ceil(sum(scales), 256) - sum(seconds))),
        "second-each-256-weights": (
            "256 weights share a second scale; it is 256 scales",
            4 * (sum(_ceil(out * width, 256) for out, width in matrices) - sum(seconds))),
        "one-byte-seconds": ("the second scales are booked in 8 bits; they are float32", -3 * sum(seconds)),
    }  # fmt: skip
    rest = {
        "rest-16-bit": (
            "what is not 4-bit is booked in 16 bits; peft's preparation makes it float32", -2 * others),
        "no-rest": ("what is not 4-bit is missing: embedding, norms, head", -4 * others),
        "rest-in-4-bits": ("what is not 4-bit is booked in 4 bits as well", others // 2 - 4 * others),
    }  # fmt: skip
    offsets = {"no-offsets": ("the offsets are missing: a float32 for each matrix", -4 * M)}
    tables = {
        "no-tables": ("the two tables are missing: 64 and 1,024 bytes with each matrix", -TABLES * M),
        "no-large-table": ("the table of 1,024 bytes is missing", -1024 * M),
        "no-small-table": ("the table of 64 bytes is missing", -64 * M),
        "tables-once": (
            "the two tables are booked once; bitsandbytes keeps them with each matrix", TABLES - TABLES * M),
    }  # fmt: skip
    weights = {
        "eight-bits": ("one byte per weight is 8 bits", n - n // 2),
        "two-bytes-a-weight": ("2 bytes per weight: the matrices are not in 4 bits", 2 * n - n // 2),
        "four-bytes-a-weight": ("4 bytes per weight: 4 bits are half a byte", 4 * n - n // 2),
    }
    adapters = {"adapters-in-frozen": ("the adapters are booked in it; they are trainable", 4 * N)}
    return [of_scales, rest, offsets, tables, weights, adapters]


def _optimizer_slips(matrices: list[tuple[int, int]], others: int, rank: int) -> list[Hints]:
    sides = [rank * side for shape in matrices for side in shape]
    n, N, right = sum(out * width for out, width in matrices), sum(sides), moments(sides)
    taken = {  # the tensors that a mistake gives moments
        "no-rank": ("the rank is forgotten", [size // rank for size in sides]),
        "rank-in-out": ("r * in * out is counted; an adapter is two thin matrices, r * in and out * r",
                        [rank * out * width for out, width in matrices]),
        "only-a": ("only A is counted, r * in", sides[1::2]), "only-b": ("only B is counted, out * r", sides[::2]),
        "a-twice": ("A and B are both booked with r * in elements; B has out * r", 2 * sides[1::2]),
        "b-twice": ("A and B are both booked with out * r elements; A has r * in", 2 * sides[::2]),
        "together": ("A and B are taken together; each is a tensor of its own",
                     [rank * (out + width) for out, width in matrices]),
    }  # fmt: skip
    of_moments = moment_slips(sides) | given(taken, lambda sizes: moments(sizes) - right)
    beside = {
        "master-copy": ("a float32 master copy is booked; the adapters are float32 themselves", 4 * N),
        "frozen-moments": ("moments are booked for all weights; frozen ones have none", 8 * (n + others)),
    }
    return [of_moments, beside, {
        "step-counts": ("AdamW's step counts are booked; this optimizer keeps them as plain numbers", 4 * len(sides)),
    }]  # fmt: skip
