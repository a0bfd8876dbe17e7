"""The figures of the audit of other texts' claims. content/README.md says how it uses them."""

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import PRECISIONS
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.sharded import communication
from minigpt.memory.units import GB, GIB, MB, gb
from tools.shown import shown

CELLS = ("setup", "several-cards", "two-cards", "minigpt-rows", "loader", "seventy", "eight-passes", "two-sizes")
made = shown("content/claims.md", *CELLS, given={})  # what the page's own cells come to
rank, two, qlora_70b, work, per_token = (made[name] for name in ("rank", "two", "qlora_70b", "work", "per_token"))

llama, qwen = Architecture.of("llama-7b"), Architecture.of("qwen3-8b")
P = llama.parameters
assert P == 6_738_415_616  # as the lesson has it
A100, RTX3090, RTX4080 = GPUS["A100 80GB"], GPUS["RTX 3090"], GPUS["RTX 4080"]


def step(model="llama-7b", **changes):
    return predict(model, TrainingPlan(**{**dict(batch=4, seq_len=512, precision="bf16"), **changes}), history=False)


def share(n, of, digits=2):
    return f"{100 * n / of:.{digits}f}%"


# Full fine-tuning of LLaMA-7B, 4 x 512 tokens.
full32, full_mixed, full16, full_master = (step(precision=p) for p in ("fp32", "bf16-adam32", "bf16", "bf16-master"))
full32_ck, mixed_ck = step(precision="fp32", checkpointing="full"), step(precision="bf16-adam32", checkpointing="full")
autocast = step(precision="bf16-autocast")
assert mixed_ck.peak.total == full_mixed.peak.total < A100.room < autocast.peak.total
lean = step(checkpointing="full", optimizer="adamw8bit", optimizer_in_backward=True)
many32 = step(precision="fp32", batch=32)
assert step(precision="fp32", accumulation=8).peak.total == full32.peak.total
tokens_adam = full32.ledger.optimizer / (full32.ledger.activations / 2048)
token16 = full16.ledger.activations / 2048  # bytes per token
eager = predict("llama-7b", TrainingPlan(batch=1, seq_len=2048, precision="bf16", attention="eager"), history=False)
grad16 = sum(recipe.gradients == 2 for recipe in PRECISIONS.values())
constant = (24 * llama.n_embd + 8 * llama.n_inner) / llama.n_embd  # lesson 05: a llama's block in bfloat16

# LoRA and QLoRA of LLaMA-7B, 4 x 512 tokens.
N, N_qv = (adapter_parameters(llama, 8, targets) for targets in ("all-linear", ("q_proj", "v_proj")))
N_qwen = adapter_parameters(qwen, 16, "all-linear")
for_1_percent = 0.01 * P / (N / 8)
lora, qlora = step(method="lora"), step(method="qlora")
lora_ck, qlora_ck = step(method="lora", checkpointing="reentrant"), step(method="qlora", checkpointing="reentrant")
one_ck = step(method="qlora", checkpointing="reentrant", batch=1)
dora = step(method="lora", variant="dora")
long_lora, long_ck = (step(method="lora", batch=1, seq_len=8192, checkpointing=kind) for kind in ("none", "reentrant"))
static_ratio = {name: full_master.ledger.persistent / s.ledger.persistent for name, s in (("l", lora), ("q", qlora))}
peak_ratio = full_master.peak.total / qlora.peak.total, full_master.peak.total / qlora_ck.peak.total
base_4bit = qlora.ledger.weights - 4 * N
nothing_on = {
    method: flops("llama-7b", TrainingPlan(method=method, batch=4, seq_len=512)) for method in ("full", "lora")
}
extra = {
    (method, kind): flops("llama-7b", TrainingPlan(method=method, batch=4, seq_len=512, checkpointing=kind)).extra
    for method, kind in (("full", "full"), ("full", "reentrant"), ("lora", "full"))
}


# On cards: one sequence of 2,048 tokens, with checkpointing.
def reserved(model, method, card):
    plan = TrainingPlan(method=method, batch=1, seq_len=2048, precision="bf16", checkpointing="reentrant", card=card)
    return reserve(model, plan)


lora_7b, lora_13b, qlora_13b = (
    reserved(model, method, "RTX 4090")
    for model, method in (("llama-2-7b", "lora"), ("llama-2-13b", "lora"), ("llama-2-13b", "qlora"))
)
assert lora_13b.failed and not lora_7b.failed and not qlora_13b.failed
full_13b = reserved("llama-2-13b", "full", "H200").reserved
t4_plan = TrainingPlan.like(
    "hf-trainer", method="qlora", targets="all-linear", batch=4, seq_len=512, precision="fp16", card="T4"
)
t4 = reserve("llama-7b", t4_plan)
assert not t4.failed

# Qwen3-8B, 20,000 tokens, the report's recipe.
recipe = {
    kind: predict(
        "qwen3-8b",
        TrainingPlan.like(
            "unsloth", batch=1, seq_len=20_000, optimizer="paged_adamw8bit", card="RTX 4080", checkpointing=kind
        ),
        history=False,
    )
    for kind in ("none", "reentrant", "offload")
}
reentrant = recipe["reentrant"].peak
assert reentrant.total > RTX4080.room > recipe["offload"].peak.total
shrunk = 2 * qwen.parameters / (reentrant.weights - 4 * N_qwen)
sent = {
    (kind, method): sum(
        one.sent
        for one in communication("llama-7b", TrainingPlan(method=method, precision="bf16", sharding=kind, ranks=2))
    )
    for kind, method in (("fsdp2", "full"), ("ddp", "lora"))
}
scores = 6 * 32 * 20_000**2  # one block's, eager: float32 and a 16-bit copy (lesson 05)

# LitGPT's minutes for 1,000 iterations (lesson 09), as tokens per second lost.
lost = [1 - 2.36 / minutes for minutes in (3.68, 3.83)]
