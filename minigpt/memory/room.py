"""Whether a model has room for what a plan asks of it: a sequence, targets, a rank."""

from __future__ import annotations

from minigpt.memory.plan import TrainingPlan


def check_fit(architecture, plan: TrainingPlan) -> None:
    """Raise ValueError for what is no plan, and for a sequence, a target or a rank that the model has no room for."""
    if not isinstance(plan, TrainingPlan):
        raise ValueError(f"plan is {plan!r}; it must be a TrainingPlan")
    if plan.seq_len > architecture.context and has_learned_positions(architecture):
        raise ValueError(f"seq_len is {plan.seq_len}; the model's context is {architecture.context}, and learned")
    plan.target_names(architecture)
    plan.projected_names(architecture)


def has_learned_positions(architecture) -> bool:
    """Whether each position has its own row in a table, as in gpt2: then no sequence can be longer than the context."""
    return any(tensor.name == "positions" for tensor in architecture.tensors())


def beyond_context(architecture, plan: TrainingPlan) -> str | None:
    """A sentence for a sequence that is longer than the model's context; its rotary positions run on all the same."""
    if plan.seq_len <= architecture.context:
        return None
    return (
        f"seq_len is {plan.seq_len:,}, beyond the model's context of {architecture.context:,}: it runs, "
        "but on positions that the model has never seen"
    )
