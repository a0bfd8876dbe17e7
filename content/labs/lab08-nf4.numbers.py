"""The numbers in the prose of lab 08. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.units import GB
from minigpt.model import GPTConfig

nano = Architecture.of(GPTConfig.preset("nano"))
llama = Architecture.of("llama-7b")
P, matrices = llama.linear_parameters, sum(t.kind == "linear" for t in llama.tensors())
p_end = 0.9677083
before, after = 32 / 64, 8 / 64 + 32 / (64 * 256)
plain_7b, double_7b = P * (4 + before) / 8, P * (4 + after) / 8
tables = matrices * (64 + 1024)
litgpt_plain, litgpt_double = 14.14 * GB, 13.84 * GB
wide = 4 + 32 / 4096
nano_double = 4 + after + 32 * sum(t.kind == "linear" for t in nano.tensors()) / nano.linear_parameters
step = dict(batch=2, seq_len=128, precision="bf16", rank=8)
lora = predict(GPTConfig.preset("nano"), TrainingPlan(method="lora", **step))
qlora = predict(GPTConfig.preset("nano"), TrainingPlan(method="qlora", kbit_preparation=False, **step))
