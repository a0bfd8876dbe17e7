"""Which steps of DPO are told and measured: ``check_dpo``, which both wings call.

A step has ``plan.batch`` pairs, so twice as many sequences, of ``plan.seq_len`` tokens; the first ``prompt`` of them
are the prompt's, and count nothing. This file imports no torch.
"""

from __future__ import annotations

from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.values import check_choice, check_counts

REFERENCES = {  # where the reference's log-probabilities come from
    "copy": "a second, frozen set of all weights",
    "adapter": "the policy's own weights, its adapters idle",
    "precomputed": "numbers made before training",
}
# What DPO has one way of, here; and trl's trainer has no other.
ONLY = dict(
    sequences="plain", zero_grad="before_forward", step="steady", holds="loss", accumulation=1, use_cache=False,
    optimizer_in_backward=False, logits_to_keep=0, modules_to_save="", lora_dropout=0.0,
    attention="sdpa", card=None, sharding="none",
)  # fmt: skip


def check_dpo(model, plan: TrainingPlan, reference: str, prompt: int) -> Architecture:
    """What ``model`` is made of. Raises ValueError, naming what it is, for a step that is not covered."""
    architecture = Architecture.of(model)
    check_choice(REFERENCES, reference=reference)
    check_counts(prompt=prompt)
    if prompt >= plan.seq_len:
        raise ValueError(f"prompt is {prompt}; it must be less than seq_len, which is {plan.seq_len}")
    loss = "model" if architecture.family == "minigpt" else "trl"
    for name, only in {**ONLY, "loss": loss}.items():
        if getattr(plan, name) != only:
            raise ValueError(f"{name} is {getattr(plan, name)!r}; in a step of DPO allowed here: {only!r}")
    if architecture.family == "minigpt" and plan.autocast_dtype is not None:
        name = "autocast" if plan.autocast else "precision"
        raise ValueError(f"{name} is {getattr(plan, name)!r}; MiniGPT's step of DPO has no autocast")
    if plan.checkpointing not in ("none", "full"):
        raise ValueError(f"checkpointing is {plan.checkpointing!r}; in a step of DPO allowed here: none, full")
    if plan.variant == "dora":
        raise ValueError("variant is 'dora'; in a step of DPO allowed here: lora, rslora")
    if plan.method == "qlora" and (architecture.family == "minigpt" or plan.quantization != "nf4"):
        name = "method" if architecture.family == "minigpt" else "quantization"
        raise ValueError(f"{name} is {getattr(plan, name)!r}; in a step of DPO it is not covered here")
    dtype = "same" if plan.method == "qlora" else "fp32"  # trl casts adapters on a quantized base, and on no other
    if plan.method != "full" and plan.adapter_dtype != dtype:
        text = f"with method {plan.method!r} in a step of DPO allowed: {dtype}"
        raise ValueError(f"adapter_dtype is {plan.adapter_dtype!r}; {text}")
    if plan.method == "full" and reference == "adapter":
        raise ValueError("reference is 'adapter'; with method 'full' there is none: allowed: copy, precomputed")
    if plan.method != "full" and reference == "copy":
        raise ValueError(
            f"reference is 'copy'; with method {plan.method!r} nobody makes one: allowed: adapter, precomputed"
        )
    return architecture
