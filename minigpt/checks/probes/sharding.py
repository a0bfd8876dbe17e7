"""Several ranks in one process: collectives whose results are known once every rank has asked for them.

Each rank's code runs alone. In a collective that the others have not come to it is stopped, and when all have, it runs
again from its beginning, with the result at hand. So nothing is started and nothing waits, and ranks that do not come
to the same collectives are found out, where real ones would wait for ever.

stepped(step, weights, gradients, states)     a step of ``step(parameters, state, group, adam)`` by each rank
passed(layer, shape, ranks)                   forward and backward of an autograd.Function by each rank
wrapped(wrap, config, reshard)                what ``wrap(model, fully_shard, reshard)`` asks of fully_shard
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from minigpt.checks.calling import name_of
from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import show
from minigpt.checks.probes import probe
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

LR, BETAS, EPS, DECAY = 0.1, (0.9, 0.99), 0.05, 0.1  # so large an eps that a gradient's scale shows in the update


class Waiting(BaseException):
    """The others have not come to this collective yet. No Exception, so that an answer's ``except`` lets it pass."""


class Group:
    """One of ``ranks`` ranks. ``done`` has the results of its first collectives, and ``_asked`` the next."""

    def __init__(self, rank: int, ranks: int, done: list[Tensor]) -> None:
        self.rank, self.ranks = rank, ranks
        self._done, self._calls = done, list[str]()
        self._asked: tuple[str, Tensor] = "", torch.empty(0)
        self._given: list[tuple[str, StorageWeakRef]] = []

    def all_gather(self, shard: Tensor) -> Tensor:
        return self._collective("all_gather", shard)

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        check_tensor("reduce_scatter", whole)
        if whole.numel() % self.ranks:
            raise Wrong("not-padded", f"reduce_scatter is given {whole.numel()} numbers, which {self.ranks} ranks "
                        "cannot share equally: fill up with zeros first")  # fmt: skip
        return self._collective("reduce_scatter", whole)

    def _collective(self, name: str, tensor: Tensor) -> Tensor:
        check_tensor(name, tensor)
        self._calls.append(name)
        if len(self._calls) > len(self._done):
            self._asked = name, tensor.detach().clone()
            raise Waiting
        result = self._done[len(self._calls) - 1].clone()
        self._given.append((name, StorageWeakRef(result.untyped_storage())))
        return result

    def alive(self) -> list[int]:
        """Bytes of each gathered tensor that has its memory still."""
        found = []
        for name, weak in self._given:
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata) if name == "all_gather" else None
            found += [storage.nbytes()] if storage is not None and storage.nbytes() else []
        return found


def check_tensor(name: str, tensor) -> None:
    """Raise Wrong for what no collective takes."""
    if not isinstance(tensor, Tensor):
        raise Wrong("no-tensor", f"{name} is given {show(tensor)}; a tensor of one dimension is asked for")
    if tensor.dim() != 1:
        raise Wrong(
            "not-flat", f"{name} is given the shape {tuple(tensor.shape)}; a tensor of one dimension is asked for"
        )
    if not tensor.is_contiguous():
        raise Wrong("not-contiguous", f"{name} is given a tensor whose numbers do not lie side by side; send a copy")


def together(run: Callable, ranks: int, name: str) -> list:
    """What ``run(group)`` gives, rank by rank: each runs until all have come to its next collective, then again."""
    done: list[list[Tensor]] = [[] for _ in range(ranks)]
    for _ in range(100):
        groups, ended = [Group(rank, ranks, done[rank]) for rank in range(ranks)], {}
        for group in groups:

            def attempt(group=group):
                try:
                    return [run(group)]
                except Waiting:
                    return []

            attempt.__name__ = name
            if found := by_hand(attempt, building=True, twice=False, untouched=False, none_ok=True):
                ended[group.rank] = found[0]
        waiting = [group for group in groups if group.rank not in ended]
        if not waiting:
            return [ended[rank] for rank in range(ranks)]
        _agree(waiting, ended)
        for group, result in zip(groups, _result([group._asked for group in groups])):
            done[group.rank].append(result)
    raise Wrong("does-not-end", f"{name} asks for one collective after the other, 100 of them, and has not ended")


def _agree(waiting: list[Group], ended: dict) -> None:
    """Raise Wrong where ranks would wait for one another for ever, or do not fit."""
    first = waiting[0]
    (name, tensor), there = first._asked, f"rank {first.rank} asks for {first._asked[0]}"
    for rank in ended:
        raise Wrong("ranks-disagree", f"{there}, and rank {rank} has ended without: real ranks would wait for ever")
    for other in waiting[1:]:
        if other._asked[0] != name:
            what = f"{there}, and rank {other.rank} for {other._asked[0]}"
            raise Wrong("ranks-disagree", f"{what}: all ranks come to the same collectives, in the same order")
        if other._asked[1].shape != tensor.shape or other._asked[1].dtype != tensor.dtype:
            sizes = [f"{group._asked[1].numel()} of {group._asked[1].dtype}" for group in (first, other)]
            what = f"{name}: rank {first.rank} gives {sizes[0]}, rank {other.rank} {sizes[1]}"
            raise Wrong("unequal-shards", f"{what}; every rank gives as many numbers, of one dtype")


