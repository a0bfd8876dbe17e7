"""Judging a student's step of ZeRO-1, ``step(parameters, state, group, update)``; the truth is one process's AdamW.

follows(step, Scene(shapes, ranks))     what ``update`` is given on each rank, and the weights that come of it
keeps(step, Scene(shapes, ranks))       the state has the shard's bytes, gradients are gone, and what was sent
trains(step, (config, ranks, steps))    losses of a MiniGPT, which are those of one process
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, show
from minigpt.checks.probes import sharding as probes
from minigpt.checks.sharding.dealing import joined, length_of
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

knows(__name__)
TOLERANCE = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2e-2, 2e-2)}


class Scene(NamedTuple):
    """Parameters of these shapes, steps with gradients of each rank's own."""

    shapes: tuple[tuple[int, ...], ...]
    ranks: int
    steps: int = 3
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def text(self) -> str:
        n = sum(w.numel() for w in self.weights())
        return f"{n} numbers of {str(self.dtype)[6:]}, {self.ranks} ranks"

    def weights(self) -> list[Tensor]:
        return self._tensors(self.seed)

    def gradients(self, step: int) -> list[list[Tensor]]:
        """Rank by rank."""
        return [self._tensors(1000 + 100 * self.seed + 10 * step + rank) for rank in range(self.ranks)]

    def _tensors(self, seed: int) -> list[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        return [(0.3 * torch.randn(shape, generator=draw) + 0.2).to(self.dtype) for shape in self.shapes]


def follows(step: Callable, scene: Scene) -> None:
    states: list[dict] = [{} for _ in range(scene.ranks)]
    weights, whole = scene.weights(), Whole(scene.weights(), scene.ranks)
    for i in range(scene.steps):
        gradients, what = scene.gradients(i), f"{scene.text}, step {i + 1}"
        told = _told(step, weights, gradients, states, what)
        means = [sum(each) / scene.ranks for each in zip(*gradients)]
        before, after = whole.now, whole.step(means)
        for rank, said in enumerate(told):
            where = f"{what}, rank {rank}"
            _given(said["given"], before, gradients, means, rank, scene, where)
            if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(said["state"])):
                raise Wrong("state-lost", f"{where}: after the step there are no moments in state; hand update the "
                            "dictionary that you are given")  # fmt: skip
        for rank, said in enumerate(told):
            _weights(said["weights"], before, after, rank, scene, f"{what}, rank {rank}")
        weights, states = told[0]["weights"], [said["state"] for said in told]


def keeps(step: Callable, scene: Scene) -> None:
    n = sum(w.numel() for w in scene.weights())
    (weights, *_), gradients = [scene.weights()], scene.gradients(0)
    told = _told(step, weights, gradients, [{} for _ in range(scene.ranks)], scene.text)
    for rank, said in enumerate(told):
        where = f"{scene.text}, rank {rank}"
        tensors = [leaf for leaf in tree_leaves(said["state"]) if isinstance(leaf, Tensor)]
        storages = {s.data_ptr(): s.nbytes() for s in (leaf.untyped_storage() for leaf in tensors)}
        kept, needed = sum(storages.values()), 2 * length_of(n, scene.ranks) * scene.dtype.itemsize
        if kept != needed:
            names = ", ".join(show(name) for name in said["state"])
            raise Wrong("more-state" if kept > needed else "less-state", f"{where}: after the step state keeps "
                        f"{kept:,} bytes; m and v of a shard have {needed:,}: {names or 'nothing'}")  # fmt: skip
        if said["left"]:
            raise Wrong(
                "gradients-kept", f"{where}: {said['left']} parameters have their gradients still; set .grad to None"
            )
        if sorted(said["calls"]) != ["all_gather", "reduce_scatter"]:
            calls = ", ".join(said["calls"]) or "none"
            raise Wrong(
                "other-traffic", f"{where}: collectives: {calls}; one reduce_scatter and one all_gather will do"
            )


