"""The numbers in the prose of lesson 02. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.units import GB
from minigpt.model import GPTConfig

B, T = 16, 256
nano, small = GPTConfig.preset("nano"), GPTConfig.preset("small")
L, C, H, V, S = nano.n_layer, nano.n_embd, nano.n_head, nano.vocab_size, nano.context
P, P_small = Architecture.of(nano).parameters, Architecture.of(small).parameters
unit = 4 * B * T * C
block = 16 * unit + 16 * B * T + 4 * B * H * T
plan = TrainingPlan(batch=B, seq_len=T)
step = predict(nano, plan)
per_sequence = (predict(nano, TrainingPlan(batch=2 * B, seq_len=T)).peak.total - step.peak.total) // B
big_vocabulary = GPTConfig.preset("nano", vocab_size=50257)
big = {holds: predict(big_vocabulary, TrainingPlan(batch=B, seq_len=T, holds=holds)) for holds in ("loss", "outputs")}
at_eight = predict(small, TrainingPlan(batch=8, seq_len=1024))
eager = predict(nano, TrainingPlan(batch=B, seq_len=T, attention="eager"))
tiny = predict(nano, TrainingPlan(batch=1, seq_len=64))
fits = [str(n) for n in (8, 16, 32) if predict(small, TrainingPlan(batch=n, seq_len=1024)).peak.total < 16 * GB]
split = predict(nano, TrainingPlan(batch=B // 4, seq_len=T, accumulation=4))
