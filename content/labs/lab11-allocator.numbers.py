"""The numbers in the prose of lab 11. content/README.md says how it uses them."""

from minigpt.checks.allocating import recorded, running
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.units import MIB
from minigpt.model import GPTConfig
from tools.shown import shown

told = recorded.attention()
recorded_events, recorded_requests = len(told), sum(event.action == "born" for event in told)

# Part 6: the run as it comes fails, and so does the longest step first; each step alone runs.
made = shown(
    "content/labs/lab11-allocator.md", "cure-run",
    given=dict(GPTConfig=GPTConfig, TrainingPlan=TrainingPlan, MIB=MIB, running=running),
)  # fmt: skip
cured, card_mib, outcome, lengths = made["wide"], made["capacity"] // MIB, made["outcome"], made["lengths"]
assert all(outcome([length]) == "it runs" for length in lengths)
assert outcome(lengths) != "it runs" != outcome([max(lengths), *lengths])
at = lengths.index(max(lengths))
assert outcome([*lengths[:at], "empty_cache", *lengths[at:]]) != "it runs"  # right before the longest step
assert outcome([lengths[0], "empty_cache", *lengths[1:]]) == "it runs"  # after the first one