def trains(step: Callable, case: tuple[GPTConfig, int, int]) -> None:
    config, ranks, steps = case
    torch.manual_seed(0)
    model = GPT(config)
    start = [p.detach().clone() for p in model.parameters()]
    states: list[dict] = [{} for _ in range(ranks)]
    weights, losses = start, []
    for i in range(steps):
        what = f"a MiniGPT of {config.n_layer} blocks, {ranks} ranks, step {i + 1}"
        loss, gradients = _passes(model, weights, ranks, i)
        losses.append(loss)
        told = _told(step, weights, gradients, states, what)
        weights, states = told[0]["weights"], [said["state"] for said in told]
        if any(not a.shape == b.shape for a, b in zip(weights, start)):
            raise Wrong("wrong-shape", f"{what}: a weight has another shape than before")
        for said in told[1:]:
            if not all(a.equal(b) for a, b in zip(said["weights"], weights)):
                raise Wrong("ranks-differ", f"{what}: afterwards the ranks have different weights")
    whole, right = Whole(start, ranks), []  # after all that is asked: whoever looks into frames finds no truth
    for i in range(steps):
        loss, gradients = _passes(model, whole.now, ranks, i)
        right.append(loss)
        whole.step([sum(each) / ranks for each in zip(*gradients)])
    what = f"losses of {steps} steps, beside one process's"
    close(torch.tensor(losses), torch.tensor(right), what, rtol=1e-4, atol=0)


def _passes(model: GPT, weights: list[Tensor], ranks: int, i: int) -> tuple[float, list[list[Tensor]]]:
    """The mean loss of all ranks' batches, and each rank's own gradients."""
    for p, w in zip(model.parameters(), weights):
        p.data = w.float()
    losses, gradients = [], []
    for rank in range(ranks):
        draw = torch.Generator().manual_seed(100 * i + rank)
        tokens = torch.randint(model.config.vocab_size, (2, model.config.context + 1), generator=draw)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        gradients.append([g.clone() for g in torch.autograd.grad(loss, list(model.parameters()))])
        losses.append(loss.item())
    return sum(losses) / ranks, gradients


class Whole:
    """One process: all weights, and AdamW on each of them."""

    def __init__(self, weights: list[Tensor], ranks: int) -> None:
        self.now = [w.clone() for w in weights]
        self.states: list[dict] = [{} for _ in weights]

    def step(self, gradients: list[Tensor]) -> list[Tensor]:
        after = [w.clone() for w in self.now]
        for w, g, state in zip(after, gradients, self.states):
            probes.adam(w, g, state)
        self.now = after
        return after


# ---------------------------------------------------------------- what is wrong


def _told(step: Callable, weights, gradients, states, what: str) -> list[dict]:
    try:
        told = probes.stepped(step, weights, gradients, states)
    except Wrong as verdict:
        raise Wrong(verdict.id, f"{what}: {verdict}") from verdict.__cause__
    if not isinstance(told, list) or len(told) != len(gradients):
        raise Wrong("broken-reply", f"{what}: not every rank is told of")
    return told


