"""What lab 12 runs with real ranks: a student's functions in two processes, over gloo on this machine.

    together({"step": zero1_step}, "zero1", config, steps=5)      rank by rank: losses, and the bytes that it holds
    alone(config, steps=5)                                        the losses of one process
    tried(lambda: ...)                                            (what it gives, ""), or (None, why it failed)

No truth is in here: what comes out is for the student's eyes, and no points depend on it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minigpt.data import random_windows
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.sending import names_of, source_of
from minigpt.memory.measured.together import run_ranks
from minigpt.memory.units import readable
from minigpt.model import GPT, MLP, Attention, GPTConfig

RANKS, BATCH, SEQ_LEN, LR = 2, 4, 64, 1e-3
HERE = "minigpt.checks.sharding.running"


def together(
    answers: dict[str, Callable], kind: str, config: GPTConfig, steps: int, *, patience: float = 20
) -> list[dict]:
    """What each of two ranks says, in order; ``answers`` are "step" for the ``kind`` "zero1", "layer" for "layers",
    "wrap" for "wrapped".

    Raises ValueError where a rank's code does, RuntimeError or TimeoutError where a rank fails otherwise, or comes to
    no collective for ``patience`` seconds; no rank is left running.
    """
    given = {"source": source_of(answers.values()), "kind": kind, "config": config, "steps": steps,
             "names": {what: answer.__name__ for what, answer in answers.items()}}  # fmt: skip
    return run_ranks(Call(f"{HERE}:one_rank", given), RANKS, timeout=120, patience=patience)


def tried(run: Callable[[], list[dict]]) -> tuple[list[dict] | None, str]:
    """What ``run`` gives; or one sentence: which rank failed and why, or that this machine has no ranks."""
    try:
        return run(), ""
    except (ValueError, RuntimeError, TimeoutError, OSError) as error:
        said = str(error).split("\n")[0].split("; it printed")[0]
        return None, f"The ranks have ended, and none is left running: {said}"


def alone(config: GPTConfig, steps: int) -> list[float]:
    """The losses of one process, with the batches of both ranks, one after the other."""
    model, losses = model_of(config), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, foreach=False)
    for i in range(steps):
        optimizer.zero_grad()
        parts = [model(*batch_of(config, i, rank)) / RANKS for rank in range(RANKS)]
        for part in parts:
            part.backward()
        losses.append(sum(part.item() for part in parts))
        optimizer.step()
    return losses


def model_of(config: GPTConfig) -> GPT:
    torch.manual_seed(0)
    return GPT(config)


def batch_of(config: GPTConfig, i: int, rank: int) -> tuple[Tensor, Tensor]:
    """Windows of one file of Python's own: all of its library takes longer to read than the ranks to train."""
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)
    return random_windows(text, BATCH, min(SEQ_LEN, config.context))[RANKS * i + rank]


# ---------------------------------------------------------------- in a rank's process


