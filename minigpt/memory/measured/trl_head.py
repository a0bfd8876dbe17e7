"""trl's chunked log-probabilities without a GPU: trl's own code, with its two Triton kernels done by torch.

Every trainer of trl 1.15 takes ``ChunkedLogProbFunction`` (trl/kernels/chunked_logprob.py) for its log-probabilities.
Its Python makes all tensors; the kernels only work on them in place, and need Triton and a GPU. Here that file is
loaded with an empty Triton, and what the kernels compute is written out in torch, where the meter does not look. So

    the tensors that are asked for    are those of trl on CUDA, as its source has them
    the numbers in them               are right, to rounding

which no stand-in for the whole function would be. What it cannot show is what CUDA adds: whole blocks, and cuBLAS's
workspace. On CUDA 16-bit products are added to float32 sums in one call; on a CPU trl would cast both factors first, so
that sum is done out of sight, too.

Left out: capped logits, and a gradient of the entropy.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def trl_head() -> Iterator[None]:
    """Inside, trl's trainers compute their log-probabilities on a CPU. With a real Triton nothing is replaced."""
    from trl.trainer import utils

    name = "_ChunkedLogProbFunction"
    before = getattr(utils, name)
    setattr(utils, name, before or chunked_log_prob())
    try:
        yield
    finally:
        setattr(utils, name, before)


@cache
def chunked_log_prob() -> type[torch.autograd.Function]:
    """trl's function, on kernels of torch."""
    import trl

    empty = ModuleType("triton")
    language = ModuleType("triton.language")
    vars(empty).update(language=language, jit=lambda kernel: kernel, cdiv=lambda a, b: -(-a // b))
    vars(language).update(constexpr=int)
    names = {"triton": empty, "triton.language": language}
    before = {name: sys.modules.get(name) for name in names}
    spec = spec_from_file_location(
        "trl.kernels.chunked_logprob", Path(trl.__file__).parent / "kernels/chunked_logprob.py"
    )
    assert spec is not None and spec.loader is not None  # trl has that file
    module = module_from_spec(spec)
    sys.modules.update(names)
    try:
        spec.loader.exec_module(module)
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old
    vars(module).update(
        _forward_kernel=_Kernel(fold), _backward_kernel=_Kernel(unfold), _addmm_fp32=_Kernel(add_product)[()]
    )
    return module.ChunkedLogProbFunction


class _Kernel:
    """``kernel[grid](...)``, as one launches Triton's; out of every mode's sight. On fake tensors it does nothing."""

    def __init__(self, run) -> None:
        self.run = run

    def __getitem__(self, grid):
        def launch(*arguments, **options) -> None:
            if not isinstance(arguments[0], FakeTensor):
                with _disable_current_modes(), torch.no_grad():
                    self.run(*arguments, **options)

        return launch


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total`` += a @ b, in float32."""
    total.addmm_(a.float(), b.float())


def fold(
    tile: Tensor, stride: int, targets: Tensor, largest: Tensor, total: Tensor, weighted: Tensor, squares: Tensor,
    logits: Tensor, before: Tensor, target: Tensor, start: int, columns: int, **options,
) -> None:  # fmt: skip
    """_forward_kernel: one tile of logits (n, columns), from word ``start`` on, into each token's running sums (n,)."""
    z = _logits(tile, options)
    local = targets - start  # (n,)
    logits += z.sum(-1)
    earlier = torch.arange(columns) < local[:, None]
    torch.maximum(before, z.masked_fill(~earlier, -torch.inf).amax(-1), out=before)
    highest = torch.maximum(largest, z.amax(-1))
    shrunk, e = (largest - highest).exp(), (z - highest[:, None]).exp()
    total.mul_(shrunk).add_(e.sum(-1))
    weighted.mul_(shrunk).add_((e * z).sum(-1))
    squares.mul_(shrunk.square()).add_(e.square().sum(-1))
    largest.copy_(highest)
    here = (local >= 0) & (local < columns)
    target[here] = z[here, local[here]]


def unfold(
    tile: Tensor, stride: int, targets: Tensor, log_z: Tensor, entropy: Tensor, gradient: Tensor, _: Tensor,
    start: int, columns: int, **options,
) -> None:  # fmt: skip
    """_backward_kernel: the gradient of the log-probabilities, written over the tile of logits that it belongs to."""
    if options["HAS_ENTROPY_GRAD"]:
        raise ValueError("a gradient of the entropy is not covered here")
    p = (_logits(tile, options) - log_z[:, None]).exp()
    hit = torch.arange(start, start + columns) == targets[:, None]
    tile.copy_((hit.float() - p) * gradient[:, None] * options["inv_t"] * options["logit_scale"])


def _logits(tile: Tensor, options: dict) -> Tensor:
    if options["HAS_SOFTCAP"]:
        raise ValueError("final_logit_softcapping is set; capped logits are not covered here")
    return tile.float() * options["logit_scale"] * options["inv_t"]
