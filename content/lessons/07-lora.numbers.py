"""The numbers in the prose of lesson 07. content/README.md says how it uses them."""

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import gb
from minigpt.model import GPTConfig
from tools.shown import shown

QV = ("q_proj", "v_proj")
small, llama = GPTConfig.preset("small"), Architecture.of("llama-7b")
P_small, P = Architecture.of(small).parameters, llama.parameters
C, I, L, r = llama.n_embd, llama.n_inner, llama.n_layer, 8
c = small.n_embd
N_small, N_7b = adapter_parameters(small, r, "all-linear"), adapter_parameters("llama-7b", r, "all-linear")
N_qv = adapter_parameters("llama-7b", r, QV)
N_dora = adapter_parameters("llama-7b", r, "all-linear", "dora")
N_13b = adapter_parameters("llama-13b", 16, "all-linear")
assert (N_small, N_7b, N_qv, N_13b) == (1327104, 19988480, 4194304, 62586880)
from_rank, to_rank = (x * P * r / N_7b for x in (0.005, 0.01))


def share(n, p):
    return f"{100 * n / p:.2f}%"


def step(model, batch, seq_len, **choices):
    return predict(model, TrainingPlan(batch=batch, seq_len=seq_len, **choices))


def seven(method="lora", **choices):
    return step("llama-7b", 4, 512, precision="bf16", method=method, **choices)


full_small, lora_small = step(small, 8, 1024), step(small, 8, 1024, method="lora")
qv_small = step(small, 8, 1024, method="lora", targets="q,v")
full_7b, lora_7b, qv_7b = seven("full"), seven(), seven(targets="q,v")
dora_7b = seven(variant="dora")
assert seven(variant="rslora").events == lora_7b.events
dora_saved = 6 * 4 * 512 * L * (5 * C + 2 * I)
same_7b, high_7b, low_7b = seven(adapter_dtype="same"), seven(rank=64), seven(rank=1)
litgpt = step("llama-7b", 1, 1304, precision="bf16", method="lora", targets="q,v", adapter_dtype="same")
matrix = 4 * C * I
one_7b, thin_7b = step("llama-7b", 1, 512, precision="bf16", method="lora"), seven(checkpointing="full")
cast_7b = seven(autocast=True)


def like(library, **choices):
    plan = TrainingPlan.like(library, batch=4, seq_len=512, method="lora", **{"targets": "all-linear", **choices})
    return predict("llama-7b", plan)


script_7b, trainer_7b, sft_7b = like("script"), like("hf-trainer", autocast=True), like("trl-sft")
assert like("hf-trainer").peak == lora_7b.peak and trainer_7b.peak.total == cast_7b.peak.total
wide_7b, wide_cast_7b = like("hf-trainer", precision="fp32"), like("hf-trainer", precision="bf16-autocast")
halved = 2 * (6 * C + I) * L * 4 * 512
fewer = lora_7b.ledger.activations - cast_7b.ledger.activations
casts = 2 * (N_7b - 3 * r * C)  # 16-bit A and B; below A of the first q, k and v nothing is trained, so nobody needs it
assert halved + 2 * 7 * r * L * 4 * 512 - casts == fewer


def block_units(**choices):
    """What one more block saves, in float32 matrices of tokens by width."""
    models = (GPTConfig.preset("small", n_layer=n) for n in (1, 2))
    one, two = (step(model, 8, 1024, precision="bf16", method="lora", **choices) for model in models)
    return (two.ledger.activations - one.ledger.activations) / (4 * 8 * 1024 * c)


frozen_u, copies_qv, copies_all = 5, 2, 9  # of one block, in u: the frozen part, and the float32 copies
for autocast, part in ((False, 1), (True, 1 / 2)):
    for targets, copies in (("q,v", copies_qv), ("all-linear", copies_all)):
        assert 0 < block_units(targets=targets, autocast=autocast) - frozen_u - part * copies < 0.1


def both(text, **choices):
    steps = [seven(**choices, autocast=autocast) for autocast in (False, True)]
    figures = [gb(n) for s in steps for n in (s.ledger.activations, s.peak.total)]
    return f"| {text} | {' | '.join(figures)} |"


places = "\n".join(
    [
        both("full", method="full"),
        both("LoRA r = 8, all"),
        both("the same, adapters in bfloat16", adapter_dtype="same"),
        both("LoRA r = 8, q and v", targets="q,v"),
        both("LoRA r = 64, q and v", targets="q,v", rank=64),
    ]
)

switches = {"rank=1": low_7b, "autocast=True": cast_7b, 'adapter_dtype="same"': same_7b, 'targets="q,v"': qv_7b}
switches |= {"batch=1": one_7b, 'checkpointing="full"': thin_7b}
fitting = [f"`{name}`" for name, run in switches.items() if run.peak.total < GPUS["RTX 3090"].vram]
fits = f"{', '.join(fitting[:-1])} and {fitting[-1]}"
assert 0 < GPUS["RTX 3090"].vram - same_7b.peak.total < 0.3e9

mistral, mistral_tokens = Architecture.of("mistral-7b"), 2048
N_mistral = adapter_parameters("mistral-7b", 16, "all-linear")
assert N_mistral == 16 * 32 * (4 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336))
block_mistral = 37 * 4096 + 10 * 14336 + 28 * 16
mistral_none, mistral_full = (
    step("mistral-7b", 1, mistral_tokens, precision="bf16", method="lora", rank=16, checkpointing=kept)
    for kept in ("none", "full")
)
told = shown(
    "content/lessons/07-lora.md",
    "instants",
    "grid",
    given={"Architecture": Architecture, "TrainingPlan": TrainingPlan, "predict": predict},
)
errors = told["errors"]
off_plain, off_cast = (max(abs(off) for key, off in errors.items() if key[0] == on) for on in (False, True))
assert len(errors) == 108 and max(off_plain, off_cast) < 0.01
paper_mistral = {}
for kept in ("none", "full"):
    top = told["instants"](mistral, mistral_tokens, N_mistral, block_mistral, 2 * 4096, again=kept == "full")
    paper_mistral[kept] = 2 * mistral.parameters + 12 * N_mistral + max(top.values())
assert max(top, key=top.get) == "last block"
for kept, run in (("none", mistral_none), ("full", mistral_full)):
    assert abs(paper_mistral[kept] / run.peak.total - 1) < 0.004
high = step("mistral-7b", 1, mistral_tokens, precision="bf16", method="lora", rank=256, checkpointing="full")
assert "adamw" in high.peak_at
before_step = told["instants"](mistral, mistral_tokens, 16 * N_mistral, block_mistral + 28 * 240, 2 * 4096, again=True)
del before_step["the step"]
without_step = 1 - (2 * mistral.parameters + 12 * 16 * N_mistral + max(before_step.values())) / high.peak.total
assert "block 11" in full_small.peak_at and "block 11" in lora_small.peak_at  # "in backward of the last block"
