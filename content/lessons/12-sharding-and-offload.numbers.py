"""The numbers in the prose of lesson 12. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import CONTEXT, GPUS
from minigpt.memory.predicted.offload import least_batch, traffic
from minigpt.memory.predicted.sharded import communication
from minigpt.memory.units import GB, gb
from minigpt.model import GPTConfig
from tools.shown import shown

nano = GPTConfig.preset("nano")
one = dict(batch=1, seq_len=64, optimizer_loop="single")
single = predict(nano, TrainingPlan(**one))
fsdp, kept_fsdp, ddp, views = (
    predict(nano, TrainingPlan(**one, ranks=2, **choices))
    for choices in (
        dict(sharding="fsdp2"),
        dict(sharding="fsdp2", reshard_after_forward=False),
        dict(sharding="ddp"),
        dict(sharding="ddp", gradient_as_bucket_view=True),
    )
)
parameters = Architecture.of(nano).parameters
weights, state = 4 * parameters, single.ledger.optimizer
whole = 2 * weights + state
assert ddp.peak.total > single.peak.total and 0 < ddp.peak.total - views.peak.total < weights  # "falls by less"
last = ddp.timeline()[-1][1].total - views.timeline()[-1][1].total
assert abs(last / weights - 1) < 0.1  # "the third copy is gone between steps"

# The peak of FSDP: the lesson's formula, and A for every number of ranks.
above = shown("content/lessons/12-sharding-and-offload.md", "formula", given={})["above"]
block_numbers = 12 * nano.n_embd**2 + 2 * nano.n_embd
root_numbers = parameters - nano.n_layer * block_numbers
block, head = 4 * block_numbers, 4 * nano.vocab_size * nano.n_embd
rest = set()
for ranks in (2, 4, 8):
    step = predict(nano, TrainingPlan(**one, sharding="fsdp2", ranks=ranks))
    static = step.ledger.weights + step.ledger.optimizer
    done = step.peak.gradients // (block // ranks)
    rest.add(step.peak.total - static - above(block, done, ranks, 4 * root_numbers, head))
assert len(rest) == 1 and min(rest) > 0 and "block 2" in step.peak_at
three_ranks = nano.n_layer * -(-block_numbers // 3) + -(-root_numbers // 3)

# What is sent: 2 units, 2, 2 and nearly 3; 2 without a second gathering.
unit = weights / 2


def sent(**choices):
    return sum(call.sent for call in communication(nano, TrainingPlan(**one, ranks=2, **choices))) / unit


assert [sent(sharding=kind) for kind in ("ddp", "zero1", "zero2")] == [2, 2, 2]
assert 2.9 < sent(sharding="fsdp2") < 3 and sent(sharding="fsdp2", reshard_after_forward=False) == 2

# Llama-2 on several cards.
big = dict(batch=1, seq_len=2048, checkpointing="full")
seventy = Architecture.of("llama-2-70b").parameters
codes = Architecture.of("llama-2-70b").linear_parameters / 2  # bytes of 4-bit weights


def peak(model, sharding, ranks, **more):
    choices = dict(precision="bf16", optimizer_loop="fused") | more
    return predict(model, TrainingPlan(**big, sharding=sharding, ranks=ranks, **choices)).peak.total


def fits(nbytes, card):
    return 1.12 * nbytes + CONTEXT < GPUS[card].vram


lean = peak("llama-2-7b", "fsdp2", 8)
mixed = peak("llama-2-7b", "fsdp2", 8, precision="fp32", param_dtype="bf16", reduce_dtype="fp32")
assert fits(peak("llama-2-7b", "fsdp2", 2), "A100 40GB") and not fits(peak("llama-2-70b", "zero2", 8), "H200")
assert fits(peak("llama-2-70b", "fsdp2", 8), "H200") and not fits(peak("llama-2-70b", "fsdp2", 8), "A100 80GB")
assert not fits(peak("llama-2-70b", "fsdp2", 4), "H200")  # "eight of the largest alone"
assert peak("llama-2-70b", "zero3", 8) < peak("llama-2-70b", "fsdp2", 8)
half_from = next(
    ranks
    for ranks in (2, 4, 8, 16, 32, 64, 128)
    for step in [predict("llama-2-7b", TrainingPlan(**big, precision="bf16", sharding="fsdp2", ranks=ranks))]
    if step.ledger.persistent < step.peak.total / 2
)

double = f"{1 / 64 + 4 / 16384:.4f}"

# Offload.
A100, RTX = GPUS["A100 80GB"], GPUS["RTX 4090"]
bus, memory, speed = (f"{value:.0f}" for value in (A100.bus / GB, A100.bandwidth / GB, A100.half / 1e12))
bus_4090, speed_4090 = f"{RTX.bus / GB:.0f}", f"{RTX.half / 1e12:.0f}"
tokens_a100, tokens_4090 = (f"{0.3 * 10 * 0.5 * card.half / (6 * 2 * card.bus):,.0f}" for card in (A100, RTX))
DEEP, OWN = dict(precision="bf16-master"), dict(shard_offload="parameters")
RECIPES = (
    dict(sharding="zero2", shard_offload="optimizer", **DEEP),
    dict(sharding="zero3", shard_offload="optimizer", **DEEP),
    dict(sharding="zero3", **OWN, **DEEP),
    dict(sharding="fsdp2", precision="bf16", **OWN),
    dict(sharding="fsdp2", param_dtype="bf16", **OWN),
)
moving = dict(ranks=2, batch=1, seq_len=1, card="A100 80GB")
shard = Architecture.of("llama-2-7b").parameters / 2
moved = [
    sum(crossing.nbytes for crossing in traffic("llama-2-7b", TrainingPlan(**moving, **recipe))) / shard
    for recipe in RECIPES
]
assert [round(b) for b in moved] == [6, 10, 12, 6, 12]
least_moved, most_moved = round(min(moved)), round(max(moved))
tokens, tokens_cpu = (
    least_batch("llama-2-7b", TrainingPlan(**moving, **RECIPES[1]), 0.3, host=host) for host in (None, 50 * GB)
)

# The audit.
home = dict(sharding="fsdp2", ranks=2, precision="bf16", checkpointing="full", method="qlora", card="RTX 4090",
            kbit_preparation=False, adapter_dtype="same")  # fmt: skip


def at_home(batch, seq_len, **more):
    return predict("llama-2-70b", TrainingPlan(**home, batch=batch, seq_len=seq_len, **more))


inside, outside, short = (
    at_home(2, 2048, rank=64),
    at_home(2, 2048, rank=64, shard_offload="parameters"),
    at_home(1, 1024),
)
assert inside.card.failed and not outside.card.failed and not short.card.failed
buckets = {
    (loop, views): predict(
        "llama-2-7b",
        TrainingPlan(batch=1, seq_len=512, precision="bf16", sharding="ddp", ranks=2, optimizer_loop=loop,
                     gradient_as_bucket_view=views),
    ).peak.total
    for loop in ("single", "foreach")
    for views in (False, True)
}  # fmt: skip
lost = {loop: buckets[loop, False] - buckets[loop, True] for loop in ("single", "foreach")}
gained = f"{(ddp.peak.total - views.peak.total) / weights:.0%}"
verdicts = f"""\
- **A is right for what stays**, and says nothing of the peak: four blocks, the root, activations and logits come on
  top, and in 4 bits the scales are on every card. `nano` on two ranks keeps half, and peaks at
  {fsdp.peak.total / single.peak.total:.0%} of one process.
