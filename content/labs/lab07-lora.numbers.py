"""The numbers in the prose of lab 07. content/README.md says how it uses them."""

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.model import GPTConfig

nano = Architecture.of(GPTConfig.preset("nano"))
llama, thirteen = Architecture.of("llama-7b"), Architecture.of("llama-13b")
n_7b = adapter_parameters("llama-7b", 8, "all-linear")
rotary = 2 * 4 * (llama.head_dim // 2)
full_7b = predict("llama-7b", TrainingPlan(precision="bf16", seq_len=512)).ledger
lora_step = predict("llama-7b", TrainingPlan(precision="bf16", seq_len=512, method="lora", rank=8))
lora_7b, lora_peak = lora_step.ledger, lora_step.peak.total
frozen_13b, n_13b = 2 * thirteen.parameters, adapter_parameters("llama-13b", 16, "all-linear")
linears_13b = thirteen.linear_parameters
qlora_13b = linears_13b // 2 + linears_13b // 16 + frozen_13b - 2 * linears_13b + 16 * n_13b
assert qlora_13b < GPUS["RTX 3090"].vram < frozen_13b
