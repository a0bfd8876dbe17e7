"""The numbers in the prose of lesson 06. content/README.md says how it uses them."""

import math

import torch

from minigpt.checkpointing import POLICIES
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.predicted.flops import flops
from minigpt.memory.saved import saved_by_block
from minigpt.memory.units import gb, mb
from minigpt.model import GPTConfig

llama = Architecture.of("llama-7b")
C, I, V, P = llama.n_embd, llama.n_inner, llama.vocab_size, llama.parameters
ON = dict(checkpointing="full")


def step(model, method="full", **changes):
    precision = "fp32" if model == "gpt2" else "bf16"
    return predict(model, TrainingPlan(**{**dict(batch=4, seq_len=512, method=method, precision=precision), **changes}))


# b: what a block saves, in units of its input, and how many blocks there are.
ratios = {}
for name in ("gpt2", "qwen2.5-0.5b", "llama-7b", "llama-65b"):
    plan = TrainingPlan(seq_len=512, precision="fp32" if name == "gpt2" else "bf16")
    width = 4 if name == "gpt2" else 2
    model = Architecture.of(name)
    saved = sum(row.counted for row in saved_by_block(name, plan))
    ratios[name] = saved / (width * model.n_embd * plan.tokens)
    assert (model.n_layer < 2 * ratios[name]) == (name != "llama-65b")
assert all(16 <= b <= 32.1 for b in ratios.values())
b = ratios["llama-65b"]
assert 0.16 < 1 - (40 + 2 * b) / (80 + b) < 0.18  # "a sixth"

adapted = TrainingPlan(seq_len=512, precision="bf16", method="lora")
b = sum(row.counted for row in saved_by_block("llama-65b", adapted)) / (2 * Architecture.of("llama-65b").n_embd * 512)
lora_gain = f"{100 * (1 - (40 + 2 * b) / (80 + b)):.0f}%"
assert b > ratios["llama-65b"] and round(ratios["gpt2"]) == 28

# Rows of k blocks: the last over all inputs, or the first over the others' gradients; in u, 8 sequences of 256 tokens.
for depth, tall in ((16, 4), (36, 6), (64, 8)):
    rowed = GPTConfig(n_layer=depth, n_embd=96, n_head=3)
    peak = predict(rowed, TrainingPlan(batch=8, seq_len=256, optimizer="sgd", checkpointing="sqrt")).peak
    by_hand = max(depth / tall + 16 * tall + 4, 1 + 16 * tall + 4 + (depth - tall) * 12 * 96 / 2048)
    assert abs(by_hand * 4 * 2048 * 96 / (peak.total - peak.weights) - 1) < 0.01
assert round(1 + 128 + 4 + 56 * 12 * 96 / 8192) == 141  # answer 1, on 32 sequences

# The bus: two copies in a step of three forwards (LoRA) or four.
on_a100 = {}
for method, forwards in (("lora", 3), ("full", 4)):
    work = flops("llama-7b", TrainingPlan(batch=8, seq_len=2048, method=method, precision="bf16", **ON))
    assert abs(work.total / work.forward - forwards) < 0.2
    share = 2 * (2 * C / 32e9) / (2 * (4 * C**2 + 3 * C * I) / 312e12) / forwards
    on_a100[method] = f"{100 * share:.0f}"

# Prices: a third and a half are never reached.
extra = {
    (name, method): flops(name, TrainingPlan(batch=4, seq_len=512, method=method, precision="bf16", **ON)).extra
    for name, method in (("gpt2", "full"), ("llama-7b", "full"), ("llama-7b", "lora"), ("qwen2.5-0.5b", "lora"))
}
assert all(share < (1 / 3 if case[1] == "full" else 1 / 2) for case, share in extra.items())
seven_full = f"{100 * extra['llama-7b', 'full']:.0f}"

# The frontier: who needs more bytes and more work than another policy.
deep = GPTConfig(n_layer=16, n_embd=96, n_head=3)
work, held = {}, {}
for kind in POLICIES:
    plan = TrainingPlan(batch=8, seq_len=256, optimizer="sgd", checkpointing=kind)
    work[kind], peak = flops(deep, plan).extra, predict(deep, plan).peak
    held[kind] = peak.total - peak.weights
