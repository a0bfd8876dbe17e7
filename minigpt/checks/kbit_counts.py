"""The bytes that stay between two QLoRA steps on the real libraries: the truth, and the slips people make.

    judge(qlora_stays, [(config, rank), ...])     by the meter: a step of transformers, peft and bitsandbytes
    judge(qlora_stays, [((matrices, others), rank)])     by arithmetic alone, for sizes that no llama has
    row(step, measured, model, plan, what, on_gpu)       two readings or predictions of one step, bucket by bucket

All answers are collected first, as plain numbers; then the truths are made. What is compared is arithmetic. The meter
is asked once in a process whether it is right, so nothing that an answer could look up is kept for the next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import _number, buckets, close
from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.measured.apart import measuring, run_apart
from minigpt.memory.plan import TrainingPlan

TABLES = 64 + 1024  # bytes: bitsandbytes keeps the 16 codes and the 256 values of the 8-bit map with every matrix
SMALL = 4096  # elements: from here on bitsandbytes' optimizer has 8-bit state

_confirmed: set[str] = set()  # the cases that the meter has been asked about, as JSON; not what it said


def judge(answer: Callable, cases: list[tuple[dict | tuple, int]]) -> None:
    """``answer(matrices, others, rank)`` for each (config, rank), or ((matrices, others), rank); see above."""
    asked = [((parts(model) if isinstance(model, dict) else model), rank) for model, rank in cases]
    answers = [_plain(by_hand(answer, matrices, others, rank)) for (matrices, others), rank in asked]
    _confirm([(model, rank) for model, rank in cases if isinstance(model, dict)])
    for ((matrices, others), rank), mine in zip(asked, answers):
        truth, what = stays(matrices, others, rank), f"{len(matrices)} matrices, rank {rank}"
        twice = 8 * rank * sum(map(sum, matrices))
        copies = "8 bytes a number: there is one float32 copy of it, and no master copy beside that"
        wrong = {bucket: {0: "nothing is counted"} for bucket in truth}
        wrong |= {bucket: {0: "nothing is counted", twice: copies} for bucket in ("trainable", "gradients")}
        buckets(mine, truth, what, wrong=wrong, slips=slips(matrices, others, rank))


def _plain(answer):
    """A mapping as a dictionary of plain numbers, so that it asks nothing when it is compared."""
    if not isinstance(answer, Mapping):
        return answer
    plain = {}
    for key, value in answer.items():
        number = _number(value)
        keeps = number is None or isinstance(value, bool)  # refused below, in words
        plain[str.__str__(key) if isinstance(key, str) else key] = value if keeps else number
    return plain


def parts(config: dict) -> tuple[list[tuple[int, int]], int]:
    """The blocks' matrices as (out, in), block after block, and how many parameters the model has besides."""
    architecture = Architecture.of(config)
    matrices = [t.shape for t in architecture.tensors() if t.kind == "linear"]
    return matrices, architecture.parameters - architecture.linear_parameters


def _confirm(cases: list[tuple[dict, int]]) -> None:
    """RuntimeError if the meter on the installed libraries says otherwise than ``stays``; asked once for each case."""
    new = {json.dumps(case, sort_keys=True): case for case in cases}
    new = {key: case for key, case in new.items() if key not in _confirmed}
    for (key, (config, rank)), reading in zip(new.items(), metered(list(new.values()))):
        if reading != (right := stays(*parts(config), rank)):
            raise RuntimeError(f"the installed libraries keep {reading} on the meter, not {right}; they are not the "
                               "versions that this lab was written for")  # fmt: skip
        _confirmed.add(key)


