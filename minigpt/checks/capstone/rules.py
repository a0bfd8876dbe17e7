"""What a plan may not give up to fit: the card, the data's tokens, the size of an update, and what is trained.

    plan_of(said)             a TrainingPlan of plain fields; a Wrong says which field is none, or what is refused
    keeps(plan, situation)    raises Wrong where it is not the same training any more

Nothing here asks how much memory or time a plan takes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from minigpt.checks.capstone.situation import Situation
from minigpt.checks.closing import knows, remembered
from minigpt.checks.comparing import show
from minigpt.checks.verdict import Wrong
from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.policies import computes_in
from minigpt.memory.predicted.start import start

knows(__name__, start)
NAMES = [field.name for field in fields(TrainingPlan)]
PLAIN = (int, float, str, bool, type(None))


@cache
def architecture(model: str) -> Architecture:
    return Architecture.of(model)


def plan_of(said: Mapping) -> TrainingPlan:
    """Built here, from values: nothing that the student's code could change afterwards."""
    for name, value in said.items():
        if name not in NAMES:
            near = difflib.get_close_matches(str(name), NAMES, 1)
            hint = f"; is {near[0]} meant?" if near else f"; it has {', '.join(NAMES[:6])} ..."
            raise Wrong("unknown-field", f"a plan has no field {show(name)}{hint}")
        if type(value) not in PLAIN:
            raise Wrong("wrong-type", f"{name} is {show(value)}, of type {type(value).__name__}; "
                        "a plan has whole numbers, texts and truth values")  # fmt: skip
    try:
        return TrainingPlan(**said)
    except ValueError as error:
        raise Wrong("refused", f"TrainingPlan refuses it: {error}") from None


def keeps(plan: TrainingPlan, situation: Situation) -> None:
    """Raises Wrong for the first rule that is broken."""
    if plan.card != situation.card:
        instead = "no card" if plan.card is None else f"the {plan.card}"
        raise Wrong("other-card", f"the plan is for {instead}; the card at hand is the {situation.card}: card=...")
    if plan.seq_len < situation.longest:
        cut = sum(count for length, count in situation.lengths if length > plan.seq_len)
        raise Wrong("documents-cut", f"rows of {plan.seq_len:,} tokens cut {cut:,} documents; the longest one has "
                    f"{situation.longest:,} tokens, and all of them are to be trained on")  # fmt: skip
    if plan.logits_to_keep:
        raise Wrong("tokens-dropped", f"with logits_to_keep={plan.logits_to_keep} the loss looks at the last "
                    f"{plan.logits_to_keep} tokens of a row; all of them are to be trained on")  # fmt: skip
    if plan.step != "steady":
        raise Wrong("other-step", f"step is {plan.step!r}; a whole training is asked for, which 'steady' stands for")
    _update(plan, situation)
    _trained(plan, situation)
    if computes_in(plan) == "bfloat16" and "bfloat16" not in GPUS[situation.card].formats:
        raise Wrong("emulated", f"the {situation.card} has no bfloat16: it is emulated, slowly, and no fused attention "
                    "takes it, so what the engine predicts would not hold; fp16 is native")  # fmt: skip


def _update(plan: TrainingPlan, situation: Situation) -> None:
    least, most = situation.documents
    mean, in_row = situation.documents_of(plan), situation.how_many / situation.rows(plan)
    what = f"an update is made of {mean:.1f} documents on average, and {least} to {most} are asked for"
    what += f" (rows in a pass: {plan.batch}, passes: {plan.accumulation}, documents in a row: {in_row:.1f})"
    if not least <= mean:
        raise Wrong("small-update", f"{what}; accumulation adds passes, and few bytes")
    if mean > most:
        raise Wrong("large-update", what)


def _trained(plan: TrainingPlan, situation: Situation) -> None:
    if plan.method == "full":
        weights = plan.regime.weights == 4 or plan.regime.float32_update or plan.optimizer == "kahan_adamw"
    else:
        weights = plan.adapter_dtype == "fp32"
    if not weights:
        raise Wrong("trained-in-16-bits", "what is trained is updated in 16 bits, where small steps are rounded away "
                    "(lesson 03); float32, or a float32 copy, is asked for")  # fmt: skip
    try:
        trained = trainable(plan, situation.model)
    except ValueError as error:
        raise Wrong("refused", f"the engine refuses this plan: {error}") from None
    if trained < situation.trained:
        raise Wrong("too-little-trained", f"{trained:,} parameters are trained; at least {situation.trained:,} are "
                    "asked for: a higher rank, or more matrices")  # fmt: skip


@remembered
def trainable(plan: TrainingPlan, model: str) -> int:
    """How many parameters take a gradient. Raises ValueError for what the engine refuses."""
    began = start(architecture(model), plan)
    trained = sum(value.numel for value in began.layers.trained)
    del began.tape.keep  # its own method: a cycle
    return trained