held["offload"] -= 4 * 8 * 256 * 96 * 16  # on the CPU's side
beaten = {a for a in POLICIES for b in POLICIES if work[a] > work[b] and held[a] > held[b]}
assert beaten == {"sqrt", "reentrant"} and round(held["sqrt"] / held["full"]) == 2
slowest = {kind: f"{100 * work[kind]:.0f}" for kind in ("reentrant", "sqrt")}
assert sorted(work, key=work.get)[-2:] == ["sqrt", "reentrant"] and work["selective"] == 0

# Where it does not help.
gpt2 = dict(batch=8, seq_len=1024)
kept = 1 - step("gpt2", **gpt2, **ON).ledger.activations / step("gpt2", **gpt2).ledger.activations
assert round(100 * kept) == 80 and 16 <= 12 * 50257 / (12 * 4 * 768) < 17
assert step("llama-7b").peak.total == step("llama-7b", **ON).peak.total
assert step("llama-7b", batch=8, seq_len=2048, **ON).peak.total < step("llama-7b", batch=8, seq_len=2048).peak.total

# The audit.
seven = {m: (step("llama-7b", m), step("llama-7b", m, **ON)) for m in ("full", "qlora")}
one = dict(batch=1, seq_len=512)
seven["lora"] = (step("llama-7b", "lora", **one), step("llama-7b", "lora", **one, **ON))


def times(of, method):
    return of(seven[method][0]) / of(seven[method][1])


more = extra["llama-7b", "lora"]
open_block = 12 + 4 * I / C
rows = {"one": 48 + open_block, "root": 48 / 7 + 7 * open_block, "none": 48 * open_block}
inputs = 36 * 131072 * 4096 * 2
qwen = Architecture.of("qwen3-8b")
assert (qwen.n_layer, qwen.n_embd) == (36, 4096) and round(inputs / 2**30) == 36
fell = {m: 1 - after.peak.total / before.peak.total for m, (before, after) in seven.items()}
assert 0.6 < fell["qlora"] < 0.8 and fell["full"] == 0
verdicts = "\n".join(
    [
        f"- **A is wrong here.** The activations fall {times(lambda s: s.ledger.activations, 'lora'):.0f}-fold, the "
        f"peak {times(lambda s: s.peak.total, 'lora'):.1f}-fold: the weights and the logits stay. The claim is about "
        "networks whose memory is nearly all activations, and about their size.",
        f"- **B is wrong for LoRA**: {100 * more:.0f}% more FLOPs. For full fine-tuning {seven_full}%, so 20% is not "
        "far off where a step has other work, too. (accelerate's reading above: 28%.)",
        f"- **C is wrong.** 48 inputs are kept, and one block: {rows['one']:.0f} of {rows['none']:.0f}, "
        f"{100 * (1 - rows['one'] / rows['none']):.0f}% less. With $\\sqrt{{48}}$ it would be {rows['root']:.0f}, "
        f"which happens to be {100 * (1 - rows['root'] / rows['none']):.0f}% less.",
        f"- **D is right for this QLoRA**, {100 * fell['qlora']:.0f}%, and wrong for full fine-tuning, where the peak "
        "is in the optimizer's step: 0%.",
        f"- **E is right**, and GB means GiB: $36 \\cdot 131072 \\cdot 4096 \\cdot 2$ bytes are {gb(inputs)}.",
    ]
)

random_state = torch.get_rng_state().nbytes  # what a checkpoint keeps of the CPU's generator

# Try it.
assert math.isqrt(64 // 16) == 2 and 16 * deep.n_layer + 2 + 3 * deep.vocab_size / deep.n_embd == 266
step_needs = 4 * P
per_token = 32 * (24 * C + 8 * I) + 8 * C + 12 * V
tokens_meet = step_needs / per_token
helps_from = f"{round(tokens_meet, -2):,.0f}"


def long(tokens):
    return predict("llama-7b", TrainingPlan(precision="bf16", seq_len=tokens))


read = {tokens: long(tokens).peak.total for tokens in (4352, 4608)}  # at the loss: a line in the tokens
slope = (read[4608] - read[4352]) / 256
small = slope - per_token
meet = math.ceil(4352 - (read[4352] - long(4096).peak.total) / slope)
assert 0 < small < 5000 and 0 <= tokens_meet - meet < 5
assert "adamw" in long(meet - 1).peak_at and "log_softmax" in long(meet).peak_at