class Gloo:
    """The group that a student's function is handed: this rank, over torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def all_gather(self, shard: Tensor) -> Tensor:
        whole = shard.new_empty(self.ranks * len(shard))
        dist.all_gather_single(whole, shard.detach())
        return whole

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        shard = whole.new_empty(len(whole) // self.ranks)
        dist.reduce_scatter_single(shard, whole.detach())
        return shard


def one_rank(source: str, names: dict, kind: str, config: GPTConfig, steps: int, rank: int, meeting: Meeting) -> dict:
    defined = names_of(source)
    answers = {what: defined[name] for what, name in names.items()}
    with meeting.joined("it", rank, RANKS):
        return KINDS[kind](config, steps, rank, Gloo(), **answers)


def zero1(config: GPTConfig, steps: int, rank: int, group: Gloo, step: Callable) -> dict:
    model, losses = model_of(config), []
    state: dict = {}
    held: dict[str, int] = {}
    for i in range(steps):
        loss = model(*batch_of(config, i, rank))
        loss.backward()
        losses.append(mean_of(loss))
        gradients = [p.grad for p in model.parameters()]
        held = {"weights": nbytes(model.parameters()), "gradients": nbytes(gradients)}
        gradients.clear()
        step(list(model.parameters()), state, group, update)
    return {
        "losses": losses,
        **held,
        "optimizer": nbytes(tensors_in(state)),
        "left": nbytes(p.grad for p in model.parameters()),
    }


def layers(config: GPTConfig, steps: int, rank: int, group: Gloo, layer) -> dict:
    """Every matrix of the blocks is a shard; the rest is whole, its gradients averaged."""
    model = model_of(config)
    for module in [module for module in model.modules() if isinstance(module, (Attention, MLP))]:
        for name, linear in list(module.named_children()):
            if isinstance(linear, nn.Linear):
                setattr(module, name, Sharded(linear, layer, group))
    shards = [module.shard for module in model.modules() if isinstance(module, Sharded)]
    whole = [p for p in model.parameters() if not any(p is shard for shard in shards)]
    said = trained(model, config, steps, rank, averaged=whole)
    return {**said, "shards": nbytes(shards), "rest": nbytes(whole)}


def wrapped(config: GPTConfig, steps: int, rank: int, group: Gloo, wrap: Callable) -> dict:
    from torch.distributed.fsdp import fully_shard

    model = wrap(model_of(config), fully_shard, True)
    said = trained(model, config, steps, rank)
    return {**said, "gradients": nbytes(p.grad for p in model.parameters())}


def trained(model: nn.Module, config: GPTConfig, steps: int, rank: int, averaged: Iterable[nn.Parameter] = ()) -> dict:
    """Losses, and the bytes held at the end, of a training by torch's AdamW; gradients of ``averaged`` are the mean."""
    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, foreach=False)
    for i in range(steps):
        optimizer.zero_grad()
        loss = model(*batch_of(config, i, rank))
        loss.backward()
        losses.append(mean_of(loss))
        for p in averaged:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
    return {"losses": losses, "weights": nbytes(model.parameters()), "optimizer": nbytes(tensors_in(optimizer.state))}


KINDS: dict[str, Callable[..., dict]] = {"zero1": zero1, "layers": layers, "wrapped": wrapped}


class Sharded(nn.Module):
    """A linear layer of which this rank has a shard."""

    def __init__(self, linear: nn.Linear, layer, group: Gloo) -> None:
        super().__init__()
        weight = linear.weight.detach().flatten()
        length = -(-len(weight) // group.ranks)
        padded = torch.cat([weight, weight.new_zeros(group.ranks * length - len(weight))])
        self.shard = nn.Parameter(padded[group.rank * length : (group.rank + 1) * length].clone())
        self.layer, self.shape, self.group = layer, tuple(linear.weight.shape), group

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.apply(x, self.shard, self.shape, self.group)


def update(w: Tensor, g: Tensor, state: dict) -> None:
    """A step of torch's AdamW on ``w``, in place; its state stays in ``state``."""
    parameter = nn.Parameter(w)
    parameter.grad = g
    optimizer = torch.optim.AdamW([parameter], lr=LR, foreach=False)
    optimizer.state[parameter] = state if state else {}
    optimizer.step()
    state.update(optimizer.state[parameter])


def mean_of(loss: Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


def nbytes(tensors) -> int:
    """Bytes of the memory behind them, each piece once; of a DTensor, this rank's part."""
    parts = [getattr(t, "_local_tensor", t).untyped_storage() for t in tensors if isinstance(t, Tensor)]
    return sum({storage._cdata: storage.nbytes() for storage in parts}.values())


def tensors_in(state) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def show(ranks: list[dict]) -> None:
    """A line for each rank."""
    for rank, told in enumerate(ranks):
        print(f"rank {rank}:", ", ".join(f"{name} {readable(n)}" for name, n in told.items() if name != "losses"))
