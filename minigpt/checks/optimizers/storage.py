"""The bytes that optimizers keep: truths from bitsandbytes' own state and from the meter, and the slips people make.

    state(answer, sizes)                                   ``answer(sizes)``: 8-bit AdamW's state, by bitsandbytes
    between_steps(answer, (model, optimizer, precision), only)
                                                           ``answer(shapes, optimizer, precision)``, by the meter

Left out: Adafactor, whose bytes the meter reads while a scalar is replaced, and the regimes with a master copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod

import torch
from torch import nn

from minigpt.checks.closing import knows, remembered
from minigpt.checks.comparing import buckets, integer
from minigpt.checks.naming import Hints
from minigpt.checks.optimizers.asking import OPTIMIZERS, ask
from minigpt.checks.optimizers.moments import moment_slips, moments
from minigpt.memory.families import Architecture
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import PRECISIONS, TrainingPlan
from minigpt.memory.predicted.static import predict_static
from minigpt.model import GPTConfig

knows(__name__, *OPTIMIZERS, predict_static)


def state(answer: Callable, sizes: list[int]) -> None:
    mine = ask(answer, sizes)
    what = f"tensors of {' and '.join(f'{size:,}' for size in sizes)} elements"
    integer(mine, kept(sizes), what, slips=state_slips(sizes), unit="bytes")


def state_slips(sizes: list[int]) -> list[Hints]:
    """Bytes too many."""
    counts = {"step-counts": ("step counts are booked; this optimizer keeps them as plain numbers", 4 * len(sizes))}
    return [_eight_bit_slips(sizes) | counts]


def kept(sizes: list[int]) -> int:
    """Bytes of the storages in bitsandbytes' state after one step."""
    from bitsandbytes.optim import AdamW8bit

    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    optimizer = AdamW8bit(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [x for found in optimizer.state.values() for x in found.values() if isinstance(x, torch.Tensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def between_steps(answer: Callable, case: tuple[str | GPTConfig, str, str], only: Iterable[str]) -> None:
    model, optimizer, precision = case
    shapes = shapes_of(model)
    mine = ask(answer, shapes, optimizer, precision)
    name = model if isinstance(model, str) else f"{model.n_layer} layers, {model.n_embd} wide"
    what = f"{name}, {optimizer}, {precision}"
    buckets(mine, held(*case), what, slips=static_slips(shapes, optimizer, precision), only=only)


def shapes_of(model) -> list[tuple[int, ...]]:
    """Of all tensors that are trained; a tied head is the embedding."""
    return [tuple(tensor.shape) for tensor in Architecture.of(model).tensors()]


@remembered
def held(model: str | GPTConfig, optimizer: str, precision: str) -> dict[str, int]:
    """Weights, gradients and optimizer state: by the meter for a MiniGPT, by ``predict_static`` for a model by name."""
    plan = TrainingPlan(batch=1, seq_len=8, optimizer=optimizer, precision=precision, optimizer_loop="single")
    ledger = predict_static(model, plan) if isinstance(model, str) else measure(model, plan, "cpu").ledger
    found = {bucket: getattr(ledger, bucket) for bucket in ("weights", "gradients", "optimizer")}
    return found | {"weights": found["weights"] - sum(Architecture.of(model).buffers())}  # rotary: no parameters


def static_slips(shapes: list[tuple[int, ...]], optimizer: str, precision: str) -> dict[str, list[Hints]]:
    """{bucket: bytes too many}."""
    sizes = [prod(shape) for shape in shapes]
    n, tensors, half = sum(sizes), len(sizes), PRECISIONS[precision].weights == 2
    vectors = (2 if half else 4) * sum(prod(shape) for shape in shapes if len(shape) == 1)
    no_vectors = {"no-norms": ("what has one dimension is missing, such as norms", -vectors)}
    if half:
        weights: Hints = {"float32-weights": ("these are float32 weights; in pure bf16 they have 2 bytes", 2 * n)}
        gradients: Hints = {"float32-gradients": (
            "these are float32 gradients; a gradient has its weight's dtype", 2 * n)}  # fmt: skip
    else:
        weights = {"two-byte-weights": ("2 bytes per weight; float32 weights have 4, under autocast too", -2 * n),
                   "copy-of-weights": ("a 16-bit copy is booked; autocast's casts do not stay", 2 * n)}  # fmt: skip
        gradients = {"two-byte-gradients": ("2 bytes per gradient; it has its weight's dtype, float32", -2 * n)}
    own = {
        "adamw": partial(_adamw_slips, n, precision), "adamw8bit": partial(_eight_bit_slips, sizes),
        "lion": partial(_lion_slips, n), "sgd_momentum": partial(_momentum_slips, n, precision),
    }[optimizer]()  # fmt: skip
    counts: Hints = {"step-counts": ("step counts are booked; only torch's AdamW keeps them in tensors", 4 * tensors)}
    if optimizer == "adamw":
        counts = {"no-step-counts": ("AdamW's step counts are missing: a float32 for each tensor", -4 * tensors),
                  "one-step-count": ("one step count is booked; each tensor has its own", 4 - 4 * tensors)}  # fmt: skip
    master = {"master-copy": ("a float32 master copy is booked; none of these precisions has one", 4 * n)}
    return {"weights": [weights | master, no_vectors], "gradients": [gradients, no_vectors],
            "optimizer": [own | (master if not half or optimizer == "adamw8bit" else {}), counts]}  # fmt: skip


def _eight_bit_slips(sizes: list[int]) -> Hints:
    together = moments([sum(sizes)]) - moments(sizes)
    return {**moment_slips(sizes), "together": ("all tensors are taken as one; each is a tensor of its own", together)}


def _adamw_slips(n: int, precision: str) -> Hints:
    half = PRECISIONS[precision].weights == 2
    return {
        "one-moment": ("one of the two moments is missing", -(2 if half else 4) * n),
        "float32-moments": ("8 bytes per parameter; torch's AdamW keeps m and v in the weight's dtype", 4 * n * half),
        "two-byte-moments": ("m and v have 2 bytes per number; under autocast weights are float32, and so are they",
                             -4 * n * (precision == "bf16-autocast")),
    }  # fmt: skip


def _lion_slips(n: int) -> Hints:
    return {
        "weights-dtype": ("2 bytes per element: bitsandbytes' 32-bit state is float32, whatever the weight is", -2 * n),
        "two-moments": ("8 bytes per element: Lion keeps m alone", 4 * n),
    }


def _momentum_slips(n: int, precision: str) -> Hints:
    half = PRECISIONS[precision].weights == 2
    return {
        "two-moments": ("two means are booked; momentum is one", (2 if half else 4) * n),
        "float32-momentum": ("4 bytes per element; torch's SGD keeps its mean in the weight's dtype", 2 * n * half),
        "two-byte-momentum": ("2 bytes per element; under autocast weights are float32, and so is the mean",
                              -2 * n * (precision == "bf16-autocast")),
    }  # fmt: skip
