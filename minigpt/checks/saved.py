"""What a MiniGPT's step in float32 saves for backward: the meter's truth, and the slips people make, in bytes.

``saved`` runs one real step on CPU tensors, or on fake ones. One block's share is the difference that one more block
makes. ``block_slips``, ``saved_slips`` and ``fp32_slips`` are hints for ``integer`` and ``buckets``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from minigpt.checks.slips import parameter_slips
from minigpt.memory.buckets import Ledger
from minigpt.memory.families import Architecture
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig


@lru_cache(maxsize=64)
def saved(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> Ledger:
    """The meter's ledger of one float32 step of ``config`` with ``batch`` sequences of ``seq_len`` tokens."""
    return measure(config, TrainingPlan(batch=batch, seq_len=seq_len, optimizer_loop="single"), device).ledger


def saved_by_one_block(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> int:
    """What one more block adds to the activations."""
    one, two = (saved(replace(config, n_layer=n), batch, seq_len, device).activations for n in (1, 2))
    return two - one


def block_slips(config: GPTConfig, batch: int, seq_len: int) -> dict[str, int]:
    """{mistake: bytes too many} in what one block saves."""
    token = 4 * batch * seq_len  # one float32 a token
    stream, heads = token * config.n_embd, token * config.n_head
    return {
        "q_proj, k_proj and v_proj share one input tensor, and it is counted three times": 2 * stream,
        "attention's output and o_proj's input are one tensor, and it is counted twice": stream,
        "one (B, T, C) tensor is missing": -stream,
        "two (B, T, C) tensors are missing: the norms' inputs, or their outputs": -2 * stream,
        "q, k and v are missing: attention's backward needs all three": -3 * stream,
        "the input of the GELU or of down_proj is missing; the two are different tensors, 4 C wide": -4 * stream,
        "both of the MLP's inner tensors are missing": -8 * stream,
        "the MLP's inner tensors are taken as C wide, and they are 4 C wide": -6 * stream,
        "a score matrix is counted: the fused kernel never stores one": heads * seq_len,
        "two score matrices are counted: the fused kernel never stores one": 2 * heads * seq_len,
        "the logsumexp is missing: one float32 for each head of each token": -heads,
        "the logsumexp is counted once a token, and every head has its own": token - heads,
        "the norms' statistics are missing: two float32 a token in each of the two norms": -4 * token,
        "one float32 a token and norm is counted; a norm keeps two, the mean and 1/std": -2 * token,
        "34 B T C is a published figure for 16-bit numbers with the masks of dropout; this is float32 without": (
            34 * batch * seq_len * config.n_embd - 16 * stream - heads - 4 * token
        ),
    }


def saved_slips(config: GPTConfig, batch: int, seq_len: int, device: str = "cpu") -> dict[str, int]:
    """{mistake: bytes too many} in what the whole model saves, where each block is right."""
    tokens, block = batch * seq_len, saved_by_one_block(config, batch, seq_len, device)
    stream, logits = 4 * tokens * config.n_embd, 4 * tokens * config.vocab_size
    return {
        "only the blocks are counted; the embeddings' indices, the last norm and the loss save tensors too": (
            config.n_layer * block - saved(config, batch, seq_len, device).activations
        ),
        "only one block is counted": (1 - config.n_layer) * block,
        "one block too many is counted": block,
        "the log-probabilities are missing: the loss saves one float32 for each token and each vocabulary entry": (
            -logits
        ),
        "logits are counted beside the log-probabilities: the loss saves only the latter": logits,
        "the last norm's input or output is missing (the output is the head's input)": -stream,
        "the last norm's input and output are missing (the output is the head's input)": -2 * stream,
        "the last norm is missing: its input, its output, two statistics a token": -2 * stream - 8 * tokens,
        "8 bytes a token are missing: the token indices, the targets (both int64), or the last norm's statistics": (
            -8 * tokens
        ),
        "16 bytes a token are missing: token indices and targets, both int64": -16 * tokens,
        "indices are counted with 4 bytes: int64 has 8": -8 * tokens - 4 * seq_len,
        "the position indices are missing: (T,) of int64": -8 * seq_len,
        "the position indices are counted for every sequence; all share one (T,) tensor": 8 * (batch - 1) * seq_len,
        "the loss's own float32 is missing: the number of targets that it divides by": -4,
        "the embedding's output is counted by itself: it is the first norm's input, and there already": stream,
    }


def fp32_slips(config: GPTConfig) -> dict[str, dict[str, int]]:
    """{bucket: {mistake: bytes too many}} of weights, gradients and AdamW's state in float32."""
    architecture = Architecture.of(config)
    n, tensors = architecture.parameters, len(architecture.tensors())
    counts = parameter_slips(config)
    weights = {mistake: 4 * extra for mistake, extra in counts.items()}
    return {
        "weights": {**weights, "2 bytes a weight: that is a 16-bit model": -2 * n},
        "gradients": {**weights, "2 bytes a gradient; it has its weight's dtype, float32": -2 * n},
        "optimizer": {
            "AdamW's step counts are missing: a float32 for each tensor": -4 * tensors,
            "one step count is booked for the whole model, and each tensor has its own": 4 - 4 * tensors,
            "these are nano's step counts; each layer has tensors of its own": 32 * (4 - config.n_layer),
            "the tied head is counted as a tensor with a step count of its own": 4,
            "the last norm has a step count too": -4,
            "one of each block's two norms has no step count in your sum": -4 * config.n_layer,
            "the two norms of a block have a step count each": -8 * config.n_layer,
            "one of the two moments is missing": -4 * n,
            "a third number a parameter is booked: float32 training has no master copy": 4 * n,
            **{mistake: 8 * extra for mistake, extra in counts.items()},
        },
    }
