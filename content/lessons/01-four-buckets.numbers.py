"""The numbers in the prose of lesson 01. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import GIB, gb

llama = Architecture.of("llama-7b")
P, V, C, I, L = llama.parameters, llama.vocab_size, llama.n_embd, llama.n_inner, llama.n_layer
block = 4 * C * C + 3 * C * I + 2 * C
assert 2 * V * C + L * block + C == P == 6738415616
n_tensors = len(llama.tensors())
B, T = 4, 512
plan = TrainingPlan(batch=B, seq_len=T, precision="bf16", holds="outputs", use_cache=True)
step = predict(llama, plan)
lean = predict(llama, TrainingPlan(batch=B, seq_len=T, precision="bf16", optimizer_loop="fused"))
fp32 = predict(llama, TrainingPlan(batch=B, seq_len=T, precision="fp32"))
sgd = predict(llama, TrainingPlan(batch=1, seq_len=T, precision="bf16", optimizer="sgd"))
adam32 = predict(llama, TrainingPlan(batch=B, seq_len=T, precision="bf16-adam32"))
folk_product = B * T * C * L * 4
saved_by_block = 4 * B * T * (10 * C + 4 * I) + 4 * B * T * (2 + llama.n_head)
outside = fp32.ledger.activations - L * saved_by_block
log_softmax, last_norm = 4 * B * T * V, 4 * B * T * 3 * C
assert 0 < outside - log_softmax - last_norm < 10**6
P13 = Architecture.of("llama-13b").parameters
P8 = Architecture.of("llama-3-8b")
a100, a6000, l4, rtx = (GPUS[name].vram for name in ("A100 80GB", "RTX A6000", "L4", "RTX 3090"))
peft_P, peft_measured = 3212749824, 24.274 * GIB


def row(switch, **changes):
    switches = dict(batch=B, seq_len=T, precision="bf16", holds="outputs", use_cache=True)
    made = predict(llama, TrainingPlan(**{**switches, **changes}))
    return f"| {switch} | {gb(made.ledger.activations)} | {gb(made.peak.total)} | {made.peak_at} |"


switches = "\n".join(
    [
        row("none"),
        row('`holds="loss"`', holds="loss"),
        row("`use_cache=False`", use_cache=False),
        row('`optimizer_loop="fused"`', optimizer_loop="fused"),
        row('`attention="eager"`', attention="eager"),
        row("`batch=8`", batch=8),
    ]
)
