"""describe(model, plan): a measured step in words, for models that the arithmetic does not know."""

from __future__ import annotations

import contextlib
import time

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.measured.building import build
from minigpt.memory.measured.fakes import fake_tensors
from minigpt.memory.measured.models import base_of
from minigpt.memory.measured.step import DEVICES, measure_module
from minigpt.memory.plan import TrainingPlan
from minigpt.values import check_choice


def describe(model, plan: TrainingPlan, device: str = "fake") -> str:
    """What ``measure`` finds, as lines of text that say that it is a measurement. Raises what ``measure`` raises."""
    check_choice(DEVICES, device=device)
    started = time.perf_counter()
    with fake_tensors(plan) if device == "fake" else contextlib.nullcontext():
        module = build(model, plan, device)
        step = measure_module(module, plan)
    seconds = time.perf_counter() - started
    inner = base_of(module)
    attention = getattr(inner.config, "_attn_implementation", plan.attention)
    parameters = sum(p.numel() for p in module.parameters())
    where = {"fake": "fake tensors, with a CPU's kernels", "cpu": "this CPU", "cuda": "this GPU"}[device]
    lines = [
        f"measured, not predicted: a training step of {type(inner).__name__} on {where}, in {seconds:.1f} s",
        f"{parameters:,} parameters, {attention} attention"
        + ("" if attention == plan.attention else f": this model has no {plan.attention}"),
        "",
        f"{'':<12} {'largest':>18} {'at the peak':>18}",
    ]
    for bucket in BUCKETS:
        largest, peak = getattr(step.ledger, bucket), getattr(step.peak, bucket)
        lines.append(f"{bucket:<12} {largest:>16,} B {peak:>16,} B")
    lines.append(f"peak: {step.peak.total:,} B ({step.peak.total / 1e9:.2f} GB), in {step.peak_at}")
    return "\n".join(lines)
