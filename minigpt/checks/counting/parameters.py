"""Counting a model's parameters: the meter's truth, and the slips people make.

counts(count, (what, model))      ``count(model)`` of a GPTConfig, or of the contents of a llama's config.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from minigpt.checks.closing import by_hand, knows, remembered
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints
from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig

knows(__name__)
LARGE = 10**8  # from here on the meter is not asked: the tests hold Architecture to it, and to published numbers


def counts(count: Callable, case: tuple[str, object]) -> None:
    what, model = case
    mine = by_hand(count, model)
    integer(mine, counted(model), what, slips=count_slips(model))


def counted(model) -> int:
    """The number of trained parameters."""
    model = with_type(model)
    expected = Architecture.of(model).parameters
    return expected if expected >= LARGE else measured(model).trainable // 4  # bytes of float32


def with_type(model):
    """A configuration as the meter takes it: a dictionary that says nothing else is a llama's."""
    return {"model_type": "llama", **model} if isinstance(model, dict) else model


def measured(model, precision: str = "fp32") -> StepMemory:
    """One short training step of ``model`` (a GPTConfig, or the contents of a config.json), metered on fake tensors."""
    fields = with_type(model) if isinstance(model, dict) else asdict(model)
    return _measured(json.dumps(fields, sort_keys=True), precision, isinstance(model, dict))


@remembered
def _measured(content: str, precision: str, is_json: bool) -> StepMemory:
    fields = json.loads(content)
    model = fields if is_json else GPTConfig(**fields)
    seq_len = min(8, Architecture.of(model).context)
    return measure(model, TrainingPlan(batch=1, seq_len=seq_len, precision=precision))


def count_slips(model) -> list[Hints]:
    """Parameters too many in a count of ``model``: embeddings, positions, attention, norms, MLP, biases, blocks."""
    a = Architecture.of(with_type(model))
    V, C, L, n_inner = a.vocab_size, a.n_embd, a.n_layer, a.n_inner
    q, kv = a.n_head * a.head_dim, a.n_kv_head * a.head_dim
    linears = [t for t in a.block_tensors() if t.kind == "linear"]

    def if_it_were(**changes) -> int:
        return replace(a, **changes).parameters - a.parameters

    embeddings: Hints = {
        "tied-head-twice": ("the tied head is counted twice: it is the embedding's own storage", V * C),
        "no-embedding": ("the token embedding is missing", -V * C),
    } if a.tied else {
        "no-head": ("the head is missing: it is not tied here, so it is a tensor of its own", -V * C),
        "no-embedding": ("the token embedding is missing; the head is another tensor here", -V * C),
    }  # fmt: skip
    norms = {
        "no-last-norm": ("the norm after the last block is missing", -C),
        "one-norm-a-block": ("one of the two norms of each block is missing", -L * C),
        "no-block-norms": ("the norms of the blocks are missing", -2 * L * C),
        "no-norms": ("all norms are missing", -(2 * L + 1) * C),
        "norm-biases": ("biases of the norms are counted, and there are none", (2 * L + 1) * C),
    }
    biases = {
        "biases": ("biases of the linear layers are counted, and there are none", L * sum(t.shape[0] for t in linears))
    }
    blocks = {"one-block": ("only one block is counted", if_it_were(n_layer=1)),
              "block-too-few": ("one block too few is counted", -if_it_were(n_layer=L + 1) if L > 2 else 0),
              "block-too-many": ("one block too many is counted", if_it_were(n_layer=L + 1))}  # fmt: skip
    mlp = {"mlp-matrix-missing": ("one of the MLP's matrices is missing", -L * C * n_inner)}
    if a.family in ("minigpt", "gpt2"):
        positions = {"no-positions": ("the position embedding is missing", -a.context * C)}
        mlp |= {
            "narrow-mlp": ("up_proj and down_proj are counted as width * width, without the factor of 4",
                           if_it_were(n_inner=C)),
            "third-mlp-matrix": ("a third matrix is counted in the MLP, and there are two", L * C * n_inner),
        }  # fmt: skip
    else:
        positions = {"positions-counted": (
            "position embeddings are counted, but rotary positions have no parameters", a.context * C)}  # fmt: skip
        mlp["mlp-4-wide"] = ("the MLP is taken as 4 * width, but the configuration states intermediate_size",
                             if_it_were(n_inner=4 * C))  # fmt: skip
    attention = {
        "wide-kv": ("k_proj and v_proj are counted as wide as q_proj, but the heads are grouped: there are fewer",
                    if_it_were(n_kv_head=a.n_head)),
        "one-wide-kv": ("one of k_proj and v_proj is counted as wide as q_proj", L * C * (q - kv)),
        "narrow-q-or-o": ("one of q_proj and o_proj is counted as narrow as k_proj", L * C * (kv - q)),
        "head-dim-ignored": ("head_dim is taken as width / heads, but the configuration states it",
                             if_it_were(head_dim=C // a.n_head)),
        "square-q-or-o": ("one of q_proj and o_proj is counted square, but heads * head_dim is not the width",
                          L * C * (C - q)),
        "square-q-and-o": ("q_proj and o_proj are counted square, but heads * head_dim is not the width",
                           2 * L * C * (C - q)),
        "no-q-or-o": ("one of q_proj and o_proj is missing", -L * C * q),
        "no-k-or-v": ("one of k_proj and v_proj is missing", -L * C * kv),
        "one-kv-head": ("k_proj and v_proj are counted with one head for all query heads", if_it_were(n_kv_head=1)),
    }  # fmt: skip
    return [embeddings, positions, attention, norms, mlp, biases, blocks]
