"""The numbers in the prose of lesson 08. content/README.md says how it uses them."""

from math import log
from statistics import NormalDist

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.predicted.traffic import fused, product, rows_to_ridge, seconds, trained
from minigpt.memory.units import GB
from minigpt.model import GPTConfig
from minigpt.nf4 import derive_code

nano = Architecture.of(GPTConfig.preset("nano"))
nano_matrices = sum(t.kind == "linear" for t in nano.tensors())
offset = 1 - (1 / 30 + 1 / 32) / 2
edge = NormalDist().inv_cdf(offset)
half = (1 + 0.5 ** (1 / 64)) / 2
typical = NormalDist().inv_cdf(half)
fitting = log(0.5) / log(2 * offset - 1)
block_kurtosis = 3 * 63 / 65 * (63 / 64) ** 2
inner = sum(abs(value * edge) < NormalDist().inv_cdf(0.75) for value in derive_code())
llama = Architecture.of("llama-7b")
P_q, matrices = llama.linear_parameters, sum(t.kind == "linear" for t in llama.tensors())
rest = llama.parameters - P_q
N_64 = adapter_parameters("llama-7b", 64, "all-linear")
assert P_q // 2 + rest + N_64 == 3660320768  # as qlora.py printed it
plain_bits, nested_bits = 4 + 32 / 64, 4 + 8 / 64 + 32 / (64 * 256)
plain, nested = P_q // 2 + 4 * P_q // 64, P_q // 2 + P_q // 64 + 4 * P_q // (64 * 256) + 4 * matrices
saved = plain - nested
saved_bits = plain_bits - nested_bits
break_even = round((1024 + 4) / (saved_bits / 8))
litgpt_plain, litgpt_nested = 14.14 * GB, 13.84 * GB


def peak(**choices):
    return predict("llama-7b", TrainingPlan(batch=4, seq_len=512, precision="bf16", **choices)).peak


lora, prepared = peak(method="lora"), peak(method="qlora")
peft_way = peak(method="qlora", checkpointing="reentrant")

# When four bits are faster.
assert (GPUS["T4"].bandwidth, GPUS["T4"].half) == (320 * GB, 65e12)
faster = f"{product(1, 4096, 4096).nbytes / fused(1, 4096, 4096).nbytes:.1f}"
assert 0.9 < product(1, 4096, 4096).intensity <= 1
for card in ("T4", "A100 80GB", "H100 80GB"):
    assert 100 < rows_to_ridge(4096, 4096, card) < 400
    few, many = (seconds(trained(n, 4096, 4096, four_bits=True), card) / seconds(trained(n, 4096, 4096), card)
                 for n in (64, 4096))  # fmt: skip
    assert few > 2 and 1 < many < 1.1
