"""The numbers in the prose of lesson 11. content/README.md says how it uses them."""

import random
import re
import textwrap
from dataclasses import replace
from statistics import median

from minigpt.memory import predict
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.fits import RESERVED
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.plots.replayed import Replay
from minigpt.memory.predicted.allocator import Allocator, Options, OutOfMemoryError
from minigpt.memory.predicted.reserved import counted, history
from minigpt.memory.units import GIB, MIB
from tools.published import published_rows
from tools.shown import shown

# Readings of a T4: allocated, reserved, and the context, in MiB.
readings = []
for row in published_rows():
    both = re.search(r"original ([\d.]+) MiB alloc / ([\d.]+) MiB reserved", row["notes"])
    if both and row["kind"] == "allocated":
        beyond = re.search(r"process = reserved \+ ([\d.]+) MiB context", row["notes"])
        readings.append((float(both[1]), float(both[2]), float(beyond[1])))
rows = len(readings)
read_allocated, read_reserved, context = readings[0]
read_process = read_reserved + context
assert len({reading[2] for reading in readings}) == 1  # "in each of fitcheck's readings"
assert round(context) == 141  # the run's, in the lesson's cell
shares = [reading[1] / reading[0] - 1 for reading in readings]
least, middle, most = min(shares), median(shares), max(shares)
assert [round(share, 2) for share in (least, middle, most)] == list(RESERVED)
context_a100 = 501  # fits.py
workspace = f"{GPUS['T4'].workspace / MIB:.3f} MiB"

