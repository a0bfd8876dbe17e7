"""Forward passes on which a student's meter of saved tensors is tried.

saved(saved_bytes, scene)      what ``saved_bytes(run, known)`` gives for one of ``SCENES``, by its name
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe
from minigpt.model import Block, GPTConfig


class Scene(NamedTuple):
    """A forward pass, the module whose parameters are known, and what else was there before."""

    run: Callable
    module: nn.Module
    inputs: tuple[Tensor, ...]


@probe
def saved(saved_bytes: Callable, scene: str):
    run, module, _ = SCENES[scene]()
    known: list[Tensor] = list(module.parameters())
    return by_hand(saved_bytes, run, known, building=True, untouched=False)


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
