"""The numbers in the prose of lab 10. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.gpus import GPUS
from minigpt.model import GPTConfig

llama = Architecture.of("llama-7b")
step = dict(batch=1, seq_len=256, precision="bf16")
adam_7b, galore_7b, least_7b, early_7b, lora_7b = (
    predict("llama-7b", TrainingPlan(**step, **more))
    for more in (
        {}, dict(optimizer="galore", rank=1024), dict(optimizer="galore", rank=1),
        dict(optimizer="galore", rank=1024, optimizer_in_backward=True), dict(method="lora", rank=8),
    )
)  # fmt: skip
card = GPUS["RTX 4090"].vram
assert card < 4 * llama.parameters < least_7b.peak.total and early_7b.peak.total < card

# The dry run on nano, as parts 5 and 6 make it.
nano = GPTConfig.preset("nano")
dry = dict(batch=8, seq_len=96, optimizer_loop="single")
full = predict(nano, TrainingPlan(**dry))
matrices = [t.shape for t in Architecture.of(nano).tensors() if t.kind == "linear"]
fixed = full.ledger.weights + full.ledger.gradients + 8 * (full.ledger.weights // 4 - sum(m * n for m, n in matrices))
rank = (2 * full.ledger.persistent // 3 - fixed) // (4 * sum(min(shape) + 2 * max(shape) for shape in matrices))
projected = predict(nano, TrainingPlan(optimizer="galore", rank=rank, **dry))
assert projected.ledger.persistent <= 2 * full.ledger.persistent // 3
state_saved = 1 - projected.ledger.optimizer / full.ledger.optimizer
peak_saved = 1 - projected.peak.total / full.peak.total
halves = predict(nano, TrainingPlan(**{**dry, "batch": 4, "accumulation": 2}))
assert halves.peak.total < projected.peak.total < full.peak.total
