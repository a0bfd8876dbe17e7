"""The numbers in the prose of lab 09. content/README.md says how it uses them."""

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.model import GPTConfig
from minigpt.real import TINY

nano, tiny, llama = Architecture.of(GPTConfig.preset("nano")), Architecture.of(TINY), Architecture.of("llama-7b")
adapted = {a: adapter_parameters(a, 8, "all-linear") for a in (nano, tiny, llama)}


def share(a):
    return f"{100 * adapted[a] / a.parameters:.1f}%"


def step(model, method, **more):
    precision = "bf16-master" if method == "full" else "bf16"
    usual = dict(batch=8, seq_len=96, method=method, precision=precision, optimizer_loop="single")
    return predict(model, TrainingPlan(**{**usual, **more}))


def static(model, method, **more):
    return f"{step(model, 'full', **more).ledger.persistent / step(model, method, **more).ledger.persistent:.1f}"


steps_of = {m: step(TINY, m) for m in ("full", "lora", "qlora")}
by_trainer = dict(precision="bf16-autocast", optimizer="adamw8bit")
blocks_kept, checkpointed = (step(TINY, "qlora", checkpointing=c, **by_trainer) for c in ("none", "reentrant"))
lean = step(TINY, "qlora", kbit_preparation=False, adapter_dtype="same", optimizer_loop="fused")
upcast_bytes = steps_of["qlora"].frozen - lean.frozen
probabilities = 4 * 8 * 96 * tiny.vocab_size
seven = {m: step(llama, m, batch=1, seq_len=512) for m in ("full", "lora", "qlora")}
again_7b = {m: step(llama, m, batch=1, seq_len=512, checkpointing="reentrant") for m in seven}
kept, again = (step(llama, "qlora", batch=4, seq_len=512, checkpointing=c).peak.total for c in ("none", "reentrant"))
rest, qlora_7b = llama.parameters - llama.linear_parameters, seven["qlora"].ledger.persistent
rest_in_4 = seven["full"].ledger.persistent / (qlora_7b - (4 - 0.515869) * rest)
