"""The slips people make when they count parameters and the three static buckets, in bytes or elements.

``parameter_slips`` and ``static_slips`` list them for one model, as hints for ``integer`` and ``buckets``;
``measured`` is the truth that lab01 is graded against: the meter's reading of a real step on fake tensors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass, replace
from functools import lru_cache

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.plan import PRECISIONS, TrainingPlan


def measured(model, precision: str = "fp32") -> StepMemory:
    """One short training step of ``model`` (a GPTConfig, or the contents of a config.json), metered on fake tensors."""
    key = asdict(model) if is_dataclass(model) else model
    return _measured(type(model), json.dumps(key, sort_keys=True), precision)


@lru_cache(maxsize=64)
def _measured(kind: type, content: str, precision: str) -> StepMemory:
    from minigpt.memory.measured.step import measure

    fields = json.loads(content)
    model = kind(**fields) if is_dataclass(kind) else fields
    seq_len = min(8, Architecture.of(model).context)
    return measure(model, TrainingPlan(batch=1, seq_len=seq_len, precision=precision))


def parameter_slips(model) -> dict[str, int]:
    """{mistake: parameters too many} of a parameter count of ``model`` (anything ``Architecture.of`` reads)."""
    a = Architecture.of(model)
    V, C, L, n_inner = a.vocab_size, a.n_embd, a.n_layer, a.n_inner
    q, kv = a.n_head * a.head_dim, a.n_kv_head * a.head_dim
    linears = [t for t in a.block_tensors() if t.kind == "linear"]

    def if_it_were(**changes) -> int:
        return replace(a, **changes).parameters - a.parameters

    slips = {}
    if a.tied:
        slips["the tied head is counted twice: it is the embedding's own storage"] = V * C
        slips["the token embedding is missing"] = -V * C
    else:
        slips["the head is missing (or the embedding): they are not tied here, so both count"] = -V * C
    if a.n_kv_head != a.n_head:
        slips["k_proj and v_proj are counted as wide as q_proj, but the heads are grouped: there are fewer of them"] = (
            if_it_were(n_kv_head=a.n_head)
        )
        slips["one of k_proj and v_proj is counted as wide as q_proj"] = L * C * (q - kv)
        slips["one of q_proj and o_proj is counted as narrow as k_proj"] = L * C * (kv - q)
    if a.head_dim * a.n_head != C:
        slips["head_dim is taken as width / heads, but the configuration states it"] = if_it_were(
            head_dim=C // a.n_head
        )
        slips["one of q_proj and o_proj is counted square, but heads * head_dim is not the width"] = L * C * (C - q)
        slips["q_proj and o_proj are counted square, but heads * head_dim is not the width"] = 2 * L * C * (C - q)
    slips |= {
        "the norm after the last block is missing": -C,
        "one of the two norms of each block is missing": -L * C,
        "the norms of the blocks are missing": -2 * L * C,
        "all norms are missing": -(2 * L + 1) * C,
        "biases of the linear layers are counted, and there are none": L * sum(t.shape[0] for t in linears),
        "biases of the norms are counted, and there are none": (2 * L + 1) * C,
        "only one block is counted": if_it_were(n_layer=1),
        "one block too few is counted": -(if_it_were(n_layer=L + 1)),
        "one block too many is counted": if_it_were(n_layer=L + 1),
        "one of the MLP's matrices is missing": -L * C * n_inner,
        "q_proj or o_proj is missing": -L * C * q, "k_proj or v_proj is missing": -L * C * kv,
        "k_proj and v_proj are counted with one head for all query heads": if_it_were(n_kv_head=1),
    }  # fmt: skip
    if a.family in ("minigpt", "gpt2"):
        slips["the position embedding is missing"] = -a.context * C
        slips["up_proj and down_proj are counted as width * width, without the factor of 4"] = if_it_were(n_inner=C)
        slips["a third matrix is counted in the MLP, and there are two"] = L * C * n_inner
    else:
        slips["the MLP is taken as 4 * width, but the configuration states intermediate_size"] = if_it_were(
            n_inner=4 * C
        )
        slips["position embeddings are counted, but rotary positions have no parameters"] = a.context * C
    return slips


def static_slips(parameters: int, tensors: int, precision: str) -> dict[str, dict[str, int]]:
    """{bucket: {mistake: bytes too many}} of the static buckets of a model with so many parameters and tensors."""
    regime, n = PRECISIONS[precision], parameters
    steps = {
        "AdamW's step count is missing: a float32 for each tensor": -4 * tensors,
        "AdamW's step count is booked once, but each tensor has its own": 4 - 4 * tensors,
        "AdamW's step count is booked in 2 bytes; it is a float32 in every precision": -2 * tensors,
        "AdamW's step count is booked in 8 bytes; it is a float32": 4 * tensors,
        "AdamW's step count is booked for each parameter, but each tensor has only one": 4 * (n - tensors),
    }
    if regime.weights == 2:
        return {
            "weights": {"these are float32 weights, but in pure bf16 the weights are bf16": 2 * n,
                        "a float32 master copy is booked, and pure bf16 has none": 4 * n},
            "gradients": {"these are float32 gradients, but a gradient has its weight's dtype": 2 * n},
            "optimizer": {**steps, "one of AdamW's two moments is missing": -2 * n,
                          "these are float32 moments, but AdamW's moments have their weight's dtype": 4 * n,
                          "a float32 master copy is booked, and pure bf16 has none": 4 * n},
        }  # fmt: skip
    return {
        "weights": {"these are 2-byte weights, but autocast leaves the weights in float32": -2 * n,
                    "a bf16 copy is booked beside the weights; autocast's casts live only while they are used": 2 * n,
                    "a master copy is booked, but under autocast the weights are the float32 copy": 4 * n},
        "gradients": {"these are 2-byte gradients, but autocast leaves the weights in float32, and so their gradients":
                      -2 * n,
                      "a bf16 copy of the gradients is booked, and there is none": 2 * n},
        "optimizer": {**steps, "one of AdamW's two moments is missing": -4 * n,
                      "these are bf16 moments, but AdamW's moments have their weight's dtype": -4 * n,
                      "a master copy is booked, but under autocast the weights are the float32 copy": 4 * n},
    }  # fmt: skip