def metered(cases: list[tuple[dict, int]]) -> list[dict[str, int]]:
    """For each (config, rank) the bytes by the meter, {"frozen", "trainable", "gradients", "optimizer"}."""
    more = dict(batch=1, seq_len=4, method="qlora", precision="bf16", optimizer="adamw8bit")
    calls = {str(i): measuring(config, TrainingPlan(rank=rank, **more)) for i, (config, rank) in enumerate(cases)}
    readings = run_apart(calls, at_once=2)
    truths = []
    for (config, _), reading in zip(cases, readings.values()):
        rotary = 2 * 4 * (Architecture.of(config).head_dim // 2)  # two float32 buffers, which are no parameters
        ledger = reading.ledger
        truths.append({"frozen": reading.frozen - rotary, "trainable": reading.trainable,
                       "gradients": ledger.gradients, "optimizer": ledger.optimizer})  # fmt: skip
    return truths


def stays(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, int]:
    """The right answer, in bytes."""
    sides = [rank * side for shape in matrices for side in shape]  # elements of each adapter tensor
    frozen = 4 * others
    for n in (out * width for out, width in matrices):
        frozen += n // 2 + n // 64 + 4 * _ceil(n, 64 * 256) + 4 + TABLES
    return {"frozen": frozen, "trainable": 4 * sum(sides), "gradients": 4 * sum(sides), "optimizer": moments(sides)}


def row(step: StepMemory, measured: StepMemory, model, plan: TrainingPlan, what: str, on_gpu: bool, peak=True) -> None:
    """The static buckets of ``step`` are those of ``measured``; the ``peak``, if asked for, to 2%.

    A GPU rounds every tensor up to 512 bytes: so much more is allowed there for each of the step's tensors.
    """
    tensors = Architecture.of(model).tensors()
    matrices = sum(tensor.kind == "linear" for tensor in tensors)
    frozen = len(tensors) + 2 + 5 * matrices * (plan.method == "qlora")  # rotary: 2; a 4-bit matrix: 6 storages
    trained = len(tensors) if plan.method == "full" else 2 * matrices
    counts = {"weights": frozen + trained, "gradients": trained, "optimizer": 4 * trained + 2}
    for bucket, count in counts.items():
        numbers = (getattr(found.ledger, bucket) for found in (step, measured))
        close(*numbers, f"{what}, {bucket}", rtol=0, atol=512 * count * on_gpu)
    if peak:
        extra = 512 * sum(counts.values()) * on_gpu
        close(step.peak.total, measured.peak.total, f"{what}, peak", rtol=0.02, atol=extra)


def moments(sizes: list[int], block: int = 256) -> int:
    """Bytes of both moments of bitsandbytes' 8-bit AdamW for tensors of these sizes, with its two maps."""
    large = [size for size in sizes if size >= SMALL]
    return _eight(large, block) + 8 * (sum(sizes) - sum(large)) + 2048 * bool(large)


def _eight(sizes: list[int], block: int = 256) -> int:
    return sum(2 * (size + 4 * _ceil(size, block)) for size in sizes)


def _ceil(n: int, group: int) -> int:
    return -(-n // group)


# ---------------------------------------------------------------- slips


def slips(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, dict[str, int]]:
    """{bucket: {mistake: bytes too many}}."""
    rows, columns = (rank * sum(sizes) for sizes in zip(*matrices))  # elements of all B, of all A
    n, N = sum(out * width for out, width in matrices), rows + columns
    counts = {
        "the rank is forgotten": N // rank - N,
        "r * in * out is counted; an adapter is two thin matrices, r * in and out * r": rank * n - N,
        "only A is counted, r * in": -rows, "only B is counted, out * r": -columns,
        "A and B are both booked with r * in elements; B has out * r": columns - rows,
        "A and B are both booked with out * r elements; A has r * in": rows - columns,
    }  # fmt: skip
    adapters = {mistake: 4 * extra for mistake, extra in counts.items()}
    return {
        "frozen": _frozen_slips(matrices, others, N),
        "trainable": {"2 bytes an adapter's number; peft keeps adapters in float32": -2 * N, **adapters,
                      "everything that is float32 is booked in it; embeddings, norms and head are frozen": 4 * others},
        "gradients": {"2 bytes a gradient; it has its weight's type, and adapters are float32": -2 * N, **adapters,
                      "gradients are booked for what is float32; embeddings, norms and head are frozen": 4 * others,
                      "gradients are booked for all weights; frozen ones have none": 4 * (n + others)},
        "optimizer": _optimizer_slips(matrices, others, rank),
    }  # fmt: skip


def _frozen_slips(matrices: list[tuple[int, int]], others: int, N: int) -> dict[str, int]:
    M, n = len(matrices), sum(out * width for out, width in matrices)
    scales = [_ceil(out * width, 64) for out, width in matrices]  # of each matrix
    seconds = [_ceil(count, 256) for count in scales]
    return {
        "the scales are float32: double quantization is forgotten": 3 * sum(scales) - 4 * sum(seconds) - (4 + 1024) * M,
        "the scales are float32, without double quantization; yet its offsets or tables are booked": (
            3 * sum(scales) - 4 * sum(seconds)),
        "float32 scales beside the second ones; what has second scales is 8 bits": 3 * sum(scales),
        "what is not 4-bit is booked in 16 bits; peft's preparation makes it float32": -2 * others,
        "what is not 4-bit is missing: embedding, norms, head": -4 * others,
        "what is not 4-bit is booked in 4 bits as well": others // 2 - 4 * others,
        "the 8-bit scales are missing: one byte for 64 weights": -sum(scales),
        "the second scales are missing: a float32 for 256 scales": -4 * sum(seconds),
        "the second scales are rounded down; a last group that is not full has a scale too": 4 * sum(
            count // 256 - second for count, second in zip(scales, seconds)),
        "the second scales are taken over all matrices together; each matrix has its own": 4 * (
            _ceil(sum(scales), 256) - sum(seconds)),
        "256 weights share a second scale; it is 256 scales": 4 * (
            sum(_ceil(out * width, 256) for out, width in matrices) - sum(seconds)),
        "the second scales are booked in 8 bits; they are float32": -3 * sum(seconds),
        "the offsets are missing: a float32 for each matrix": -4 * M,
        "the two tables are missing: 64 and 1,024 bytes with each matrix": -TABLES * M,
        "the table of 1,024 bytes is missing": -1024 * M, "the table of 64 bytes is missing": -64 * M,
        "the two tables are booked once; bitsandbytes keeps them with each matrix": TABLES - TABLES * M,
        "one byte a weight is 8 bits": n - n // 2, "2 bytes a weight: the matrices are not in 4 bits": 2 * n - n // 2,
        "4 bytes a weight: 4 bits are half a byte": 4 * n - n // 2,
        "the adapters are booked in it; they are trainable": 4 * N,
    }  # fmt: skip


def _optimizer_slips(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, int]:
    sides = [rank * side for shape in matrices for side in shape]
    n, N, right = sum(out * width for out, width in matrices), sum(sides), moments(sides)
    large, edge = [size for size in sides if size >= SMALL], [size for size in sides if size == SMALL]
    taken = {  # {mistake: the tensors that it gives moments}
        "the rank is forgotten": [size // rank for size in sides],
        "r * in * out is counted; an adapter is two thin matrices, r * in and out * r": [
            rank * out * width for out, width in matrices],
        "only A is counted, r * in": sides[1::2], "only B is counted, out * r": sides[::2],
        "A and B are both booked with r * in elements; B has out * r": 2 * sides[1::2],
        "A and B are both booked with out * r elements; A has r * in": 2 * sides[::2],
        "A and B are taken together; each is a tensor of its own": [rank * (out + width) for out, width in matrices],
    }  # fmt: skip
    return {
        "float32 moments for every tensor: from 4,096 elements on they are 8-bit": 8 * N - right,
        "float32 moments for every tensor, and step counts; from 4,096 elements on they are 8-bit": (
            8 * N + 4 * len(sides) - right),
        "float32 moments for every tensor, and the two maps; from 4,096 elements on they are 8-bit": (
            8 * N + 2048 - right if large else 0),
        "8-bit moments for every tensor: under 4,096 elements they stay float32": _eight(sides) + 2048 - right,
        "16-bit moments for small tensors; under 4,096 elements they are float32": -4 * (N - sum(large)),
        "2 bytes an element, flat: scales are missing, and small tensors stay float32": 2 * N - right,
        "a tensor of exactly 4,096 elements has 8-bit moments too": 8 * sum(edge) - _eight(edge),
        "AdamW's step counts are booked; this optimizer keeps them as plain numbers": 4 * len(sides),
        "the scales of the 8-bit moments are missing: a float32 for 256 elements, twice": (
            2 * sum(large) - _eight(large)),
        "the scales are counted once; each of the two moments has its own": sum(large) - _eight(large) // 2,
        "the moments' scales are booked in 8 bits; they are float32": -6 * sum(_ceil(size, 256) for size in large),
        "64 elements share a moment's scale; it is 256": moments(sides, 64) - right,
        "2,048 elements share a moment's scale; it is 256": moments(sides, 2048) - right,
        "the two 8-bit maps are missing: 1,024 bytes each, once": -2048 * bool(large),
        "one of the two 8-bit maps is missing": -1024 * bool(large),
        "the two 8-bit maps are booked, and no tensor has 8-bit moments": 2048 * (not large),
        "the 8-bit maps are booked for each tensor; the optimizer has one pair": 2048 * max(0, len(large) - 1),
        "one of the two moments is missing": -(right - 2048 * bool(large)) // 2,
        "a float32 master copy is booked; the adapters are float32 themselves": 4 * N,
        "moments are booked for all weights; frozen ones have none": 8 * (n + others),
        **{mistake: moments(sizes) - right for mistake, sizes in taken.items()},
    }  # fmt: skip
