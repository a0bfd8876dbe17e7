"""The numbers in the prose of lesson 10. content/README.md says how it uses them."""

import math

from minigpt.base import base_record
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import GB

llama = Architecture.of("llama-7b")
P, C, I, L, V = llama.parameters, llama.n_embd, llama.n_inner, llama.n_layer, llama.vocab_size
tokens_of_base = round(base_record()["tokens"] / 1e6)
r = 1024
rest = P - llama.linear_parameters  # embedding, head and norms: AdamW keeps their moments whole


def step(model="llama-7b", seq_len=256, **choices):
    return predict(model, TrainingPlan(**{**dict(batch=1, seq_len=seq_len, precision="bf16"), **choices}))


galore = dict(optimizer="galore", rank=r)
adam, eight, projected, lora = (
    step(**choices) for choices in ({}, dict(optimizer="adamw8bit"), galore, dict(method="lora", rank=8))
)
fused = step(optimizer_loop="fused")
assert adam.peak.total - fused.peak.total > 13.4 * GB  # most of `foreach`'s copy
assert round(100 * (1 - projected.peak.total / fused.peak.total)) == 32
early = step(**galore, optimizer_in_backward=True)
assert projected.ledger.optimizer == 2 * (r * L * (15 * C + 6 * I) + 2 * rest)
assert early.ledger.gradients == 2 * V * C  # the largest gradient, the head's
assert abs(early.peak.total - projected.peak.total + 11.7 * GB) < 0.05 * GB

# A projection anew: its factors, beside what the largest update makes.
refresh, early_refresh = step(**galore, step="refresh"), step(**galore, step="refresh", optimizer_in_backward=True)
assert refresh.peak.total == projected.peak.total and early_refresh.peak.total == early.peak.total
long = {
    kind: step(seq_len=2048, checkpointing="full", optimizer_in_backward=True, step=kind, **galore)
    for kind in ("steady", "refresh")
}
assert 0 < long["refresh"].peak.total - long["steady"].peak.total < 0.1 * GB

# galore-torch: a view keeps all of the factor, and an update makes two tensors like the weight.
viewed, ours = 4 * C * C, 4 * C * r
whole = 2 * 4 * C * I

# 8-bit GaLore by hand: P in bfloat16, moments in one byte with a float32 scale for 256 of them.
byte = 1 + 4 / 256


def eight_bit(rank):
    """Bytes of 8-bit GaLore's state of LLaMA-7B."""
    return 2 * rank * L * 7 * C + byte * (2 * rank * L * (4 * C + 3 * I) + 2 * rest)


def in_eight_bits(plan_step):
    """The peak of a step of GaLore at rank 1024, if its state were in 8 bits."""
    return plan_step.peak.total - projected.ledger.optimizer + eight_bit(r)


saved = 1 - projected.ledger.optimizer / adam.ledger.optimizer
saved_eight = 1 - eight_bit(r) / adam.ledger.optimizer
claimed_from = (0.175 * adam.ledger.optimizer - byte * 2 * rest) / ((eight_bit(r) - byte * 2 * rest) / r)
assert 0.645 < saved < 0.655 and 800 < claimed_from < 850
lora_wide = step(method="lora", rank=r)
small = in_eight_bits(early)
many = in_eight_bits(step(seq_len=2048, optimizer_in_backward=True, **galore))
card = GPUS["RTX 4090"].vram
assert small < early.peak.total < card < many

factory = dict(seq_len=1024, checkpointing="full")
factory_eight = step(optimizer="adamw8bit", **factory)
within = math.ceil(100 * (1 - factory_eight.peak.total / (42 * GB)))
factory_galore = factory_eight.peak.total - factory_eight.ledger.optimizer + eight_bit(32)
assert abs(factory_eight.peak.total / (42 * GB) - 1) < 0.04 and abs(factory_galore / (28 * GB) - 1) < 0.02

# Try it
mistral = Architecture.of("mistral-7b")
mistral_rest = mistral.parameters - mistral.linear_parameters
mistral_state = 2 * (r * 32 * (2 * 3 * C + 2 * (1024 + 2 * C) + 3 * (C + 2 * 14336)) + 2 * mistral_rest)
assert mistral_state == step("mistral-7b", **galore).ledger.optimizer
