"""The numbers in the prose of lesson 04. content/README.md says how it uses them."""

from math import prod

from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.memory.units import gb
from minigpt.model import GPTConfig

nano, small = (GPTConfig.preset(name) for name in ("nano", "small"))
P_nano, P_small = Architecture.of(nano).parameters, Architecture.of(small).parameters
width = nano.n_embd
norms = sum(prod(t.shape) for t in Architecture.of(nano).tensors() if len(t.shape) == 1)
assert norms == (2 * nano.n_layer + 1) * width
largest_small = max(prod(t.shape) for t in Architecture.of(small).tensors())
llama = Architecture.of("llama-7b")
P, tensors = llama.parameters, len(list(llama.tensors()))
N = adapter_parameters("llama-7b", 8, "all-linear")
largest = max(prod(t.shape) for t in llama.tensors())
adapters_8b = adapter_parameters("llama-3-8b", 8, "all-linear")
l4 = GPUS["L4"].vram


def seven(**choices):
    return predict("llama-7b", TrainingPlan(**{"batch": 1, "seq_len": 512, "precision": "bf16", **choices}))


def saved_by_8_bits(method):
    """What the peak of LLaMA-7B's step falls by, in bytes."""
    wide, thin = (seven(method=method, optimizer=kind, optimizer_loop="fused") for kind in ("adamw", "adamw8bit"))
    return wide.peak.total - thin.peak.total


saved_full, saved_lora = saved_by_8_bits("full"), saved_by_8_bits("lora")
lora_peak = seven(method="lora", optimizer_loop="fused").peak.total
assert saved_lora < 0.01 * lora_peak
assert all(8 * side < 100_000 for t in llama.tensors() if t.kind == "linear" for side in t.shape)  # nothing is paged
adafactor, sgd = seven(optimizer="adafactor"), seven(optimizer="sgd")
adafactor_state, adafactor_more = adafactor.ledger.optimizer, adafactor.peak.total - sgd.peak.total
eight_7b = seven(optimizer="adamw8bit")
hooked_7b = seven(optimizer="adamw8bit", optimizer_in_backward=True)
assert hooked_7b.peak_at == "backward, head: linear"
first_7b, second_7b = (seven(optimizer_loop="fused", step=kind) for kind in ("first", "steady"))
foreach_first, foreach_second = (seven(optimizer_loop="foreach", step=kind) for kind in ("first", "steady"))
assert foreach_first.peak.total == foreach_second.peak.total
assert foreach_first.peak_at.startswith("step") and foreach_second.peak_at.startswith("step")
assert gb(first_7b.peak.total) == gb(second_7b.peak.total) and second_7b.peak_at.startswith("backward")


def made(prediction):
    """Bytes of temporary tensors that AdamW's step makes at once."""
    return max((ledger.temporary for phase, ledger in prediction.timeline() if phase == "step"), default=0)


foreach_7b, single_7b, fused_7b = (made(seven(optimizer_loop=loop)) for loop in ("foreach", "single", "fused"))
assert fused_7b == 0 and abs(foreach_7b / (2 * P) - 1) < 0.001 and abs(single_7b / (2 * 2 * largest) - 1) < 0.001
single_small = made(predict(small, TrainingPlan(batch=1, seq_len=64, optimizer_loop="single")))
assert abs(single_small / (3 * 4 * largest_small) - 1) < 0.001
first = predict(small, TrainingPlan(batch=4, seq_len=1024, step="first"))
assert first.peak_at.startswith("backward")
qwen = Architecture.of("qwen2.5-0.5b")
qwen8 = predict("qwen2.5-0.5b", TrainingPlan(optimizer="adamw8bit"))
