"""The numbers in the prose of lab 04. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.predicted.static import predict_static
from minigpt.optim.blockwise import dynamic_map

llama = Architecture.of("llama-7b")
P, tensors = llama.parameters, len(llama.tensors())
adamw_bf16, eight_bf16, lion_bf16 = (
    predict_static("llama-7b", TrainingPlan(optimizer=kind, precision="bf16")).optimizer
    for kind in ("adamw", "adamw8bit", "lion")
)
assert abs(eight_bf16 / adamw_bf16 - 0.5) < 0.01 and abs(lion_bf16 / adamw_bf16 - 1) < 1e-6
smallest = dynamic_map(False)[1].item()