def _result(asked: list[tuple[str, Tensor]]) -> list[Tensor]:
    """Rank by rank."""
    tensors = [tensor for _, tensor in asked]
    if asked[0][0] == "all_gather":
        return [torch.cat(tensors)] * len(tensors)
    return list(sum(tensors[1:], tensors[0]).chunk(len(tensors)))


# ---------------------------------------------------------------- the step


def adam(w: Tensor, g: Tensor, state: dict) -> None:
    """A step of AdamW on the tensor ``w``, in place, with the gradient ``g``; ``state`` is empty before the first."""
    if not state:
        state["m"], state["v"], state["step"] = torch.zeros_like(w), torch.zeros_like(w), 0
    state["step"] += 1
    m, v = state["m"], state["v"]
    m.lerp_(g, 1 - BETAS[0])
    v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    m_hat, v_hat = (x / (1 - beta ** state["step"]) for x, beta in zip((m, v), BETAS))
    w.mul_(1 - LR * DECAY).sub_(LR * m_hat / (v_hat.sqrt() + EPS))


@probe
def stepped(step: Callable, weights: list[Tensor], gradients: list[list[Tensor]], states: list[dict]) -> list[dict]:
    """For each rank: what ``adam`` was given, weights and state after the step, and how many gradients are left."""

    def run(group: Group) -> dict:
        parameters = [nn.Parameter(w.clone()) for w in weights]
        for p, g in zip(parameters, gradients[group.rank]):
            p.grad = g.clone()
        state, given = copy.deepcopy(states[group.rank]), []

        def update(w, g, state):
            for what, tensor in {"the weights": w, "the gradient": g}.items():
                if not isinstance(tensor, Tensor):
                    raise Wrong("no-tensor", f"update is given {show(tensor)} for {what}; a tensor is asked for")
            if not isinstance(state, dict):
                raise Wrong("no-state", f"update is given {show(state)} for the state; the dictionary is asked for")
            if w.shape != g.shape:
                sizes = f"{tuple(w.shape)} and {tuple(g.shape)}"
                raise Wrong("sizes-differ", f"update is given weights and a gradient of {sizes}: both are the shard's")
            if w.dtype != g.dtype:
                raise Wrong("other-dtype", f"update is given weights in {w.dtype} and a gradient in {g.dtype}")
            given.append({"w": w.detach().clone(), "g": g.detach().clone()})
            with torch.no_grad():
                adam(w, g, state)

        returned = step(parameters, state, group, update)
        return {
            "given": given, "weights": [p.detach().clone() for p in parameters], "state": state,
            "left": sum(p.grad is not None for p in parameters), "calls": group._calls,
            "asks": returned is not None,
        }  # fmt: skip

    return together(run, len(gradients), name_of(step))


# ---------------------------------------------------------------- the layer


@probe
def passed(
    layer, shards: list[Tensor], shape: tuple[int, int], inputs: list[Tensor], pulls: list[Tensor]
) -> list[dict]:
    """For each rank: y, the gradients of x and of the shard, collectives, and gathered bytes that are still there."""

    def run(group: Group) -> dict:
        x, shard = (each[group.rank].clone().requires_grad_() for each in (inputs, shards))
        y = layer.apply(x, shard, shape, group)
        if not isinstance(y, Tensor):
            raise Wrong("no-tensor", f"forward gives {show(y)}; y is asked for")
        forward, alive = len(group._calls), group.alive()
        pull = pulls[group.rank]
        if y.shape != pull.shape or y.dtype != pull.dtype or not y.requires_grad:
            return {"y": y.detach().clone(), "graph": y.requires_grad, "x": None, "shard": None, "calls": group._calls,
                    "forward": forward, "alive": alive, "after": []}  # fmt: skip
        value = y.detach().clone()
        y.backward(pull)
        del y
        return {"y": value, "graph": True, "x": x.grad, "shard": shard.grad, "calls": group._calls, "forward": forward,
                "alive": alive, "after": group.alive()}  # fmt: skip

    return together(run, len(shards), name_of(layer))


# ---------------------------------------------------------------- fully_shard


@probe
def wrapped(wrap: Callable, config: GPTConfig, reshard: bool) -> dict:
    """What is asked of fully_shard, call by call: the module's name, and reshard_after_forward ("no word" without)."""
    model, calls = GPT(config), []
    names = {id(module): name or "the model" for name, module in model.named_modules()}

    def fully_shard(module, **options):
        if id(module) not in names:
            raise Wrong(
                "no-module", f"fully_shard is given {show(type(module).__name__)}, which is no module of the model"
            )
        odd = [name for name in options if name not in ("mesh", "reshard_after_forward", "mp_policy", "offload_policy")]
        if odd:
            raise Wrong("no-option", f"fully_shard has no option {odd[0]}")
        calls.append((names[id(module)], options.get("reshard_after_forward", "no word")))
        return module

    def run():
        return wrap(model, fully_shard, reshard)

    run.__name__ = name_of(wrap)
    given = by_hand(run, building=True, twice=False, untouched=False, none_ok=True)
    return {"calls": calls, "itself": given is model, "nothing": given is None}
