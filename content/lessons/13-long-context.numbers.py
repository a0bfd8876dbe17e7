"""The numbers in the prose of lesson 13. content/README.md says how it uses them."""

from minigpt.context.truncation import keep
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.families import KNOWN
from minigpt.memory.gpus import GPUS
from minigpt.memory.predicted.reserved import reserve

qwen, llama, llama_2 = (Architecture.of(name) for name in ("qwen3-8b", "llama-3-8b", "llama-2-7b"))
C, I, L, V, T = qwen.n_embd, qwen.n_inner, qwen.n_layer, qwen.vocab_size, 20_000
fewer = {**KNOWN["qwen3-8b"], "vocab_size": 100_000}
room = GPUS["RTX 4080"].room
logits = f"{V * T / 1e9:.1f} billion"


def like(**changes):
    plan = dict(batch=1, seq_len=T, optimizer="paged_adamw8bit", checkpointing="reentrant", card="RTX 4080")
    return TrainingPlan.like("unsloth", **{**plan, **changes})


def step(tokens=T, model=qwen, **changes):
    """The recipe in the plan's words, with changes; as the lesson has it."""
    return predict(model, like(**{"seq_len": tokens, **changes}))


recipe, sliced, offloaded = step(), step(model=fewer), step(model=fewer, checkpointing="offload")
recipe_peak, offloaded_peak = recipe.peak.total, offloaded.peak.total
assert offloaded_peak < room < sliced.peak.total * 1.05 and room < recipe_peak
weights, gradients, state8 = recipe.ledger.weights, recipe.ledger.gradients, recipe.ledger.optimizer
state32 = step(optimizer="adamw").ledger.optimizer
inputs = 2 * C * L * T
reserved = reserve(fewer, like(card="RTX 4080")).reserved
assert room < reserved < 1.06 * room
over = f"{100 * (reserved / room - 1):.0f}"

# The vocabulary.
words_saved = recipe_peak - sliced.peak.total
words_rows = 2 * 2 * (V - 100_000) * C
assert words_saved == words_rows
llama_words = 2 * 2 * (llama.vocab_size - 100_000) * llama.n_embd
little = Architecture.of("qwen3-0.6b")
tied_saved = 2 * (little.vocab_size - 100_000) * little.n_embd
tied_share = tied_saved / (2 * little.parameters)

# Lengths that fit, less a tenth for what is reserved and not used.
each = (recipe_peak - step(T // 2).peak.total) / (T // 2)
fixed = recipe_peak - each * T
off_each = each - inputs / T
off_fixed = offloaded_peak + words_rows - off_each * T
per_token = f"{each:,.0f}"
assert inputs / T > each / 2


def length(vram, fixed, each):
    """Tokens that fit, in thousands."""
    return f"{(vram / 1.1 - fixed) / each / 1000:,.0f},000"


tokens_4090, tokens_4090_off = (length(GPUS["RTX 4090"].room, *of) for of in ((fixed, each), (off_fixed, off_each)))
longest = length(room * 1.1 / 1.05, fixed, each)
more_tokens = f"{words_saved / each:,.0f}"
llama_inputs = 4 * llama_2.n_embd * llama_2.n_layer * 32_768

# Truncation.
document = [5_000] * 28
oldest_six = keep(document, T, 6)[0]
one_token = next(f"{h / 10:g}" for h in range(10, 60) if keep(document, T, h / 10)[0] >= 1)
assert keep(document, T, 10_000)[0] in (714, 715)