def _given(given: list[dict], before, gradients, means, rank: int, scene: Scene, where: str) -> None:
    """What ``update`` was given: this rank's shard of the weights, and of the mean of the gradients."""
    W, n = scene.ranks, sum(w.numel() for w in before)
    length = length_of(n, W)
    if len(given) != 1:
        id, how = ("no-update", "never") if not given else ("updates-often", f"{len(given)} times")
        raise Wrong(id, f"{where}: update is called {how}; once, for the shard, is asked for")
    w, g = given[0]["w"], given[0]["g"]
    for what, tensor in {"the weights": w, "the gradient": g}.items():
        if tensor.dtype != scene.dtype:
            raise Wrong("other-dtype", f"{where}: update is given {what} in {tensor.dtype}; they are {scene.dtype}")
    if w.numel() in (n, W * length) and W > 1 and w.numel() != length:
        raise Wrong("state-for-all", f"{where}: update is given all {w.numel()} numbers, so every rank would keep the "
                    "state of all; a rank updates its shard")  # fmt: skip
    if w.shape != (length,):
        if w.numel() == length_of(n, 2) or w.numel() == n // 2:
            raise Wrong("two-ranks", f"{where}: update is given half of the numbers; there are {W} ranks")
        raise Wrong("other-length", f"{where}: update is given {tuple(w.shape)}; the shard is ({length},)")
    shards = _shards(before, W)
    rtol, atol = TOLERANCE[scene.dtype]
    others = {f"part of rank {r}": s for r, s in enumerate(shards) if r != rank}
    _alike(w, shards[rank], {"other-part": ("these are the weights of another rank's part", list(others.values()))},
           f"{where}: the weights that update is given", n, rank, length, rtol, atol)  # fmt: skip
    mean, own = _shards(means, W), _shards(gradients[rank], W)
    wrong = {
        "sum-not-mean": ("it is the sum over the ranks; the mean is asked for", [mean[rank] * W]),
        "divided-twice": ("it is divided by the number of ranks twice", [mean[rank] / W]),
        "two-ranks": ("it is the sum divided by 2; there are more ranks", [mean[rank] * W / 2]),
        "own-gradient": ("it is this rank's own gradient; the mean over all ranks is asked for", [own[rank]]),
        "own-divided": (
            "it is this rank's own gradient, divided; the mean over all ranks is asked for",
            [own[rank] / W],
        ),
        "other-part": ("it is another rank's part", [m for r, m in enumerate(mean) if r != rank]),
    }
    _alike(g, mean[rank], wrong, f"{where}: the gradient that update is given", n, rank, length, rtol, atol)


def _alike(mine, right, wrong, what: str, n: int, rank: int, length: int, rtol: float = 0, atol: float = 0) -> None:
    for id, (sentence, others) in wrong.items():
        for other in others:
            if not torch.allclose(other.double(), right.double(), rtol=rtol, atol=atol):
                if torch.allclose(mine.double(), other.double(), rtol=rtol, atol=atol):
                    raise Wrong(id, f"{what}: {sentence}")
    real = max(0, min(length, n - rank * length))  # how many of the shard are no padding
    if torch.allclose(mine[:real].double(), right[:real].double(), rtol=rtol, atol=atol) and mine[real:].any():
        raise Wrong("padding-not-zero", f"{what}: the padding is not zero")
    close(mine, right, what, rtol=rtol, atol=atol)


def _weights(mine: list[Tensor], before, after, rank: int, scene: Scene, where: str) -> None:
    rtol, atol = TOLERANCE[scene.dtype]
    for w, old in zip(mine, before):
        if w.shape != old.shape or w.dtype != old.dtype:
            raise Wrong("other-weights", f"{where}: a weight of {tuple(old.shape)} in {old.dtype} has become one of "
                        f"{tuple(w.shape)} in {w.dtype}")  # fmt: skip
    if all(w.equal(old) for w, old in zip(mine, before)):
        raise Wrong("not-in-place", f"{where}: after the step the parameters are as they were")
    n, length = sum(w.numel() for w in before), length_of(sum(w.numel() for w in before), scene.ranks)
    own, old, new = (joined(each, 1) for each in (mine, before, after))
    part = slice(min(rank * length, n), min((rank + 1) * length, n))
    alone = old.clone()
    alone[part] = new[part]
    if torch.allclose(own.double(), alone.double(), rtol=rtol, atol=atol) and not torch.allclose(
        alone, new, rtol, atol
    ):
        raise Wrong("not-gathered", f"{where}: only this rank's part is new; the others' are gathered")
    close(own, new, f"{where}: the weights after the step", rtol=rtol, atol=atol)


def _shards(tensors, ranks: int) -> list[Tensor]:
    return list(joined(list(tensors), ranks).chunk(ranks))
