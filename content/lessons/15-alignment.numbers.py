"""The numbers in the prose of lesson 15. content/README.md says how it uses them."""

from dataclasses import replace

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.fits import RESERVED
from minigpt.memory.gpus import CONTEXT, GPUS
from minigpt.memory.predicted.alignment import rollouts
from minigpt.memory.predicted.alignment.copies import held, total
from minigpt.memory.predicted.alignment.dpo import predict_dpo
from minigpt.memory.units import GB, GIB, MB
from minigpt.model import GPTConfig

one, eight = "llama-3.2-1b", "llama-3-8b"
stays = {method: total(held(one, TrainingPlan(), method)) for method in ("sft", "reward", "dpo", "ppo")}
assert abs(stays["dpo"] / stays["sft"] - 1.25) < 0.001 and abs(stays["ppo"] / stays["sft"] - 2.5) < 0.001

# The step of MiniGPT in part 3.
nano = GPTConfig.preset("nano")
by_hand = TrainingPlan(batch=4, seq_len=128)
adapted = replace(by_hand, method="lora")
steps = {
    "copy": predict_dpo(nano, by_hand, reference="copy", prompt=64),
    "precomputed": predict_dpo(nano, by_hand, reference="precomputed", prompt=64),
    "adapter": predict_dpo(nano, adapted, reference="adapter", prompt=64),
}
weights = 4 * Architecture.of(nano).parameters
assert steps["copy"].ledger.weights == 2 * weights
assert steps["copy"].peak.total - steps["precomputed"].peak.total > weights - 1000

# Logits: Qwen2.5-0.5B, 16 sequences of 1,024.
qwen = "qwen2.5-0.5b"
V = Architecture.of(qwen).vocab_size
qwen_weights = 4 * Architecture.of(qwen).parameters
copy_of_logits = rollouts.logits(qwen, 16, 1024)
assert copy_of_logits == 16 * 1024 * V * 4 == 9_957_277_696
tile = rollouts.tile(16 * 1024)
assert tile == 4096 * 32_768 * 2

# Rollouts.
per_token = rollouts.cache_per_token(eight)
assert per_token == 2 * 32 * 8 * 128 * 2
cache = rollouts.cache(eight, 8, 1024)
assert rollouts.cache("llama-7b", 8, 1024) == 4 * cache

# What fits 24 GiB.
card = GPUS["RTX 4090"]
room = card.vram - CONTEXT


def plan(method: str, batch: int = 1) -> TrainingPlan:
    own = dict(precision="bf16-autocast", autocast=False) if method == "full" else {}
    return TrainingPlan.like("trl-sft", method=method, batch=batch, seq_len=1024, **own)


full_sft = predict(one, plan("full")).peak.total
full_dpo = predict_dpo(one, plan("full"), prompt=512).peak.total
full_pre = predict_dpo(one, plan("full"), reference="precomputed", prompt=512).peak.total
assert full_sft < room < full_dpo and full_pre < room
idle = sum(ledger.total for role, ledger in held(eight, plan("lora"), "ppo").items() if role != "policy")
assert 0.05 * GB < idle < 0.1 * GB
lora_dpo = predict_dpo(eight, plan("lora"), reference="adapter", prompt=512).peak.total
lora_grpo = predict(eight, plan("lora", 8)).peak.total
assert lora_dpo < lora_grpo < room

least, most = round(100 * RESERVED[0]), round(100 * RESERVED[2])

# The audits.
claimed_cache = rollouts.cache(eight, 1, 20_480) / GIB
claimed_logits = rollouts.logits(eight, 8, 20_480) / GIB
assert round(claimed_cache, 2) == 2.5 and round(claimed_logits, 1) == 78.3
openrlhf = 16 * 1024 * 32_768 * 4
assert round(openrlhf / GB, 1) == 2.1
assert round(openrlhf / MB) == 2147

# Try it: the cache is larger than the weights.
assert rollouts.cache("llama-3.2-3b", 16, 5120) > 2 * Architecture.of("llama-3.2-3b").parameters
leaner = round(100 * 4 / (4 + 4 + 2.03))  # with 8-bit AdamW
