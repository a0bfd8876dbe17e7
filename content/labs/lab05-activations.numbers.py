"""The numbers in the prose of lab 05. content/README.md says how it uses them."""

from minigpt.memory import TrainingPlan, predict
from minigpt.model import GPTConfig

wide, B, T, CHUNK = GPTConfig.preset("nano", vocab_size=4096), 8, 64, 64


def peak(checkpointing="none"):
    plan = TrainingPlan(batch=B, seq_len=T, checkpointing=checkpointing, optimizer_loop="single")
    return predict(wide, plan)


gradients = peak().ledger.gradients
plain, again = peak().peak.total, peak("reentrant").peak.total
u, words = 4 * B * T * wide.n_embd, 4 * wide.vocab_size * wide.n_embd  # the stream, the head
logits = 4 * B * T * wide.vocab_size
# Three tensors like the logits go; dh, dW twice and a chunk come.
chunked = plain - 3 * logits + u + 2 * words + 4 * CHUNK * wide.vocab_size
assert plain - chunked > plain - again > 0
