"""The numbers in the prose of lesson 09. content/README.md says how it uses them."""

from dataclasses import replace
from itertools import product
from math import ceil
from statistics import median

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.calculator.choice import OWN, Answer, Choice
from minigpt.memory.calculator.panel import LENGTHS
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import GB, GIB, gb, gib
from minigpt.model import GPTConfig
from tools.published import compare_published
from tools.shown import shown

llama = Architecture.of("llama-7b")
P, lin = llama.parameters, llama.linear_parameters
I = llama.n_inner


def adapters(model, r):
    return r * sum(sum(t.shape) for t in model.tensors() if t.kind == "linear")


N = adapters(llama, 8)
B, T = 4, 512
ON = "reentrant"  # the checkpointing that peft's preparation turns on


def plan(method, **changes):
    precision = "bf16-master" if method == "full" else "bf16"
    return TrainingPlan(**{**dict(batch=B, seq_len=T, method=method, precision=precision), **changes})


def step(method, model=llama, **changes):
    return predict(model, plan(method, **changes), history=False)


def times(a, b):
    return f"{a / b:.1f}×"


full, lora, qlora = step("full"), step("lora"), step("qlora")
static_qlora = times(full.ledger.persistent, qlora.ledger.persistent)
qck = step("qlora", checkpointing=ON)
assert gb(step("full", checkpointing=ON).peak.total) == gb(full.peak.total) and "adamw" in full.peak_at

folk = f"{16 * 7 / (0.56 * 7 + 16 * 0.019):.0f}"
assert folk == "27"  # the heading

# The stacks, and the switches one by one.
A100 = "A100 80GB"


def like(library, **choices):
    choices = dict(method="qlora", targets="all-linear", batch=B, seq_len=T, card=A100, **choices)
    return predict(llama, TrainingPlan.like(library, **choices), history=False)


hf, kept_hf = like("hf-trainer"), like("hf-trainer", checkpointing="none")
static_hf = hf.ledger.persistent
for library in ("hf-trainer", "script", "trl-sft", "unsloth"):
    assert TrainingPlan.like(library, method="qlora").checkpointing != "none"
    assert TrainingPlan.like(library, method="qlora").double_quantization == (library == "unsloth")
WAYS = [(kind, on) for kind in ("none", ON) for on in (False, True)]
on_card = {
    (m, kind, on): step(m, card=A100, checkpointing=kind, autocast=on) for m in ("lora", "qlora") for kind, on in WAYS
}
bare = {on: step("qlora", card=A100, autocast=on, kbit_preparation=False) for on in (False, True)}
prepared = {on: on_card["qlora", "none", on].peak.total - bare[on].peak.total for on in (False, True)}
same = step("qlora", card=A100, adapter_dtype="same")
assert on_card["qlora", "none", False].peak.total - same.peak.total < prepared[False]  # the two words without autocast
bare_same = step("qlora", card=A100, autocast=True, kbit_preparation=False, adapter_dtype="same")
assert bare[True].peak.total - bare_same.peak.total < prepared[True]  # and with it
checkpointed = {on: on_card["qlora", ON, on] for on in (False, True)}
on_cpu = step("qlora", autocast=True)
A100_more = on_card["qlora", "none", False].peak.total - qlora.peak.total

# Mistral-7B by hand.
mistral = Architecture.of("mistral-7b")
assert (mistral.n_embd, mistral.n_inner, mistral.n_layer, mistral.vocab_size) == (4096, 14336, 32, 32_000)
mistral_optimizer = step(
    "qlora", mistral, batch=1, seq_len=2048, rank=64, optimizer="paged_adamw_8bit"
).ledger.optimizer

few_tokens = dict(batch=1, seq_len=512, rank=64, checkpointing=ON)
mistral_step = step("qlora", mistral, **few_tokens)
assert "adamw" in mistral_step.peak_at
mistral_static = mistral_step.ledger.weights + mistral_step.ledger.optimizer

# Llama-3-8B under autocast: what the sums would be without autocast's copies.
llama8 = Architecture.of("llama-3-8b")
head8 = 2 * llama8.vocab_size * llama8.n_embd
copies8 = {"none": head8 + 2 * adapters(llama8, 16), ON: head8}  # those that are there at the peak
trainer8 = dict(method="qlora", autocast=True, rank=16, targets="all-linear", batch=2, seq_len=1024, card=A100)
bare8 = {}
for kind, missing in copies8.items():
    whole = predict(llama8, TrainingPlan.like("hf-trainer", checkpointing=kind, **trainer8), history=False).peak
    bare8[kind] = f"{100 * (1 - missing / whole.total):.1f}%"

