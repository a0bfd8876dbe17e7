"""Judging a saved-tensor meter that a student wrote; the truth is the course's MemoryMeter on the same forward pass.

    saves(saved_bytes, scene)      ``saved_bytes(run, known)`` for a scene of ``SCENES``, by name

A mistake is named by what it would give: a list of all that autograd hands over, counted in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from minigpt.checks.activations.asking import MemoryMeter
from minigpt.checks.calling import explained
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong
from minigpt.model import Block, GPTConfig

knows(__name__)
HINTS = {
    "unpack_hook expected to be a Tensor": "What the first hook returns is handed to the second, in backward, and that "
    "has to return the tensor",
    "missing 1 required positional argument": "saved_tensors_hooks takes two functions",
    "must match the size of tensor": "`tensor in known` compares element by element; compare the storages' addresses",
    "Boolean value of Tensor": "`tensor in known` compares element by element; compare the storages' addresses",
}


class Scene(NamedTuple):
    """A forward pass, the module whose parameters are known, and what else was there before."""

    run: Callable
    module: nn.Module
    inputs: tuple[Tensor, ...]


def saves(saved_bytes: Callable, scene: str) -> None:
    run, module, inputs = SCENES[scene]()
    known: list[Tensor] = list(module.parameters())
    try:
        mine = by_hand(saved_bytes, run, known, building=True, untouched=False)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__
    with MemoryMeter(module, inputs=inputs) as meter:
        run()
    integer(mine, meter.result().ledger.activations, scene, wrong=mistakes(run, known), unit="bytes")


def mistakes(run: Callable, known: list[Tensor]) -> Hints:
    """What other ways of counting would give."""
    handed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        handed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    weights = {_storage(tensor) for tensor in known}
    own = [tensor for tensor in handed if _storage(tensor) not in weights]
    all_of = {_storage(tensor): tensor for tensor in handed}.values()
    last = {_storage(tensor): tensor for tensor in own}
    first = {_storage(tensor): tensor for tensor in reversed(own)}
    by_view = {tensor.data_ptr(): tensor for tensor in own}.values()
    return {
        "handed-over": ("everything that is handed over is counted, as often as it is: parameters, and storages that "
                        "are handed over more than once", sum(tensor.nbytes for tensor in handed)),
        "parameters": ("the parameters are counted; they were there before",
                       sum(_bytes(all_of))),
        "each-time": ("a storage that is handed over twice is counted twice", sum(tensor.nbytes for tensor in own)),
        "storage-each-time": ("a storage counts once for each tensor that looks at it",
                              sum(tensor.untyped_storage().nbytes() for tensor in own)),
        "view-size": ("a view is counted with its own size; it keeps its whole storage alive",
                      sum(tensor.nbytes for tensor in last.values())),
        "first-view-size": ("a view is counted with its own size; it keeps its whole storage alive",
                            sum(tensor.nbytes for tensor in first.values())),
        "view-address": ("two views that begin in two places of one storage are counted as two; ask for the address "
                         "of the storage", sum(tensor.untyped_storage().nbytes() for tensor in by_view)),
        "view-address-and-size": ("views are counted, by their own address and size; it is storages that stay alive",
                                  sum(tensor.nbytes for tensor in by_view)),
        "four-bytes": ("4 bytes are counted for every number; not all are float32: .nbytes, or .element_size()",
                       4 * sum(tensor.numel() for tensor in first.values())),
        "subtracted": ("the bytes of all parameters are subtracted; not each of them is saved, so leave out those that "
                       "are", sum(_bytes(all_of)) - sum({_storage(t): t.nbytes for t in known}.values())),
        "numbers": ("numbers are counted, and not bytes", sum(tensor.numel() for tensor in first.values())),
    }  # fmt: skip


def _bytes(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# ---------------------------------------------------------------- scenes


def _two_products() -> Scene:
    pair, x = nn.ModuleList([nn.Linear(24, 40, bias=False), nn.Linear(24, 56, bias=False)]), _input(30, 24)
    return Scene(lambda: F.gelu(pair[0](x)).sum() + pair[1](x).sum(), pair, (x,))


def _block() -> Scene:
    block, x = Block(GPTConfig(n_layer=1, n_embd=48, n_head=3, context=20, vocab_size=20)), _input(2, 20, 48)
    return Scene(lambda: block(x), block, (x,))


def _sixteen_bits() -> Scene:
    mlp, x = nn.Sequential(nn.Linear(16, 52), nn.SiLU(), nn.Linear(52, 16)).bfloat16(), _input(21, 16).bfloat16()
    return Scene(lambda: mlp(x).float().square().mean(), mlp, (x,))


def _slices() -> Scene:
    fused, x = nn.Linear(20, 90, bias=False), _input(33, 20)

    def run():
        q, k, v = fused(x).split((44, 26, 20), dim=1)  # three views of one storage
        return q.sin().sum() + q.cos().sum() + k.sin().sum() + (v + 1).sum()

    return Scene(run, fused, (x,))


def _one_slice() -> Scene:
    scale, x = nn.Linear(10, 10, bias=False), _input(40, 10)

    def run():
        return scale(x).repeat(1, 7)[:, 3:11].tanh().sum() + (x * 2)[5:9].sin().sum()

    return Scene(run, scale, (x,))


def _with_backward() -> Scene:
    scale, x = nn.Linear(18, 34), _input(27, 18)
    return Scene(lambda: F.gelu(scale(x)).sum().backward(), scale, (x,))


def _input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


SCENES: dict[str, Callable[[], Scene]] = {
    "two products of one input": _two_products, "a block of MiniGPT": _block, "an MLP in bfloat16": _sixteen_bits,
    "three slices of one tensor": _slices, "a slice, all alone": _one_slice, "forward and backward": _with_backward,
}  # fmt: skip
