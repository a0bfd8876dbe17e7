"""What one block keeps for backward: eager attention in MiniGPT, and a llama's block in bfloat16. The meter's truth.

    eager(answer, (config, batch, seq_len))      ``answer(config, batch, seq_len)``, MiniGPT in float32
    llama(answer, (config, batch, seq_len))      the same for a llama's dictionary, all in bfloat16, fused attention

A block's share is what a model with two blocks keeps more than one with one, on the CPU's own tensors. MiniGPT with
fused attention is judged by ``counting.saved``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.closing import by_hand, knows, remembered
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints, times
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig

knows(__name__)


def eager(answer: Callable, case: tuple[GPTConfig, int, int]) -> None:
    config, batch, seq_len = case
    mine = by_hand(answer, config, batch, seq_len)
    what = f"eager, {config.n_embd} wide with {config.n_head} heads, batch {batch} x {seq_len}"
    integer(mine, kept_eager(*case), what, slips=eager_slips(*case), unit="bytes")


def llama(answer: Callable, case: tuple[dict, int, int]) -> None:
    config, batch, seq_len = case
    mine = by_hand(answer, config, batch, seq_len)
    what = (f"a llama {config['hidden_size']} wide, {config['num_key_value_heads']} key heads for "
            f"{config['num_attention_heads']}, batch {batch} x {seq_len}")  # fmt: skip
    integer(mine, kept_llama(tuple(config.items()), batch, seq_len), what, slips=llama_slips(*case), unit="bytes")


@remembered
def kept_eager(config: GPTConfig, batch: int, seq_len: int) -> int:
    plan = TrainingPlan(batch=batch, seq_len=seq_len, attention="eager")
    one, two = (measure(replace(config, n_layer=n), plan, "cpu").ledger.activations for n in (1, 2))
    return two - one


@remembered
def kept_llama(config: tuple[tuple[str, int], ...], batch: int, seq_len: int) -> int:
    plan, model = TrainingPlan(batch=batch, seq_len=seq_len, precision="bf16"), llama_model(dict(config))
    one, two = (measure({**model, "num_hidden_layers": n}, plan, "cpu").ledger.activations for n in (1, 2))
    return two - one


def llama_model(block: dict) -> dict:
    """A configuration around the sizes of a block; the rest does not change what the block keeps."""
    return dict(model_type="llama", vocab_size=40, max_position_embeddings=1024, tie_word_embeddings=False) | block


# ---------------------------------------------------------------- slips


def eager_slips(config: GPTConfig, batch: int, seq_len: int) -> list[Hints]:
    """Bytes too many in ``kept_eager``."""
    tokens = batch * seq_len
    u, scores, mask = 4 * tokens * config.n_embd, tokens * config.n_head * seq_len, seq_len * seq_len
    return [{
        "one-stream-missing": ("one (B, T, C) tensor is missing", -u),
        "two-streams-missing": ("two (B, T, C) tensors are missing", -2 * u),
        "no-qkv": ("q, k and v are missing: the two products of attention need all three", -3 * u),
        "output-twice": ("attention's output and o_proj's input are one tensor, and it is counted twice", u),
        "input-three-times": ("q_proj, k_proj and v_proj share one input tensor, and it is counted three times", 2 * u),
        "narrow-mlp": ("the MLP's inner tensors are taken as C wide, and they are 4 C wide", -6 * u),
    }, {
        "scores-twice": ("the scores before the softmax are counted as well; it keeps its output alone", 4 * scores),
        "scores-three-times": ("a division by a plain number, a mask and a softmax: only its output is kept, once",
                               8 * scores),
        "two-byte-scores": ("2 bytes are counted for a score; here all is float32", -2 * scores),
        "six-byte-scores": ("6 bytes for a score are right in 16 bits; in float32 the softmax's output and the weights "
                            "that multiply v are one storage", 2 * scores),
        "as-fused": ("that is fused attention, whatever config.attention says",
                     4 * tokens * config.n_head - 4 * scores - mask),
        "fused": ("the softmax's output is missing: (B, H, T, T) for eager attention", -4 * scores),
        "one-head": ("the scores are counted for one head", 4 * scores // config.n_head - 4 * scores),
    }, {
        "no-mask": ("the mask is missing: (T, T) of bools, once for all sequences and heads", -mask),
        "mask-per-head": ("the mask is counted for every head; all share one (T, T) tensor",
                          (config.n_head - 1) * mask),
        "mask-per-sequence": ("the mask is counted for every sequence; all share one (T, T) tensor",
                              (batch - 1) * mask),
        "mask-per-score": ("the mask is counted for every score; all share one (T, T) tensor", scores - mask),
        "float-mask": ("the mask is counted in float32; it is of bools, a byte each", 3 * mask),
    }, {
        "logsumexp": ("a logsumexp is counted; it is the fused kernel that keeps one", 4 * tokens * config.n_head),
        "no-statistics": ("the norms' statistics are missing: two float32 per token in each of the two norms",
                          -16 * tokens),
    }]  # fmt: skip


def llama_slips(config: dict, batch: int, seq_len: int) -> list[Hints]:
    """Bytes too many in ``kept_llama``."""
    tokens, C, inner = batch * seq_len, config["hidden_size"], config["intermediate_size"]
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    Cq, Ck = heads * head_dim, config["num_key_value_heads"] * head_dim
    slips: list[Hints] = [{
        "four-c-missing": (
            "4 C bytes per token are missing. Each of the two norms keeps three tensors: its input as a float32 copy, "
            "the normalized values, and, for the product that follows, its output", -4 * C),
        "eight-c-missing": (
            "8 C bytes per token are missing. Each of the two norms keeps three tensors: its input as a float32 copy, "
            "the normalized values, and, for the product that follows, its output", -8 * C),
        "wide-normalized": ("4 C bytes per token too many: the normalized values are cast to 16 bits before they are "
                            "multiplied with the norm's weight, and an addition keeps nothing of the stream", 4 * C),
        "gate-and-up-apart": ("gate and up read one tensor, and it is counted twice", 2 * C),
        "six-c-too-many": ("q, k and v read one tensor, gate and up another; each product's copy of its own is "
                           "autocast's", 6 * C),
        "k-and-v-wide": ("k and v are counted as wide as q; there are fewer key heads", 4 * (Cq - Ck)),
        "no-k-and-v": ("k and v are missing", -4 * Ck),
        "one-of-k-and-v": ("one of k and v is missing", -2 * Ck),
        "output-twice": ("attention's output and o_proj's input are one tensor, and it is counted twice", 2 * Cq),
        "no-output": ("attention's output or q is missing", -2 * Cq),
        "q-as-stream": ("q and attention's output are taken as wide as the stream; they have heads * head_dim numbers",
                        4 * (C - Cq)),
        "scores": ("scores are counted; the fused kernel keeps none", 2 * heads * seq_len),
        "float32": ("all is counted in float32; weights and stream are bfloat16", 8 * C + 4 * Cq + 4 * Ck + 8 * inner),
    }, {
        "three-in-the-mlp": ("one of the MLP's four inner tensors is missing: gate, SiLU's output, up, and the product",
                             -2 * inner),
        "two-in-the-mlp": ("two of the MLP's four inner tensors are missing: gate, SiLU's output, up, and the product",
                           -4 * inner),
    }, {
        "no-small-rest": ("the small rest is missing: a float32 number for each norm and for each head",
                          -4 * (2 + heads)),
        "no-logsumexp": ("a float32 number for each head is missing, attention's", -4 * heads),
        "no-norm-numbers": ("a float32 number for each of the two norms is missing", -8),
        "two-numbers-per-norm": ("two numbers per norm are counted; this norm has no mean, and keeps one", 8),
        "two-byte-rest": ("what norms and attention keep for each token is counted in 2 bytes; it is float32",
                          -2 * (2 + heads)),
        "key-heads-rest": ("attention's number is counted for each key head; each head has one",
                           4 * (config["num_key_value_heads"] - heads)),
    }]  # fmt: skip
    return times(slips, tokens)