# A mask: padding, or a window.
window = mistral.window


def of_eight(method, sequences):
    return step(method, llama8, batch=2, seq_len=1024, sequences=sequences).peak.total


padded = {m: of_eight(m, "padded") - of_eight(m, "plain") for m in ("lora", "qlora")}
for m, nbytes in {"lora": 3 * 4096 + 2 * 1024, "qlora": 6 * 4096 + 4 * 1024}.items():
    assert abs(padded[m] / (32 * 2048 * nbytes) - 1) < 0.01

# How far the formula that the lesson shows is from predict.
errors = shown(
    "content/lessons/09-qlora.md",
    "instants",
    "grid",
    given={
        "Architecture": Architecture,
        "TrainingPlan": TrainingPlan,
        "predict": predict,
        "product": product,
        "b": 1 / 2 + 1 / 64 + 4 / (64 * 256),
    },
)["errors"]
off_plain, off_cast = (max(abs(off) for key, off in errors.items() if key[0] == on) for on in (False, True))
worst = ceil(100 * max(off_plain, off_cast))
assert len(errors) == 108 and worst == 1

# Where QLoRA needs more than LoRA.
extra = (qlora.ledger.activations - lora.ledger.activations) / (B * T)
cross7 = (lora.ledger.weights - qlora.ledger.weights) / extra
many = {m: step(m, batch=17) for m in ("lora", "qlora")}
assert 16 * T < cross7 < 17 * T and many["lora"].peak.total < many["qlora"].peak.total
assert [name for name, gpu in GPUS.items() if gpu.vram > many["lora"].peak.total] == ["H200"]
fewer = step("lora", batch=17, checkpointing=ON).peak.total - step("qlora", batch=17, checkpointing=ON).peak.total
assert fewer > 0
qwen = Architecture.of("qwen2.5-0.5b")
q2 = {m: step(m, qwen, batch=1, seq_len=2048) for m in ("lora", "qlora")}
token = {m: q2[m].ledger.activations / 2048 for m in ("lora", "qlora")}
head = qwen.vocab_size * qwen.n_embd
saved_weights = q2["lora"].ledger.weights - q2["qlora"].ledger.weights
short = 16
in_short = {m: step(m, qwen, batch=1, seq_len=short, card=A100, autocast=True) for m in ("lora", "qlora")}
assert in_short["qlora"].peak.total > in_short["lora"].peak.total
assert 2 * head > saved_weights

small = GPTConfig.preset("small")
Ps, Ns = Architecture.of(small).parameters, adapters(Architecture.of(small), 8)
big = [step(m, small, batch=8, seq_len=1024).peak.total for m in ("full", "lora", "qlora")]
assert big == sorted(big)  # "upside down"

# Readings of a T4, and LitGPT's.
published = [r for r in compare_published() if r.predicted is not None]
t4, held, lit = ([r for r in published if r.group == g] for g in ("fitcheck", "fitcheck, reserved", "LitGPT"))
moved = [abs(r.error) for r in held if " LoRA" in r.what]
assert len(lit) == 15 and len(held) == len(t4) and sum(error < 5e-4 for error in moved) > len(moved) / 2
workspace = GPUS["T4"].workspace
bare_t4 = TrainingPlan(
    method="qlora", batch=2, seq_len=2048, attention="eager", precision="fp16", rank=32, targets="q,k,v,o",
    double_quantization=False, checkpointing="full", holds="outputs", card="T4", kbit_preparation=False,
)  # fmt: skip
unprepared = predict("tinyllama-1.1b", bare_t4, history=False).peak.total
nested, plain = 8 * (0.5 + 1 / 64 + 4 / (64 * 256)), 8 * (0.5 + 4 / 64)

# The audit: each claim's plan, with checkpointing and without.
trainer = TrainingPlan.like("hf-trainer", method="qlora", targets="all-linear", autocast=True, card=A100)
sloth = {m: TrainingPlan.like("unsloth", method=m, seq_len=2048, card=A100) for m in ("qlora", "lora")}
paper = replace(trainer, rank=64, seq_len=512, double_quantization=True, optimizer="paged_adamw_8bit")


def both(model, it):
    return [predict(model, p, history=False).peak.total for p in (it, replace(it, checkpointing="none"))]


