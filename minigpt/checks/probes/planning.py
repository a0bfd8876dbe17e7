"""What a student's plan says, as plain values: a dictionary of fields, whether it came as one or as a TrainingPlan.

said(plan)      the fields that ``plan()`` sets
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from minigpt.checks.calling import name_of
from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import show
from minigpt.checks.probes import probe
from minigpt.checks.verdict import Wrong
from minigpt.memory.plan import TrainingPlan


@probe
def said(plan: Callable) -> dict:
    """A TrainingPlan is read once, field by field, so one that changes afterwards has said what it said."""
    given = by_hand(plan)
    if isinstance(given, TrainingPlan):
        return {field.name: getattr(given, field.name) for field in fields(TrainingPlan)}
    if not isinstance(given, Mapping):
        what = f"{name_of(plan)}: {show(given)} is of type {type(given).__name__}"
        raise Wrong("wrong-type", f"{what}; a TrainingPlan, or a dictionary of its fields, is asked for")
    return dict(given)
