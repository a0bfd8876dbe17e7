"""What a MiniGPT's step in float32 saves for backward: the meter's truth, and the slips people make, in bytes.

    by_block(answer, (config, batch, seq_len, device))      ``answer(config, batch, seq_len)`` for one block
    by_model(answer, (config, batch, seq_len, device))      the same for the whole model

A case's step is run on CPU tensors, or on fake ones. A block's share is the difference that one more block makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigpt.checks.closing import by_hand, knows, remembered
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig

knows(__name__)
Case = tuple[GPTConfig, int, int, str]


def by_block(answer: Callable, case: Case) -> None:
    config, batch, seq_len, _ = case
    mine = by_hand(answer, config, batch, seq_len)
    what = f"a block {config.n_embd} wide with {config.n_head} heads, batch {batch} x {seq_len}"
    slips = block_slips(config, batch, seq_len)
    integer(mine, saved_by_one_block(*case), what, slips=slips, unit="bytes")


def by_model(answer: Callable, case: Case) -> None:
    config, batch, seq_len, _ = case
    mine = by_hand(answer, config, batch, seq_len)
    what = f"{config.n_layer} layers, {config.n_embd} wide, batch {batch} x {seq_len}"
    integer(mine, saved(*case), what, slips=saved_slips(*case), unit="bytes")


@remembered
def saved(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> int:
    """The activations of one float32 step, by the meter."""
    return measure(config, TrainingPlan(batch=batch, seq_len=seq_len), device).ledger.activations


def saved_by_one_block(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> int:
    """What one more block adds to the activations."""
    one, two = (saved(replace(config, n_layer=n), batch, seq_len, device) for n in (1, 2))
    return two - one


def block_slips(config: GPTConfig, batch: int, seq_len: int) -> list[Hints]:
    """Bytes too many in what one block saves."""
    token = 4 * batch * seq_len  # one float32 per token
    stream, heads = token * config.n_embd, token * config.n_head
    thrice = "q_proj, k_proj and v_proj share one input tensor, and it is counted three times"
    again = "attention's output and o_proj's input are one tensor, and it is counted twice"
    tensors = {
        "input-three-times": (thrice, 2 * stream), "output-twice": (again, stream),
        "input-three-times+output-twice": (f"two things: (1) {thrice}; (2) {again}", 3 * stream),
        "one-stream-missing": ("one (B, T, C) tensor is missing", -stream),
        "two-streams-missing": (
            "two (B, T, C) tensors are missing: of each of the two norms, input and output are saved", -2 * stream),
        "no-qkv": ("q, k and v are missing: attention's backward needs all three", -3 * stream),
        "one-mlp-tensor-missing": (
            "one of the MLP's inner tensors is missing: the GELU's input and down_proj's are two, each 4 C wide",
            -4 * stream),
        "no-mlp-tensors": (
            "both of the MLP's inner tensors are missing, or 2 bytes are counted for a float32", -8 * stream),
        "every-block": ("the blocks of the whole model are counted; one is asked for",
                        (config.n_layer - 1) * (16 * stream + heads + 4 * token)),
        "narrow-mlp": ("the MLP's inner tensors are taken as C wide, and they are 4 C wide", -6 * stream),
        "whole-context": (
            "tokens up to the context are counted; the batch has sequences of seq_len",
            (config.context - seq_len) * (16 * stream + heads + 4 * token) // seq_len),
        "one-sequence": (
            "the tokens of one sequence are counted; every sequence of the batch has its own",
            -(batch - 1) * (16 * stream + heads + 4 * token) // batch),
        "published-34": (
            "34 B T C is a published figure for 16-bit numbers and dropout; this step has float32 and no dropout",
            34 * batch * seq_len * config.n_embd - 16 * stream - heads - 4 * token),
    }  # fmt: skip
    attention = {
        "scores": ("a score matrix is counted: the fused kernel never stores one", heads * seq_len),
        "scores-twice": ("two score matrices are counted: the fused kernel never stores one", 2 * heads * seq_len),
        "no-logsumexp": ("the logsumexp is missing: one float32 for each head of each token", -heads),
        "one-logsumexp": ("the logsumexp is counted once per token, and every head has its own", token - heads),
        "logsumexp-of-one-sequence": (
            "the logsumexp is counted for one sequence, and every sequence of the batch has its own",
            -(batch - 1) * heads // batch,
        ),
    }
    statistics = {
        "no-statistics": (
            "the norms' statistics are missing: two float32 per token in each of the two norms", -4 * token),
        "one-statistic": (
            "half of the norms' statistics are missing: each norm keeps two float32 per token, mean and 1/std",
            -2 * token),
        "statistics-of-one-sequence": (
            "the norms' statistics are counted for one sequence, and every sequence of the batch has its own",
            -(batch - 1) * 4 * token // batch),
    }  # fmt: skip
    return [tensors, attention, statistics]


def saved_slips(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> list[Hints]:
    """Bytes too many in what the whole model saves, where each block is right."""
    tokens, block = batch * seq_len, saved_by_one_block(config, batch, seq_len, device)
    stream, logits = 4 * tokens * config.n_embd, 4 * tokens * config.vocab_size
    blocks = {
        "blocks-alone": (
            "only the blocks are counted; the embeddings' indices, the last norm and the loss save tensors too",
            config.n_layer * block - saved(config, batch, seq_len, device),
        ),
        "one-block": ("only one block is counted", (1 - config.n_layer) * block),
        "block-too-many": ("one block too many is counted", block),
        "block-too-few": ("one block too few is counted", -block if config.n_layer > 2 else 0),
    }
    loss = {
        "no-log-probabilities": (
            "the log-probabilities are missing: the loss saves one float32 for each token and each vocabulary entry",
            -logits),
        "logits-too": ("logits are counted beside the log-probabilities: the loss saves only the latter", logits),
    }  # fmt: skip
    last_norm = {
        "half-last-norm": (
            "one of the last norm's two tensors is missing: its input, and its output, which is the head's input",
            -stream),
        "no-last-norm-tensors": (
            "the last norm's input and output are missing (the output is the head's input)", -2 * stream),
        "embedding-output": (
            "the embedding's output is counted by itself: it is the first norm's input, and there already", stream),
    }  # fmt: skip
    indices = {
        "eight-bytes-a-token-missing": (
            "8 bytes per token are missing: so large are the token indices and the targets, both int64, and the last "
            "norm's two statistics",
            -8 * tokens),
        "sixteen-bytes-a-token-missing": (
            "16 bytes per token are missing: token indices and targets, both int64", -16 * tokens),
        "four-byte-indices": ("indices are counted with 4 bytes: int64 has 8", -8 * tokens - 4 * seq_len),
        "no-positions": ("the position indices are missing: (T,) of int64", -8 * seq_len),
        "positions-to-the-context": (
            "the positions up to the context are counted; only those of seq_len tokens are looked up",
            8 * (config.context - seq_len)),
        "positions-a-sequence": (
            "the position indices are counted for every sequence; all share one (T,) tensor",
            8 * (batch - 1) * seq_len),
    }  # fmt: skip
    number = {
        "no-number-of-targets": ("the loss's own float32 is missing: the number of targets that it divides by", -4)
    }
    return [blocks, loss, last_norm, indices, number]
