"""The bytes that stay between two steps of AdamW: the meter's truth, and the slips people make.

in_precision(answer, (what, model), precision)      ``answer(parameters, tensors, precision)``
in_float32(answer, (what, config), only)            ``answer(config)`` of a MiniGPT
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import buckets
from minigpt.checks.counting.parameters import count_slips, counted, measured, with_type
from minigpt.checks.naming import Hints, times
from minigpt.memory.families import Architecture
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPTConfig

knows(__name__)


def in_precision(answer: Callable, case: tuple[str, object], precision: str) -> None:
    what, model = case
    size = counted(model), len(Architecture.of(with_type(model)).tensors()), precision
    mine = by_hand(answer, *size)
    buckets(mine, _held(model, precision), f"{what} in {precision}", slips=precision_slips(*size))


def in_float32(answer: Callable, case: tuple[str, GPTConfig], only: Iterable[str] = ()) -> None:
    what, config = case
    mine = by_hand(answer, config)
    buckets(mine, _held(config, "fp32"), what, slips=float32_slips(config), only=only)


def _held(model, precision: str) -> dict[str, int]:
    reading = measured(model, precision)
    ledger = reading.ledger
    return dict(weights=reading.trainable, gradients=ledger.gradients, optimizer=ledger.optimizer)


def precision_slips(parameters: int, tensors: int, precision: str) -> dict[str, list[Hints]]:
    """{bucket: bytes too many} of a model with so many parameters and tensors, in pure bf16 or under autocast."""
    n = parameters
    step_counts = {
        "no-step-counts": ("AdamW's step count is missing: a float32 for each tensor", -4 * tensors),
        "one-step-count": ("AdamW's step count is booked once, but each tensor has its own", 4 - 4 * tensors),
        "two-byte-step-counts": ("AdamW's step count is booked in 2 bytes; it is a float32 in every precision",
                                 -2 * tensors),
        "eight-byte-step-counts": ("AdamW's step count is booked in 8 bytes; it is a float32", 4 * tensors),
    }  # fmt: skip
    if PRECISIONS[precision].weights == 2:
        return {
            "weights": [{"float32-weights": ("these are float32 weights, but in pure bf16 the weights are bf16", 2 * n),
                         "master-copy": ("a float32 master copy is booked, and pure bf16 has none", 4 * n)}],
            "gradients": [{"float32-gradients": (
                "these are float32 gradients, but a gradient has its weight's dtype", 2 * n)}],
            "optimizer": [step_counts, {
                "one-moment": ("one of AdamW's two moments is missing", -2 * n),
                "float32-moments": (
                    "8 bytes per parameter are booked: each moment has its weight's dtype, which is bf16 here, and "
                    "there is no master copy beside them", 4 * n),
                "master-copy": ("a float32 master copy is booked beside float32 moments; pure bf16 has neither", 8 * n),
            }],
        }  # fmt: skip
    master = ("a master copy is booked, but under autocast the weights are the float32 copy", 4 * n)
    return {
        "weights": [{
            "two-byte-weights": ("these are 2-byte weights, but autocast leaves the weights in float32", -2 * n),
            "copy-of-weights": (
                "a bf16 copy is booked beside the weights; autocast's casts live only while they are used", 2 * n),
            "master-copy": master,
        }],
        "gradients": [{
            "two-byte-gradients": (
                "these are 2-byte gradients, but autocast leaves the weights in float32, and so their gradients",
                -2 * n),
            "copy-of-gradients": ("a bf16 copy of the gradients is booked, and there is none", 2 * n),
        }],
        "optimizer": [step_counts, {
            "one-moment": (
                "4 bytes per parameter are booked: AdamW has two moments, and each has its weight's dtype, float32",
                -4 * n),
            "master-copy": master,
        }],
    }  # fmt: skip


def float32_slips(config: GPTConfig) -> dict[str, list[Hints]]:
    """{bucket: bytes too many} of a MiniGPT in float32."""
    architecture = Architecture.of(config)
    n, tensors, L = architecture.parameters, len(architecture.tensors()), config.n_layer
    counts = count_slips(config)
    step_counts = {
        "no-step-counts": ("AdamW's step counts are missing: a float32 for each tensor", -4 * tensors),
        "one-step-count": (
            "one step count is booked for the whole model, and each tensor has its own", 4 - 4 * tensors),
        "eight-byte-step-counts": ("a step count is booked in 8 bytes; it is a float32", 4 * tensors),
        "nanos-step-counts": ("these are nano's step counts; each layer has tensors of its own", 32 * (4 - L)),
        "heads-step-count": ("the tied head is counted as a tensor with a step count of its own", 4),
        "last-norms-step-count": ("the last norm has a step count too", -4),
        "one-norms-step-count": ("one of each block's two norms has no step count in your sum", -4 * L),
        "norms-step-counts": ("the two norms of a block have a step count each", -8 * L),
    }  # fmt: skip
    moments = {
        "one-moment": ("one of the two moments is missing", -4 * n),
        "third-moment": ("a third number per parameter is booked: float32 training has no master copy", 4 * n),
    }
    two_bytes = {"two-byte-weights": ("2 bytes per weight: that is a 16-bit model, and this one is float32", -2 * n)}
    two_bytes_too = {"two-byte-gradients": ("2 bytes per gradient; it has its weight's dtype, float32", -2 * n)}
    return {
        "weights": [*times(counts, 4), two_bytes], "gradients": [*times(counts, 4), two_bytes_too],
        "optimizer": [step_counts, moments, *times(counts, 8)],
    }  # fmt: skip
