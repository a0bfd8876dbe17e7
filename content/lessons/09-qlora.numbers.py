"""The numbers in the prose of lesson 09. content/README.md says how it uses them."""

from statistics import median

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import GB, gb
from minigpt.model import GPTConfig
from tools.published import compare_published

llama = Architecture.of("llama-7b")
P, lin = llama.parameters, llama.linear_parameters
C, I, L, V = llama.n_embd, llama.n_inner, llama.n_layer, llama.vocab_size


def adapters(model, r):
    return r * sum(sum(t.shape) for t in model.tensors() if t.kind == "linear")


N = adapters(llama, 8)
Nqv = 8 * L * 2 * (C + C)
B, T = 4, 512


def plan(method, **changes):
    precision = "bf16-master" if method == "full" else "bf16"
    return TrainingPlan(**{**dict(batch=B, seq_len=T, method=method, precision=precision), **changes})


def step(method, model=llama, **changes):
    return predict(model, plan(method, **changes))


def times(a, b):
    return f"{a / b:.1f}×"


full, lora, qlora = step("full"), step("lora"), step("qlora")
one = {m: step(m, batch=1) for m in ("full", "lora", "qlora")}
static_lora = times(full.ledger.persistent, lora.ledger.persistent)
static_qlora = times(full.ledger.persistent, qlora.ledger.persistent)
copies, no_more = 4 * (6 * C + I) * L * B * T, 2 * (2 * C + I) * L * B * T
same = step("lora", adapter_dtype="same")
assert abs(copies - no_more - (lora.ledger.activations - same.ledger.activations)) < 0.01 * copies

A100 = "A100 80GB"
on_card = {(m, on): step(m, card=A100, autocast=on) for m in ("lora", "qlora") for on in (False, True)}


def switch(text, method, **changes):
    cells = []
    for on in (False, True):
        after = step(method, card=A100, autocast=on, **changes).peak.total
        moved = f"{(after - on_card[method, on].peak.total) / GB:+.2f}" if changes else ""
        cells += [gb(after), moved.replace("-", "−")]
    return f"| {text} | {method} | {' | '.join(cells)} |"


switches = "\n".join(
    [
        switch("no switch", "lora"),
        switch('`adapter_dtype="same"`', "lora", adapter_dtype="same"),
        switch("no switch", "qlora"),
        switch('`adapter_dtype="same"`', "qlora", adapter_dtype="same"),
        switch("`kbit_preparation=False`", "qlora", kbit_preparation=False),
        switch("both", "qlora", kbit_preparation=False, adapter_dtype="same"),
        switch("`double_quantization=False`", "qlora", double_quantization=False),
        switch('`optimizer="adamw8bit"`', "qlora", optimizer="adamw8bit"),
        switch('`checkpointing="full"`', "qlora", checkpointing="full"),
    ]
)
bare = {on: step("qlora", card=A100, autocast=on, kbit_preparation=False) for on in (False, True)}
prepared = {on: on_card["qlora", on].peak.total - bare[on].peak.total for on in (False, True)}
bare_same = step("qlora", card=A100, autocast=True, kbit_preparation=False, adapter_dtype="same")
lora_same = step("lora", card=A100, autocast=True, adapter_dtype="same")
left = on_card["lora", True].peak.total - lora_same.peak.total
checkpointed = {on: step("qlora", card=A100, autocast=on, checkpointing="full") for on in (False, True)}
assert checkpointed[True].peak.total - checkpointed[False].peak.total == 2 * V * C
on_cpu = step("qlora", autocast=True)
A100_more = on_card["qlora", False].peak.total - qlora.peak.total


def like(library, **choices):
    choices = dict(method="qlora", targets="all-linear", batch=B, seq_len=T, card=A100, **choices)
    return predict(llama, TrainingPlan.like(library, **choices))


sft, trainer = like("trl-sft"), like("hf-trainer", autocast=True)
assert "block 31, run again" in like("script").peak_at and "head" in trainer.peak_at
extra = (qlora.ledger.activations - lora.ledger.activations) / (B * T)
cross7 = (lora.ledger.weights - qlora.ledger.weights) / extra
many = {m: step(m, batch=17) for m in ("lora", "qlora")}
assert 16 * T < cross7 < 17 * T and many["lora"].peak.total < many["qlora"].peak.total
assert [name for name, gpu in GPUS.items() if gpu.vram > many["lora"].peak.total] == ["H200"]
published = [r for r in compare_published() if r.predicted is not None]
t4, lit = ([r for r in published if r.group == group] for group in ("fitcheck", "LitGPT"))
assert len(lit) == 15 and all(r.error < 1e-4 for r in t4)
workspace = GPUS["T4"].workspace
ck, qck = step("lora", checkpointing="full"), step("qlora", checkpointing="full")
one_ck = step("qlora", batch=1, checkpointing="full")
bare_t4 = TrainingPlan(
    method="qlora", batch=2, seq_len=2048, attention="eager", precision="fp16", rank=32, targets="q,k,v,o",
    double_quantization=False, checkpointing="full", holds="outputs", card="T4", kbit_preparation=False,
)  # fmt: skip
unprepared = predict("tinyllama-1.1b", bare_t4).peak.total
nested, plain = 8 * (0.5 + 1 / 64 + 4 / (64 * 256)), 8 * (0.5 + 4 / 64)

small = GPTConfig.preset("small")
Ps, Ns = Architecture.of(small).parameters, adapters(Architecture.of(small), 8)
big = {m: step(m, small, batch=8, seq_len=1024) for m in ("full", "lora", "qlora")}
few = {m: step(m, small, batch=1, seq_len=1024) for m in ("full", "lora", "qlora")}
small_same = step("lora", small, batch=8, seq_len=1024, adapter_dtype="same")

qwen = Architecture.of("qwen2.5-0.5b")
q2 = {m: step(m, qwen, batch=1, seq_len=2048) for m in ("lora", "qlora")}
q2["bare"] = step("qlora", qwen, batch=1, seq_len=2048, kbit_preparation=False)
token = {m: q2[m].ledger.activations / 2048 for m in ("lora", "qlora")}
head = qwen.vocab_size * qwen.n_embd
saved_weights = q2["lora"].ledger.weights - q2["qlora"].ledger.weights

short = 16
in_short = {m: step(m, qwen, batch=1, seq_len=short, card=A100, autocast=True) for m in ("lora", "qlora")}
assert in_short["qlora"].peak.total > in_short["lora"].peak.total
assert 2 * head > saved_weights

folk_qlora = 0.56 * 7 * GB + 16 * 19 * 10**6
lean = step("qlora", batch=1, adapter_dtype="same", kbit_preparation=False)

thirteen = Architecture.of("llama-13b")
P13, N13 = thirteen.parameters, adapters(thirteen, 16)


def t13(method, **changes):
    return step(method, thirteen, rank=16, **changes)


card = GPUS["RTX 3090"].vram
fits = max(t for t in range(64, 2049, 64) if t13("qlora", batch=1, seq_len=t).peak.total < card)
long13 = t13("qlora", batch=1, seq_len=2048)
llama70 = adapters(Architecture.of("llama-2-70b"), 8)
llama70_base = predict("llama-2-70b", plan("qlora", batch=1)).frozen