# The run that fails: the lesson's own cells.
given = dict(
    random=random, textwrap=textwrap, GPUS=GPUS, TrainingPlan=TrainingPlan, Replay=Replay, Options=Options, MIB=MIB,
    OutOfMemoryError=OutOfMemoryError, Allocator=Allocator,
)  # fmt: skip
made = shown("content/lessons/11-allocator.md", "card", "lengths", "failing", "cures", "both-options", given=given)
train, lengths, run = (made[name] for name in ("train", "lengths", "run"))
ran, table, card = made["ran"], made["table"], GPUS["T4"].vram
t4_gib = card / GIB
assert made["done"] == 10 and lengths[10] == 760 == max(lengths) and 760 not in lengths[:10]
WORDS = {
    "tried": "Tried to allocate ([^.]+[.][0-9]+ [A-Za-z]+)",
    "capacity": "total capacity of ([0-9.]+ [A-Za-z]+)",
    "free": "of which ([0-9.]+ [A-Za-z]+) is free",
    "own": "this process has ([0-9.]+ [A-Za-z]+) memory",
    "allocated": "allocated memory ([0-9.]+ [A-Za-z]+) is",
    "unallocated": "and ([0-9.]+ [A-Za-z]+) is reserved",
}
said = {name: re.search(pattern, ran["as they come"][1])[1] for name, pattern in WORDS.items()}
assert ran["as they come"][1] == made["failed"]
statistics = run.allocator.statistics
logits = 4 * 8 * 760 * 49_152  # SmolLM2's vocabulary
assert f"{-(-logits // (2 * MIB)) * 2 * MIB / GIB:.2f} GiB" == said["tried"]
would = (statistics.allocated.current + logits) / GIB
assert would * GIB < card - 141 * MIB  # "less than the card has"
assert statistics.reserved.current - statistics.allocated.current == run.allocator.inactive_split  # "cannot give back"
stream = 4 * 8 * 760 * 576 / MIB
largest, second = sorted((block.size / MIB for block in run.allocator.large.freed()), reverse=True)[:2]
assert second < stream < 20 < 22 < 2 * stream
taken = [segment.size // MIB for segment in run.allocator.segments.values() if not segment.pool.small]
assert taken.count(20) + taken.count(22) > 0.7 * len(taken)  # "most of them"
free_in_all = run.allocator.device.free + run.allocator.inactive_split
assert free_in_all > logits

one_length = train([596] * 3)[0]
masked, unmasked = (
    predict("smollm2-135m", replace(made["plan"], seq_len=596, sequences=kind), history=False).peak.total / MIB
    for kind in ("padded", "plain")
)
one_by_one = unmasked - masked
assert one_by_one > 1000
idle = 1 - one_length.allocator.statistics.allocated.current / one_length.allocator.statistics.reserved.current

same_length = one_length.allocator.statistics.reserved.peak / one_length.allocator.statistics.allocated.peak - 1
assert one_length.peaks()[1] == one_length.peaks()[2]
assert train([760, 760])[1] is None

# empty_cache, and the cures.
epoch_run = train(lengths[:6])[0].allocator.statistics
epoch_allocated, epoch_reserved = (counter.current / MIB for counter in (epoch_run.allocated, epoch_run.reserved))
runs = {name: one[1] is None for name, one in ran.items()}
assert [name for name, good in runs.items() if not good] == ["as they come", "sorted, shortest first"]
cleared = ran["empty_cache between steps"][0].allocator.statistics
spare_empty = (card - 141 * MIB - cleared.reserved.peak) / MIB
again = {}
for clears in (False, True):
    caught = train(lengths)[0]
    caught.forget()
    if clears:
        caught.empty_cache()
    try:
        caught.step(760)
        again[clears] = "runs"
    except OutOfMemoryError:
        again[clears] = "fails again"
assert again == {False: "fails again", True: "runs"}


def evaluated(samples, options=None, **words):
    """An evaluation after two steps, and another step: its peaks before, in and after it, in MiB; None if it fails."""
    one = train([596] * 2, options)[0]
    try:
        one.evaluate(Evaluation(samples, **words)).step(596)
    except OutOfMemoryError:
        return None
    return [[nbytes / MIB for nbytes in pair] for pair in one.peaks()[1:]]


(step_allocated, step_reserved), (set_allocated, set_reserved) = evaluated(64)[:2]
set_batch = 4 * 8 * 256 * 49_152 / MIB
assert step_reserved < 0.85 * set_reserved and set_reserved > (card / MIB - 141) * 0.98  # "a full card"
assert 0.45 < set_allocated / set_reserved < 0.55  # "half of it"
many_allocated = evaluated(136, Options(expandable_segments=True))[1][0]
assert evaluated(136) is None and many_allocated < card / MIB - 141
sent, alone = evaluated(64, eval_accumulation_steps=2), evaluated(64, prediction_loss_only=True)
assert {pair[1] for pair in alone} == {step_reserved} == {sent[0][1]} and sent[2][1] < step_reserved

# A card on which a run fits, and a larger one on which it fails.
small = TrainingPlan(batch=2, seq_len=256, method="lora", precision="fp16", card="T4")
told = history("gpt2", small)
fits_on, fails_on = 974, 1030
assert not counted(told, fits_on * MIB).failed
always_on = next(mib for mib in range(fails_on, fails_on + 100) if not counted(told, mib * MIB).failed)
assert always_on > fails_on


def gone(capacity):
    """When segments first went back to the card, how many and how many MiB."""
    one = Replay("gpt2", small, capacity=capacity * MIB)
    try:
        one.step().step()
    except OutOfMemoryError:
        pass
    at = min(taken.died for taken in one.segments if taken.died is not None)
    sizes = [taken.size // MIB for taken in one.segments if taken.died == at]
    return len(sizes), sum(sizes), [name for name, began in one.marks if began <= at][-1]


early, late = gone(fits_on), gone(fails_on)
assert (early[2], late[2]) == ("forward", "backward") and late[1] < 4 * 2 * 256 * 50_257 / MIB


def survives(longest):
    """Which cures run when the longest text has this many tokens."""
    with_it = [longest if length == 760 else length for length in lengths]
    falling = [longest if length == 760 else length for length in made["falling"]]
    ways = {
        "`empty_cache` between steps": train(with_it, between=Replay.empty_cache),
        "the longest length first": train([longest, *with_it]),
        "sorted, longest first": train(falling * 2),
        "expandable segments": train(with_it, Options(expandable_segments=True)),
    }
    return {name: "fails" if one[1] else "runs" for name, one in ways.items()}


tried = {longest: survives(longest) for longest in (780, 790, 800)}
assert set(tried[800].values()) == {"runs", "fails"} and tried[800]["expandable segments"] == "runs"
longest_table = "\n".join(
    ["| | 780 | 790 | 800 |", "| --- | --- | --- | --- |"]
    + [f"| {name} | " + " | ".join(tried[n][name] for n in tried) + " |" for name in tried[780]]
)

few = Allocator()
assert len(list(map(few.allocate, [3 * MIB] * 24))) == 24
weights_24 = [counter.current // MIB for counter in (few.statistics.allocated, few.statistics.reserved)]

published = {0: (66, 220), 20: (106, 2980), 40: (146, 5760), 60: (186, 8520), 80: (226, 11300), 100: (266, 14060)}
assert {turn: table[turn] for turn in published} == published
stuck = run.allocator.inactive_split / statistics.reserved.current
assert stuck < 0.2 < idle
verdicts = "\n".join(
    [
        "- **A is right**, both halves. The card has no more memory than before, and in part 6 the run that failed "
        "went through: pieces beside used ones could not go back, but whole segments went back at a better moment.",
        f"- **B is wrong**, both ways. Between two steps of a run that goes well {idle:.0%} of what is reserved is "
        f"free and waits for the next step. Where fragmentation did end a run, it was {stuck:.0%}. The message tells: "
        "is what is reserved but unallocated, with what is free, more than what was asked for?",
        "- **C is right where fragmentation is the reason**, as in part 7. The page also says that it costs no time, "
        "which nothing here can test. Where the tensors do not fit, it changes nothing.",
        f"- **D is right**, to the MiB: {table[0][1]:,} after the first round, {table[100][1]:,} after 100. A block of "
        "more than 128 MiB may not be cut for a smaller request, and joined free pieces of an expandable segment are "
        "such a block. So do not combine the two.",
        f"- **E is right**: in part 1 they are {read_reserved:,.0f} and {read_process:,.0f} MiB, apart by the context. "
        "(It holds for the peak; `nvidia-smi` shows the present, and remembers no peak.)",
    ]
)
