"""Which models each way of aligning has in memory, and what stays of each from step to step.

    sft      a policy, trained: this is fine-tuning
    reward   a reward model, trained: the same body, one number in the place of V logits
    dpo      a policy, trained, and a reference, frozen: the policy before training
    grpo     the same two; trl makes no reference where beta is 0.0, its default: ``reference=False``
    ppo      a policy and a value model, trained; a reference and a reward model, frozen

A frozen model is its weights. A trained one has gradients and the optimizer's state besides, so that with AdamW in
float32 a frozen copy is a quarter of a trained one. With adapters all stand on one base: the reference is the base
itself, and each other model is an adapter, and a head of its own if it gives one number.

Left out: models on another machine, as a reward model behind an address is, or a program that gives points.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.buckets import Ledger
from minigpt.memory.collector import at_rest
from minigpt.memory.engine.tape import ITEMSIZE
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.start import start
from minigpt.memory.predicted.static import predict_static
from minigpt.values import check_choice, check_flags

METHODS = {  # role: whether it is trained
    "sft": {"policy": True},
    "reward": {"reward": True},
    "dpo": {"policy": True, "reference": False},
    "grpo": {"policy": True, "reference": False},
    "ppo": {"policy": True, "reference": False, "value": True, "reward": False},
}
ONE_NUMBER = ("value", "reward")  # their heads are (1, C)


def held(model, plan: TrainingPlan, method: str, *, reference: bool = True) -> dict[str, Ledger]:
    """What stays of each model, by its role. Bytes; a copy that is an idle adapter is an empty ledger.

    ``reference``: whether there is one at all. Raises ValueError for a method that is not in METHODS, for an optimizer
    other than AdamW where a head of one number is trained, and as ``predict_static`` does.
    """
    check_choice(METHODS, method=method)
    check_flags(reference=reference)
    roles = {role: trained for role, trained in METHODS[method].items() if reference or role != "reference"}
    if plan.optimizer != "adamw" and any(trained and role in ONE_NUMBER for role, trained in roles.items()):
        raise ValueError(f"optimizer is {plan.optimizer!r}; for a head of one number allowed here: adamw")
    architecture = Architecture.of(model)
    has_base = [role for role in roles if role != "reference"][0]  # with adapters, one model carries it
    return {
        role: _stays(architecture, plan, role, trained, plan.method == "full" or role == has_base)
        for role, trained in roles.items()
    }


def _stays(architecture: Architecture, plan: TrainingPlan, role: str, trained: bool, base: bool) -> Ledger:
    if role == "reference" and plan.method != "full":
        return Ledger()
    if role in ONE_NUMBER:  # without the head of V words; a tied one is the embedding, which stays
        architecture = replace(architecture, tied=True)
    whole = predict_static(architecture, plan)
    weights = whole.weights - (0 if base else _frozen(architecture, plan))
    if role in ONE_NUMBER:
        head = architecture.head_width
        dtype = plan.regime.weights if plan.method == "full" else 4  # peft trains it whole, beside float32 adapters
        weights += head * dtype
        state = (plan.regime.moments + plan.regime.master) if plan.method == "full" else 8
        gradient = plan.regime.gradients if plan.method == "full" else 4
        whole = replace(
            whole, gradients=whole.gradients + head * gradient, optimizer=whole.optimizer + head * state + 4
        )
    return replace(whole, weights=weights) if trained else Ledger(weights=weights)


def _frozen(architecture: Architecture, plan: TrainingPlan) -> int:
    """Bytes of the base below the adapters."""
    with at_rest():
        began = start(architecture, replace(plan, step="steady"))
        trained = sum(value.numel * ITEMSIZE[value.dtype] for value in began.layers.trained)
        weights = began.tape.result().ledger.weights
        del began.tape.keep  # its own method: a cycle
    return weights - trained


def total(ledgers: dict[str, Ledger]) -> int:
    """Bytes of all models together."""
    return sum(ledger.total for ledger in ledgers.values())