- **B is right under a condition**: fewer than some {tokens:,} tokens per card, for Llama-2-7B on two A100 with
  DeepSpeed's third stage; with an update by the CPU at 50 GB per second, which the text leaves out, {tokens_cpu:,}.
  That transfers take longer than products makes a card wait. For how long, only the two numbers say.
- **C is right for very many cards, and for what stays.** On 8 the first stage gives 2.9 and the second 4.3. State
  is 12 bytes of 16 there, the float32 master copy included; with float32 weights (16 = 4 + 4 + 8) the limits are 2
  and 4. What it says of traffic, 3 units for 2, is right.
- **D is right with parameters offloaded**, as [its own command](https://github.com/AnswerDotAI/fsdp_qlora) has it:
  two sequences of 2,048 tokens on each card peak at {gb(outside.peak.total)}. Without offload that is
  {gb(inside.peak.total)} and runs out; one sequence of 1,024 tokens, {gb(short.peak.total)}, would just fit.
- **E is right where the peak comes when all gradients are there**: LLaMA-2-7B has {gb(2 * 2 * shard)} of them, and
  saves {gb(lost["foreach"])} with `foreach` and {gb(lost["single"])} with one update at a time. `nano` saved
  {gained} of its gradients: those that are there from forward on meet the activations."""
