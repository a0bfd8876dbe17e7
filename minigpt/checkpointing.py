"""Gradient checkpointing: forget what a block keeps for backward, and run the block once more when backward needs it.

    from minigpt.checkpointing import checkpoint_blocks

    checkpoint_blocks(model, "full")                       # MiniGPT, transformers' models, either with adapters
    checkpoint_blocks(model, "every", every_n_layers=2)    # another policy takes the place of the one before
    checkpoint_blocks(model, "none")                       # as if nothing had been

A policy changes bytes and time, never numbers: loss and gradients stay bit for bit the same, with dropout too.

    policy       kept from forward to backward                              run again in backward
    none         all that the blocks save                                   nothing
    full         each block's input (B, T, C)                               every block
    reentrant    the same, in torch's older kind: see below                 every block, to its end
    every        the input of one block in every_n_layers; all of the rest  that one block, as transformers does
    sqrt         the input of each segment of about sqrt(L) blocks          every block, a whole segment at a time
    selective    each block's input; outputs of matrix products, attention  norms, activation functions, casts
    offload      each block's input in the CPU's memory                     every block

Sqrt is Chen et al. 2016 (arXiv 1604.06174): L / k inputs stay, and what k blocks save is there at once while a
segment goes backward, least for k = sqrt(L). Selective is torch's ``create_selective_checkpoint_contexts``. Offload is
Unsloth's idea, by saved-tensor hooks around a checkpoint: the input goes to (pinned) memory of the CPU and comes back.
Where the model is on a CPU both copies are made all the same.

Reentrant, a block runs under ``torch.no_grad`` inside one operation, whose output takes a gradient only if its input
does. Over a frozen embedding it does not: nothing in the block is trained, and nothing says so but ``train``, which
refuses. (transformers: call ``model.enable_input_require_grads()``.)

Left out: compiled blocks, several devices, and key-value caches: a second run would fill them twice, so none is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from minigpt.memory.segments import segments
from minigpt.values import check_choice, check_counts

POLICIES = ("none", "full", "reentrant", "every", "sqrt", "selective", "offload")
CACHES = {"past_key_values": None, "layer_past": None, "use_cache": False}  # what a block is given instead of a cache
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm", "bitsandbytes::gemm_4bit")
ATTENTIONS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
KEPT = {
    *PRODUCTS,
    *(f"aten::_scaled_dot_product_{name}" for name in ATTENTIONS),
}  # whose outputs "selective" keeps
HOST = torch.device("cpu")  # where "offload" sends a block's input


def checkpoint_blocks(model: nn.Module, policy: str, *, every_n_layers: int = 2) -> None:
    """Let ``model`` train under ``policy``, one of POLICIES, from here on; "none" undoes it.

    ``every_n_layers`` is what "every" reads. Raises ValueError for a value that is not allowed, a model without one
    list of blocks, and for "sqrt" with blocks of several kinds, which take different arguments.
    """
    check_choice(POLICIES, policy=policy)
    check_counts(every_n_layers=every_n_layers)
    blocks = blocks_of(model)
    kinds = set(getattr(getattr(model, "config", None), "layer_types", None) or ())
    if policy == "sqrt" and len(kinds) > 1:
        raise ValueError(f"policy is 'sqrt'; blocks of one kind can run in a row, and these are {', '.join(kinds)}")
    for block in blocks:
        if isinstance(ours := vars(block).get("forward"), _Segment):
            ours.take_off(block)
    for segment in segments(policy, len(blocks), every_n_layers):
        forwards = [blocks[i].forward for i in segment]
        for i, block in enumerate(blocks[j] for j in segment):
            block.forward = _Segment(policy, [] if i else forwards, vars(block).get("forward"))


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The model's blocks: the one ModuleList that lies in no other. Raises ValueError unless there is just one."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise ValueError(f"model is a {type(model).__name__}, which has {len(outer)} lists of blocks; it must have one")
    return lists[outer[0]]


class _Segment:
    """What stands in the place of the ``forward`` of a block: of a segment's first one, which runs them all, and of the
    others, which pass their input through. Without gradients there is nothing to keep, and the blocks simply run.
    """

    def __init__(self, policy: str, forwards: list[Callable], before: Callable | None) -> None:
        self.policy, self.forwards, self.before = policy, forwards, before

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.forwards:
            return x
        run = self.forwards[0] if len(self.forwards) == 1 else partial(_in_a_row, self.forwards)
        if not torch.is_grad_enabled():
            return run(x, *args, **kwargs)
        kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
        return RUN[self.policy](partial(run, **kwargs), x, *args)

    def take_off(self, block: nn.Module) -> None:
        if self.before is None:
            del block.forward
        else:
            block.forward = self.before


def _in_a_row(forwards: list[Callable], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    for forward in forwards:
        x = forward(x, *args, **kwargs)  # (B, T, C)
        if not isinstance(x, Tensor):
            raise ValueError(f"policy is 'sqrt'; a block must return a tensor, and this returns a {type(x).__name__}")
    return x


def _full(run: Callable, *args: Any) -> Any:
    return checkpoint(run, *args, use_reentrant=False)


def _reentrant(run: Callable, *args: Any) -> Any:
    return checkpoint(run, *args, use_reentrant=True)


def _selective(run: Callable, *args: Any) -> Any:
    return checkpoint(run, *args, use_reentrant=False, context_fn=selective_contexts)


def _offload(run: Callable, *args: Any) -> Any:
    with saved_tensors_hooks(_to_host, _back):  # the block's own saves go to the checkpoint, its input to these
        return checkpoint(run, *args, use_reentrant=False)


RUN = {"full": _full, "reentrant": _reentrant, "every": _full, "sqrt": _full, "selective": _selective,
       "offload": _offload}  # fmt: skip


def selective_contexts():
    """The contexts of a block's first and second run: the second takes what KEPT's operations made in the first."""
    return create_selective_checkpoint_contexts(keep_products)


def keep_products(context, operation, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep what KEPT's operations made, unless they drew random numbers: a second run without that draw would go on
    with other numbers than the first, in every dropout that follows.
    """
    if operation.name() in KEPT and not _argument(operation, "dropout_p", args, kwargs):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _argument(operation, name: str, args: tuple, kwargs: dict) -> Any:
    """The argument of that name, or None for an operation that has none, or has it at its default of 0."""
    names = [argument.name for argument in operation._schema.arguments]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else kwargs.get(name)


def _to_host(x: Tensor) -> tuple[torch.device, Tensor]:
    host = torch.empty_like(x, device=HOST, pin_memory=x.is_cuda)
    return x.device, host.copy_(x, non_blocking=x.is_cuda)  # later work of the same stream waits for it


def _back(packed: tuple[torch.device, Tensor]) -> Tensor:
    device, host = packed
    return host.to(device, non_blocking=True, copy=True)