wiki = both("llama-2-7b", replace(trainer, seq_len=8192))
unsloths = {m: both("llama-2-7b", it) for m, it in sloth.items()}
dettmers = both("llama-65b", paper)
assert wiki[0] < 12 * GIB < 12 * GB + wiki[1] and dettmers[0] < 48 * GB < dettmers[1]
mistrals = {
    (m, kind): step(m, mistral, batch=1, seq_len=2048, checkpointing=kind).peak.total
    for m in ("lora", "qlora")
    for kind in ("none", ON)
}
less = {kind: f"{100 * (1 - mistrals['qlora', kind] / mistrals['lora', kind]):.0f}%" for kind in ("none", ON)}
saved_65 = (plain - nested) / 8 * Architecture.of("llama-65b").linear_parameters
verdicts = "\n".join(
    [
        f"- **A is right**, and GB means GiB: {gib(wiki[0])} with checkpointing. Without it {gb(wiki[1])}.",
        f"- **B is right for QLoRA**, {gb(unsloths['qlora'][0])} for 2,048 tokens with Unsloth's defaults, and "
        f"cautious for LoRA, {gb(unsloths['lora'][0])}. Without checkpointing QLoRA takes {gb(unsloths['qlora'][1])}.",
        f"- **C is right**: {gb(dettmers[0])} for one sequence of 512 tokens; {gb(dettmers[1])} without checkpointing. "
        f"780 is $65 \\cdot 12$: 16-bit weights and gradients, float32 moments, no activations.",
        f"- **D is right**: {plain - nested:.3f} bits, and {gb(saved_65)}.",
        f"- **E is wrong.** Mistral-7B with one sequence of 2,048 tokens: {less[ON]} less with checkpointing, "
        f"{less['none']} without. Of what stays, QLoRA takes off "
        f"{100 * (1 - qlora.ledger.persistent / lora.ledger.persistent):.0f}% of LLaMA-7B's. "
        "75% is what 4 bits take off 16: one bucket's matrices.",
    ]
)

# Try it.
thirteen = Architecture.of("llama-13b")
P13, N13 = thirteen.parameters, adapters(thirteen, 16)
card = GPUS["RTX 3090"].vram


def t13(method, **changes):
    return step(method, thirteen, **{**dict(rank=16, batch=1), **changes})


def row13(method, by_hand):
    kept, peak, again = t13(method).ledger.persistent, t13(method).peak.total, t13(method, checkpointing=ON).peak.total
    fits = "no" if again > card else "yes" if peak < card else "with checkpointing"
    return f"| {method} | ${by_hand}$ | {gb(kept)} | {gb(peak)} | {gb(again)} | {fits} |"


thirteens = "\n".join([row13("full", "16P"), row13("lora", "2P + 16N"), row13("qlora", "0.516 P_q + 4 P_r + 16 N")])


def longest(kind):
    low, high = 1, 2048  # in steps of 64 tokens
    while high - low > 1:
        middle = (low + high) // 2
        fits = t13("qlora", seq_len=64 * middle, checkpointing=kind).peak.total < card
        low, high = (middle, high) if fits else (low, middle)
    return 64 * low


fits13 = {kind: longest(kind) for kind in ("none", ON)}


# The calculator's stops.
def calculated(method, seq_len, recipe, kind):
    return Answer.to(Choice("llama-3-8b", method, recipe, seq_len=seq_len, checkpointing=kind, card="RTX 4090"))


def last_stop(recipe, kind):
    return next(n for n in sorted(LENGTHS, reverse=True) if calculated("qlora", n, recipe, kind).verdict.fits)


stops = {(recipe, kind): last_stop(recipe, kind) for recipe in ("hf-trainer", "trl-sft") for kind in (OWN, "none")}
V8 = Architecture.of("llama-3-8b").vocab_size
crossed = 2048
eight = {m: calculated(m, crossed, "hf-trainer", "none").step for m in ("lora", "qlora")}
before = [calculated(m, crossed // 2, "hf-trainer", "none").step.peak.total for m in ("lora", "qlora")]
assert eight["lora"].peak.total < eight["qlora"].peak.total and before[0] > before[1]

# What is paged of the adapters at r = 8
sides = {
    name: [8 * side for t in Architecture.of(name).tensors() if t.kind == "linear" for side in t.shape]
    for name in ("llama-7b", "llama-3-8b")
}
paged_8b, sides_8b = sum(size >= 100_000 for size in sides["llama-3-8b"]), len(sides["llama-3-8b"])
assert max(sides["llama-7b"]) < 100_000 and 8 * 14336 == max(sides["llama-3-8b"])
