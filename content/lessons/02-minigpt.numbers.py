"""The numbers in the prose of lesson 02. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.families import KNOWN
from minigpt.memory.gpus import GPUS
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
t4 = GPUS["T4"].vram
fits = [str(n) for n in (8, 16, 32) if predict(small, TrainingPlan(batch=n, seq_len=1024)).peak.total < t4]
split = predict(nano, TrainingPlan(batch=B // 4, seq_len=T, accumulation=4))


for activation, turns in (("gelu", 1), ("gelu_new", 7 / 3)):  # where V moves the peak to the loss, in C
    for wider, at in ((0.8, "block 11"), (1.2, "log_softmax")):
        shape = KNOWN["gpt2"] | dict(activation_function=activation, vocab_size=int(wider * turns * small.n_embd))
        assert at in predict(shape, TrainingPlan(batch=8, seq_len=1024)).peak_at


def added_by(card=None, **dropout):
    """What a dropout of 0.1 adds to a block of GPT-2 on 4 x 256 tokens, in u."""
    plan, config = TrainingPlan(batch=4, seq_len=256, card=card), KNOWN["gpt2"]
    saved = [
        predict({**config, **changes, "n_layer": n}, plan).ledger.activations
        for changes in ({}, dropout)
        for n in (1, 2)
    ]
    return round((saved[3] - saved[2] - saved[1] + saved[0]) / (4 * 4 * 256 * config["n_embd"]), 9)


assert added_by(resid_pdrop=0.1) == 2 and added_by("A100 80GB", resid_pdrop=0.1) == 0.5
attention_dropout = added_by(attn_pdrop=0.1)
