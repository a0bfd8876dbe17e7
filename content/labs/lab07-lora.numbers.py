"""The numbers in the prose of lab 07. content/README.md says how it uses them."""

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.model import GPTConfig

nano = Architecture.of(GPTConfig.preset("nano"))
llama, thirteen = Architecture.of("llama-7b"), Architecture.of("llama-13b")
n_7b = adapter_parameters("llama-7b", 8, "all-linear")
rotary = 2 * 4 * (llama.head_dim // 2)
full_7b = predict("llama-7b", TrainingPlan(precision="bf16", seq_len=512)).ledger
lora_7b = predict("llama-7b", TrainingPlan(precision="bf16", seq_len=512, method="lora", rank=8)).ledger
frozen_13b = 2 * thirteen.parameters
