"""The memory ledger: predict bytes by arithmetic, measure them with an instrument, compare.

``predict`` is pure Python and imports no torch; ``MemoryMeter`` (and torch) load on first use.
"""

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict

__all__ = ["BUCKETS", "Architecture", "Ledger", "MemoryMeter", "StepMemory", "TrainingPlan", "predict"]


def __getattr__(name: str):
    if name == "MemoryMeter":
        from minigpt.memory.measured.meter import MemoryMeter

        return MemoryMeter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
