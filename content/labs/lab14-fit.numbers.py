"""The numbers in the prose of lab 14. content/README.md says how it uses them."""

from dataclasses import replace

from minigpt.checks.capstone import planning, targets
from minigpt.checks.capstone.situation import Situation
from minigpt.memory import Architecture
from minigpt.memory.plan import TrainingPlan
from tools.shown import shown

TEXT = "content/labs/lab14-fit.md"
FIRST = shown(TEXT, "first-situation", given={})["FIRST"]
SECOND = shown(TEXT, "second-situation", given=dict(FIRST=FIRST))["SECOND"]
assert (FIRST, SECOND) == (targets.FIRST, targets.SECOND)  # which the checks ask for

# What the text says of the default, and of the second documents.
model = Architecture.of(FIRST["model"])
first, second = Situation.of(FIRST), Situation.of(SECOND)
default = planning.outcome(TrainingPlan(card="T4", batch=16, seq_len=512), first)
assert 3 < 16 * model.parameters / default.room < 4  # three times the card, before the first token
logits = 4 * second.longest * model.vocab_size
share = second.how_many * second.longest / sum(length * count for length, count in second.lengths)

lean = TrainingPlan(
    card="T4", method="qlora", precision="fp16", autocast=True, accumulation=3, seq_len=8192, sequences="packed",
    checkpointing="full", loss="fused",
)  # fmt: skip
unchecked = planning.outcome(replace(lean, checkpointing="none"), second)
