"""The numbers in the prose of lesson 01. content/README.md says how it uses them."""

from dataclasses import replace

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.calculator.choice import Answer, Choice
from minigpt.memory.gpus import GPUS
from minigpt.memory.saved import saved_by_block
from minigpt.memory.units import GB, GIB, gb

llama = Architecture.of("llama-7b")
P, V, C, I, L = llama.parameters, llama.vocab_size, llama.n_embd, llama.n_inner, llama.n_layer
block = 4 * C * C + 3 * C * I + 2 * C
assert 2 * V * C + L * block + C == P == 6738415616
n_tensors = len(llama.tensors())
B, T = 4, 512
plan = TrainingPlan(batch=B, seq_len=T, precision="bf16", holds="outputs", use_cache=True)
step = predict(llama, plan)
lean = predict(llama, TrainingPlan(batch=B, seq_len=T, precision="bf16", optimizer_loop="fused"))
adam32 = predict(llama, TrainingPlan(batch=B, seq_len=T, precision="bf16-adam32"))
gemma, P65 = Architecture.of("gemma-2b"), Architecture.of("llama-65b").parameters
assert 8 * gemma.parameters == 20_049_379_328  # the estimate on the Hub
gemma_step = predict(gemma, TrainingPlan(batch=1, seq_len=T, precision="bf16"))
sequence = predict(llama, TrainingPlan(batch=1, seq_len=2048, precision="bf16"))
checkpointed = predict(llama, TrainingPlan(batch=1, seq_len=2048, precision="bf16", checkpointing="full"))
assert sequence.ledger.activations > 6 * 2 * GB
P8 = Architecture.of("llama-3-8b")
saved_8b = sum(one.counted for one in saved_by_block(P8, TrainingPlan(batch=1, seq_len=T, precision="bf16"))) / T
assert saved_8b == 21 * P8.n_embd + 8 * P8.n_inner + 4 * (2 + P8.n_head)
cached, uncached = 2 * L * B * T * C * 2, predict(llama, replace(plan, use_cache=False))
forward, without = ([now for phase, now in it.timeline() if phase == "forward"][-1] for it in (step, uncached))
assert forward == without and step.peak.total - uncached.peak.total == cached
a100, l4 = (GPUS[name].vram for name in ("A100 80GB", "L4"))
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


def calculated(**moved):
    """The step that the calculator draws when its sliders are moved from where the lesson puts them."""
    begin = dict(batch=B, seq_len=T, card="A100 80GB")
    return Answer.to(Choice("llama-7b", "full", "textbook", **{**begin, **moved})).step


drawn, longer = calculated(), calculated(seq_len=2048)
kept_inputs, plain_sgd = calculated(checkpointing="full"), calculated(optimizer="sgd")
assert "adamw" in drawn.peak_at and gb(calculated(seq_len=1024).peak.total) == gb(drawn.peak.total)
assert "log_softmax" in longer.peak_at and longer.ledger.activations > 2 * 2 * P
assert len({gb(it.peak.total) for it in (drawn, kept_inputs, calculated(checkpointing="full", seq_len=8192))}) == 1
assert calculated(checkpointing="full", seq_len=16384).peak.total > drawn.peak.total
assert abs(drawn.peak.total - plain_sgd.peak.total - 6 * P) < 0.001 * 6 * P
