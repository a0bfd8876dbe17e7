"""The memory ledger: predict bytes by arithmetic, measure them with an instrument, compare.

``predict`` is pure Python and imports no torch; the instruments (and torch) load on first use.
"""

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.evaluation import predict_evaluation
from minigpt.memory.predicted.static import predict_static
from minigpt.memory.predicted.step import predict

__all__ = [
    "BUCKETS", "Architecture", "Ledger", "MemoryMeter", "StepMemory", "TrainingPlan", "predict", "predict_evaluation",
    "predict_static",
]  # fmt: skip


_MEASURED = {"MemoryMeter": "meter", "measure": "step", "measure_evaluation": "evaluation", "describe": "describe"}


def __getattr__(name: str):
    if name in _MEASURED:
        from importlib import import_module

        return getattr(import_module(f"minigpt.memory.measured.{_MEASURED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
