"""The bytes that stay between two QLoRA steps on the real libraries: the truth, and the slips people make.

``metered`` runs a step of transformers, peft and bitsandbytes on a llama with random weights, in a process of its own.
"""

from __future__ import annotations

import json
from functools import lru_cache

from minigpt.memory.apart import measuring, run_apart
from minigpt.memory.architecture import Architecture
from minigpt.memory.plan import TrainingPlan

TABLES = 64 + 1024  # bytes: bitsandbytes keeps the 16 codes and the 256 values of the 8-bit map with every matrix
SMALL = 4096  # elements: from here on bitsandbytes' optimizer has 8-bit state


def parts(config: dict) -> tuple[list[tuple[int, int]], int]:
    """The blocks' matrices as (out, in), block after block, and how many parameters the model has besides."""
    architecture = Architecture.of(config)
    matrices = [t.shape for t in architecture.tensors() if t.kind == "linear"]
    return matrices, architecture.parameters - architecture.linear_parameters


def metered(cases: list[tuple[dict, int]]) -> list[dict[str, int]]:
    """For each (config, rank) the bytes by the meter, {"frozen", "trainable", "gradients", "optimizer"}."""
    return [dict(buckets) for buckets in _metered(json.dumps(cases, sort_keys=True))]


@lru_cache(maxsize=8)
def _metered(cases: str) -> list[dict[str, int]]:
    cases = json.loads(cases)
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


def slips(matrices: list[tuple[int, int]], others: int, rank: int) -> dict[str, dict[str, int]]:
    """{bucket: {mistake: bytes too many}}."""
    M, n = len(matrices), sum(out * width for out, width in matrices)
    scales = [-(-out * width // 64) for out, width in matrices]  # of each matrix
    seconds = [-(-count // 256) for count in scales]
    sides = [rank * side for shape in matrices for side in shape]  # elements of each adapter tensor
    N, tensors = sum(sides), len(sides)
    large = [size for size in sides if size >= SMALL]

    def eight(sizes: list[int]) -> int:
        return sum(2 * (size + 4 * -(-size // 256)) for size in sizes)

    right = eight(large) + 8 * (N - sum(large)) + 2048 * bool(large)
    edge = [size for size in sides if size == SMALL]
    pairs = [rank * (out + width) for out, width in matrices]
    by_pairs = eight([size for size in pairs if size >= SMALL]) + 8 * sum(size for size in pairs if size < SMALL)
    frozen = {
        "the scales are float32: double quantization is forgotten": 4 * sum(scales) - sum(scales) - 4 * sum(seconds)
        - (4 + 1024) * M,
        "the scales are float32, without double quantization; yet its offsets or tables are booked": 4 * sum(scales)
        - sum(scales) - 4 * sum(seconds),
        "what is not 4-bit is booked in 16 bits; peft's preparation makes it float32": -2 * others,
        "what is not 4-bit is missing: embedding, norms, head": -4 * others,
        "what is not 4-bit is booked in 4 bits as well": others // 2 - 4 * others,
        "the 8-bit scales are missing: one byte for 64 weights": -sum(scales),
        "the second scales are missing: a float32 for 256 scales": -4 * sum(seconds),
        "the second scales are rounded down; a last group that is not full has a scale too": 4 * sum(
            count // 256 - second for count, second in zip(scales, seconds)),
        "the second scales are taken over all matrices together; each matrix has its own": 4 * (
            -(-sum(scales) // 256) - sum(seconds)),
        "the offsets are missing: a float32 for each matrix": -4 * M,
        "the two tables are missing: 64 and 1,024 bytes with each matrix": -TABLES * M,
        "the table of 1,024 bytes is missing": -1024 * M, "the table of 64 bytes is missing": -64 * M,
        "the two tables are booked once; bitsandbytes keeps them with each matrix": TABLES - TABLES * M,
        "one byte a weight is 8 bits": n - n // 2, "2 bytes a weight: the matrices are not in 4 bits": 2 * n - n // 2,
        "the adapters are booked in it; they are trainable": 4 * N,
    }  # fmt: skip
    counts = {
        "the rank is forgotten": N // rank - N,
        "r * in * out is counted; an adapter is two thin matrices, r * in and out * r": rank * n - N,
        "only A is counted, r * in": -rank * sum(out for out, _ in matrices),
        "only B is counted, out * r": -rank * sum(width for _, width in matrices),
    }
    adapters = {mistake: 4 * extra for mistake, extra in counts.items()}
    return {
        "frozen": frozen,
        "trainable": {"2 bytes an adapter's number; peft keeps adapters in float32": -2 * N, **adapters,
                      "everything that is float32 is booked in it; embeddings, norms and head are frozen": 4 * others},
        "gradients": {"2 bytes a gradient; it has its weight's type, and adapters are float32": -2 * N, **adapters,
                      "gradients are booked for what is float32; embeddings, norms and head are frozen": 4 * others,
                      "gradients are booked for all weights; frozen ones have none": 4 * (n + others)},
        "optimizer": {
            "float32 moments for every tensor: from 4,096 elements on they are 8-bit": 8 * N - right,
            "float32 moments for every tensor, and step counts; from 4,096 elements on they are 8-bit": (
                8 * N + 4 * tensors - right),
            "8-bit moments for every tensor: under 4,096 elements they stay float32": eight(sides) + 2048 - right,
            "2 bytes an element, flat: scales are missing, and small tensors stay float32": 2 * N - right,
            "a tensor of exactly 4,096 elements has 8-bit moments too": 8 * sum(edge) - eight(edge),
            "AdamW's step counts are booked; this optimizer keeps them as plain numbers": 4 * tensors,
            "the scales of the 8-bit moments are missing: a float32 for 256 elements, twice": (
                2 * sum(large) - eight(large)),
            "the scales are counted once; each of the two moments has its own": sum(large) - eight(large) // 2,
            "the two 8-bit maps are missing: 1,024 bytes each, once": -2048 * bool(large),
            "one of the two 8-bit maps is missing": -1024 * bool(large),
            "the two 8-bit maps are booked, and no tensor has 8-bit moments": 2048 * (not large),
            "the 8-bit maps are booked for each tensor; the optimizer has one pair": 2048 * (len(large) - 1),
            "A and B are taken together; each is a tensor of its own": by_pairs
            + 2048 * any(size >= SMALL for size in pairs) - right,
            "one of the two moments is missing": -(right - 2048 * bool(large)) // 2,
            "moments are booked for all weights; frozen ones have none": 8 * (n + others),
            **{mistake: 8 * extra for mistake, extra in counts.items()},
        },
    }  # fmt: skip
