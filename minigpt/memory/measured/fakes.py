"""Fake tensors: shapes without values, so that a step of any size is measured anywhere.

A model is built on the meta device, outside the fake mode, because libraries move, cast and compute with their weights
while they build, which fake parameters do not survive. Then every tensor of it is replaced by a fake CPU one.

transformers looks at values in a few places, and does something else where it knows that it sees fake tensors. It is
told here what it would have found: whether a batch is padded or packed, and that no layer is dropped. Two operations of
torch are told what their kernels do: experts' products of any dtype, and LayerNorm's statistics in 16 bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.memory.collector import at_rest
from minigpt.memory.plan import TrainingPlan

STATE = ("absmax", "code", "offset")  # the tensors of bitsandbytes' record of a 4-bit weight


class PlainFakeTensorMode(FakeTensorMode):
    """Without what torch wraps around each operation against its compiler, which is not used here."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.dispatch(func, types, args, kwargs or {})


@contextlib.contextmanager
def fake_tensors(plan: TrainingPlan):
    """The mode, with transformers told what it cannot see. Raises ValueError for a model that reads other values."""
    with at_rest():
        from transformers import masking_utils

    # What "all?" is answered with: of a mask, whether there is no padding; of positions, whether each follows the last.
    whole, consecutive = plan.sequences != "padded", plan.sequences != "packed"
    tracing, fast_all, every = masking_utils.is_tracing, masking_utils.fast_all, torch.all
    rand, grouped_mm, plain_layer_norm = torch.rand, F.grouped_mm, torch._refs.native_layer_norm

    def all_true(tensor, *rest, **options):
        found = every(tensor, *rest, **options)  # its tensor is made, as on values
        if tensor.dtype != torch.bool or tensor.ndim > 2 or rest or options:
            return found
        return whole if tensor.ndim == 2 else consecutive

    def fast_all_true(mask):
        fast_all(mask)
        return whole

    def rand_kept(*size, **options):  # what a layer drop is drawn from: at 1, no layer is dropped
        return torch.tensor(1.0) if size == ([],) else rand(*size, **options)

    def any_grouped_mm(input, weight, *, offs):  # torch's shapes are for bfloat16 only, its kernels are not
        if weight.dtype == torch.bfloat16:
            return grouped_mm(input, weight, offs=offs)
        return _GroupedProduct.apply(input, weight, offs)

    def layer_norm(input, shape, weight, *rest):  # a CPU's: what weights in float32 norm has statistics in float32
        out, *statistics = plain_layer_norm(input, shape, weight, *rest)
        return out, *(made if weight is None else made.to(weight.dtype) for made in statistics)

    answers: list[tuple[object, str, Callable[..., object]]] = [
        (masking_utils, "is_tracing", lambda tensor=None: tracing()),
        (masking_utils, "fast_all", fast_all_true),
        (FakeTensor, "all", all_true),
        (torch, "all", all_true),
        (torch, "rand", rand_kept),
        (F, "grouped_mm", any_grouped_mm),
        (torch._refs, "native_layer_norm", layer_norm),
    ]
    try:
        with PlainFakeTensorMode(), contextlib.ExitStack() as told:
            for place, name, answer in answers:
                told.enter_context(mock.patch.object(place, name, answer))
            yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        text = f"this model reads values of tensors ({error}) and fake tensors have none: allowed: cpu, cuda"
        raise ValueError(f"device is 'fake'; {text}") from error


def make_fake(model: nn.Module) -> nn.Module:
    """A fake CPU tensor in the place of every parameter, buffer and scale; what is shared stays shared."""
    made: dict[int, torch.Tensor] = {}

    def fake(old: torch.Tensor) -> torch.Tensor:
        if id(old) not in made:
            new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="cpu")
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, old.requires_grad)
                _copy_scales(old, new, fake)
            made[id(old)] = new
            kept.append(old)  # so that no other tensor gets its id
        return made[id(old)]

    kept: list[torch.Tensor] = []
    for module in model.modules():
        places: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for tensors in places:
            for name, old in list(tensors.items()):
                if isinstance(old, torch.Tensor) and not isinstance(old, FakeTensor):
                    tensors[name] = fake(old)
    return model


Params4bit = type("Params4bit", (FakeTensor,), {})  # peft asks for the name of a weight's class


def _copy_scales(old: nn.Parameter, new: nn.Parameter, fake) -> None:
    """What bitsandbytes keeps beside a weight."""
    if (scales := getattr(old, "SCB", None)) is not None:
        vars(new).update(CB=new.data, SCB=fake(scales))
    state = getattr(old, "quant_state", None)
    if state is None:
        return
    new.__class__ = Params4bit
    vars(new).update(quant_state=state)
    for record in (state, state.state2):
        for name in STATE:
            if isinstance(getattr(record, name, None), torch.Tensor):
                setattr(record, name, fake(getattr(record, name)))


class _GroupedProduct(torch.autograd.Function):
    """Experts' products: rows (S, K) in groups that end at ``offs``, each with a weight (E, K, N) of its own."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        of_rows, of_weight, _ = ctx.needs_input_grad  # each takes the other, as in torch's own
        ctx.save_for_backward(rows if of_weight else None, weight if of_rows else None, offs)
        ctx.shapes = rows.shape, weight.shape
        return rows.new_empty(rows.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        made = [gradient.new_empty(shape) if of else None for shape, of in zip(ctx.shapes, ctx.needs_input_grad)]
        return *made, None


class AllTrue(TorchDispatchMode):
    """On fake tensors, picking by a mask picks everything: a batch without a label that is left out."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.index.Tensor and isinstance(args[0], FakeTensor):
            mask = args[1][0]
            if mask.dtype == torch.bool:
                return args[0].new_empty((mask.numel(), *args[0].shape[mask.ndim :]))
        return func(*args, **(kwargs or {}))
