"""The numbers in the prose of lesson 03. content/README.md says how it uses them."""

import torch

from minigpt.base import load_base
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPTConfig
from minigpt.precision import FORMATS, nearest, spacing

fp32, bf16, fp16, e4m3 = (FORMATS[name] for name in ("fp32", "bf16", "fp16", "e4m3"))
small = GPTConfig.preset("small")
P = Architecture.of(small).parameters


def step(precision):
    return predict(small, TrainingPlan(batch=4, seq_len=1024, precision=precision))


def peak(precision):
    return step(precision).peak


def act(precision):
    return step(precision).ledger.activations


at_peak = peak("fp32")
parts = (12 * P, at_peak.activations)  # what the prose names; the rest is a gradient and what an operation makes
assert (at_peak.weights + at_peak.optimizer) / (12 * P) - 1 < 1e-4 and at_peak.gradients < 0.01 * at_peak.total
assert 0 <= at_peak.total - sum(parts) < 0.03 * at_peak.total


few_fp32, few_autocast = (
    predict(small, TrainingPlan(batch=1, seq_len=64, precision=precision)).ledger.activations
    for precision in ("fp32", "bf16-autocast")
)
assert few_autocast > few_fp32


def half_of(value):
    return nearest(torch.tensor(value), "fp16").item()


nano = load_base()
weights = torch.cat([p.detach().flatten() for p in nano.parameters()])
unreached = nano.position_embedding.weight[80:].numel()  # the pairs have 80 positions
assert 0.5 < ((weights.abs() > 0.01) & (weights.abs() < 0.3)).float().mean() and 2**-7 / 2**8 < 3.1e-5
median = {name: (spacing(weights, name) / 2).median().item() for name in ("bf16", "fp16")}


def stuck_at(lr):
    return (spacing(weights, "bf16") / 2 > lr).double().mean().item()


normal = torch.arange(2**8, 0xFF * 2**7, dtype=torch.int16).view(torch.bfloat16)
assert torch.equal(normal * 0.999, normal)  # v never falls; the first power of two may be flushed to zero on its way

# ---- the table of part 7
ROWS = [  # the precision, the rest of the state per parameter, who, what becomes of a small update
    ("bf16", 0, "a bf16 checkpoint in Trainer, trl or a loop of one's own", "lost"),
    (
        "bf16",
        0,
        "stochastic rounding: [torchastic](https://pypi.org/project/torchastic/), `ByChance`",
        "kept on average",
    ),
    ("bf16", 2, "Kahan: [optimi](https://github.com/warner-benjamin/optimi), `KahanAdamW`", "kept, in 16 bits more"),
    ("bf16-adam32", 0, "float32 moments over bf16 weights; fits the QLoRA paper's 780 GB", "lost"),
    (None, 0, "DeepSeek-V3 (arXiv 2412.19437): master and gradients float32, moments bf16", "kept"),
    ("fp32", 0, "torch's default", "kept"),
    ("bf16-autocast", 0, "autocast over float32 weights; LitGPT's `bf16-mixed`", "kept"),
    ("bf16-master", 0, "the ZeRO paper", "kept"),
    ("bf16-master-grad32", 0, "Megatron, bf16 weights", "kept"),
    ("bf16-master-grad16+32", 0, "Megatron, fp16 weights; MT-NLG", "kept"),
]


def row(name, rest, who, update):
    p = PRECISIONS[name] if name else PRECISIONS["bf16-master-grad32"]._replace(moments=4)
    terms = " + ".join(str(n) for n in (p.weights, p.gradients, p.master, p.moments, rest))
    return f"| {p.bytes_per_parameter + rest} | {terms} | {who} | {update} |"


table = "\n".join(row(*entry) for entry in ROWS)
assert [int(line.split()[1]) for line in table.splitlines()] == [8, 8, 10, 12, 14, 16, 16, 16, 18, 20]
kahan = predict("llama-7b", TrainingPlan(precision="bf16", optimizer="kahan_adamw")).ledger
kahan_bytes = round((kahan.weights + kahan.gradients + kahan.optimizer) / Architecture.of("llama-7b").parameters)

# ---- torchtune's bytes per parameter: weights, moments, one gradient
tuned = predict("llama-3.2-1b", TrainingPlan.like("torchtune", method="full")).ledger
P_1b = Architecture.of("llama-3.2-1b").parameters
torchtune = [size / P_1b for size in (tuned.weights, tuned.optimizer, tuned.gradients)]
assert tuned.gradients == 2 * 128256 * 2048 and f"{sum(torchtune):.2f}" == "4.46"
