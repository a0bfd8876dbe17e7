"""Judging lab 10's runs: steps of a whole model that the judge asks for, and the weights that the notebook trained.

steps(galore_step, begun)                ten steps of a model are those of minigpt.optim.GaLoreAdamW
learned(models, (begun, margin, draw))   full, GaLore and LoRA learned, and what LoRA freezes is as it was
keeps(galore_step, (begun, rank))        what a step leaves in the states of the blocks' matrices, in bytes
budget(config), rank(config)             two thirds of what full fine-tuning keeps, and the largest rank for it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minigpt import train
from minigpt.checks import fetching, runs
from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, integer, same
from minigpt.checks.galore import keeping
from minigpt.checks.galore.projecting import HINTS
from minigpt.checks.probes import steps as probes
from minigpt.checks.verdict import Wrong
from minigpt.lora import inject
from minigpt.memory import TrainingPlan, predict
from minigpt.model import GPTConfig
from minigpt.optim import GaLoreAdamW, galore_groups

knows(__name__)
RANK, STEPS, LR, SIZE = 12, 10, 1e-3, 2  # a rank, steps of one projection, a rate, pairs in a batch
GAP, SCALE, ALPHA = 10, 1.0, 16


class Asked(GaLoreAdamW):
    """GaLore, whose steps on what has a rank an answer takes."""

    def __init__(self, params, answer: Callable) -> None:
        super().__init__(params, lr=LR)
        self.answer = answer

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if "rank" not in group:
            return super()._update(p, grad, state, group)
        options = dict(lr=group["lr"], rank=group["rank"], gap=group["update_proj_gap"], scale=group["scale"])
        told = probes.taken(self.answer, p.detach().clone(), [grad.clone()], options, state.get("kept", {}))
        said, what = told[-1], f"a matrix of {tuple(p.shape)}"
        if isinstance(said, Wrong):
            raise explained(said, HINTS) from said.__cause__
        W, state["kept"] = said["W"], said["state"]
        if W.shape != p.shape or not W.isfinite().all():
            raise Wrong("differs", f"{what}: W has the shape {tuple(W.shape)}, or holds NaN or infinity")
        p.copy_(W)


def steps(galore_step: Callable, begun: runs.Beginning) -> None:
    losses = []
    for make in (lambda groups: Asked(groups, galore_step), lambda groups: GaLoreAdamW(groups, lr=LR)):
        model = begun.model()
        optimizer = make(galore_groups(model, RANK, update_proj_gap=GAP, scale=SCALE))
        plan = train.TrainPlan(steps=STEPS, lr=LR, schedule="constant", seed=begun.seed)
        history = train.train(model, begun.batches(STEPS, SIZE), plan, optimizer=optimizer, progress=False)
        losses.append(torch.tensor(history.losses))
    close(losses[0], losses[1], "ten losses, yours beside the course's", rtol=0, atol=2e-3)


def learned(models, case: tuple[runs.Beginning, float, int]) -> None:
    begun, margin, draw = case
    for (name, model), method in zip(runs.trained(models, 3).items(), ("full", "galore", "lora")):
        said, start = fetching.weights(model, name), begun.model()
        made = fetching.loaded(said, adapted(start, said, name) if method == "lora" else start, name)
        runs.learned(made, begun, margin, draw, name)
        fresh = begun.model()
        if method == "lora":
            base = [p for p in made.parameters() if not p.requires_grad]
            frozen = all(map(same, base, fresh.parameters()))
        else:
            frozen = same(made.get_parameter("token_embedding.weight"), fresh.token_embedding.weight)
        if frozen != (method == "lora"):
            raise Wrong("frozen", f"{name}: embeddings and matrices are frozen with LoRA, and trained without")


def adapted(model: Any, said: dict[str, Tensor], what: str) -> nn.Module:
    """``model`` with adapters of the rank that these weights have."""
    rank = next((len(w) for name, w in said.items() if name.endswith("lora_A")), 0)
    if not 1 <= rank <= model.config.n_embd:
        raise Wrong("other-model", f"{what}: there are no adapters in it")
    inject(model, rank, ALPHA, targets="all-linear")
    return model


def keeps(galore_step: Callable, case: tuple[runs.Beginning, int]) -> None:
    begun, rank = case
    model = begun.model()
    matrices, rest = galore_groups(model, rank, update_proj_gap=GAP, scale=SCALE)
    optimizer = Asked([matrices], galore_step)
    for i, p in enumerate(matrices["params"]):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).to(p.device)
    optimizer.step()
    tensors = [x for state in optimizer.state.values() for x in tree_leaves(state["kept"]) if isinstance(x, Tensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    others = 8 * sum(p.numel() for p in rest["params"])  # two moments of each, in float32
    truth = keeping.metered(begun.config, rank, "fp32")[1] - others
    integer(sum(storages.values()), truth, f"all states of the blocks' matrices after a step of yours, rank {rank}",
            unit="bytes")  # fmt: skip


def budget(config: GPTConfig) -> int:
    return 2 * predict(config, TrainingPlan(batch=1, seq_len=8)).ledger.persistent // 3


def rank(config: GPTConfig) -> int:
    return keeping._largest(config, "fp32", budget(config))
