"""deepseek_v3: keys and values from a narrow latent, experts chosen by groups, others shared (modeling_deepseek_v3).

Queries, keys and values are each made in two steps, through a narrow vector R with a norm of its own; a head's width is
in two parts, of which one alone is rotated, and its key is one for all heads:

    q        C -> q_rank -> H (nope + rope)        or in one step, if there is no q_rank
    k, v     C -> kv_rank + rope;  kv_rank -> H (nope + v)

So values may be of another width than keys, which torch's fused kernel on a CPU does not take: then every score is a
real tensor under sdpa too. The cache holds the latent, not keys and values.

Routers compute in float32, if there is no autocast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.adapters import folded_row
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import attend, cached
from minigpt.memory.families.experts import Experts
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import joined, rotate
from minigpt.values import check_counts, check_flags


@dataclass(frozen=True, kw_only=True)
class DeepseekV3(Experts):
    q_rank: int | None
    kv_rank: int
    nope_dim: int  # of a head's queries and keys, not rotated
    rope_dim: int  # rotated
    v_dim: int
    interleaved: bool  # pairs that are rotated lie side by side
    groups: int  # of experts
    top_groups: int  # groups that a token's experts are from
    n_shared: int  # experts that all tokens have, as one of their width together

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = dict(kv_lora_rank=self.kv_rank, qk_nope_head_dim=self.nope_dim, v_head_dim=self.v_dim)
        check_counts(**widths, n_group=self.groups, n_shared_experts=self.n_shared)
        if self.q_rank is not None:
            check_counts(q_lora_rank=self.q_rank)
        check_flags(rope_interleave=self.interleaved)
        if self.n_kv_head != self.n_head:
            raise ValueError(f"num_key_value_heads is {self.n_kv_head}; it must be num_attention_heads")
        if self.rope_dim % 2 or self.rope_dim < 1:
            raise ValueError(f"qk_rope_head_dim is {self.rope_dim}; it must be even, since pairs are rotated")
        if self.n_expert % self.groups or self.n_expert < 2 * self.groups:
            raise ValueError(f"n_group is {self.groups}; it must divide n_routed_experts into groups of two or more")
        check_counts(most=self.groups, topk_group=self.top_groups)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias, nope, rope = (config[name] for name in ("attention_bias", "qk_nope_head_dim", "qk_rope_head_dim"))
        check_counts(qk_nope_head_dim=nope, qk_rope_head_dim=rope)
        check_counts(least=0, first_k_dense_replace=config["first_k_dense_replace"])
        return dict(
            head_dim=nope + rope, qkv_bias=bias, o_bias=bias, q_rank=config["q_lora_rank"],
            kv_rank=config["kv_lora_rank"], nope_dim=nope, rope_dim=rope, v_dim=config["v_head_dim"],
            interleaved=config["rope_interleave"], groups=config["n_group"], top_groups=config["topk_group"],
            n_shared=config["n_shared_experts"], n_expert=config["n_routed_experts"],
            top_k=config["num_experts_per_tok"], expert_inner=config["moe_intermediate_size"],
            normed=config["norm_topk_prob"],
            dense_layers=tuple(range(min(config["first_k_dense_replace"], config["num_hidden_layers"]))),
        )  # fmt: skip

    # ------------------------------------------------------------ tensors

    def attention_tensors(self) -> list[Tensor]:
        C, H, bias = self.n_embd, self.n_head, self.qkv_bias
        if self.q_rank is None:
            out = linear("q", H * self.head_dim, C)
        else:
            out = linear("q_a", self.q_rank, C, bias) + norm("q_norm", self.q_rank)
            out += linear("q_b", H * self.head_dim, self.q_rank)
        out += linear("kv_a_proj_with_mqa", self.kv_rank + self.rope_dim, C, bias) + norm("kv_norm", self.kv_rank)
        out += linear("kv_b", H * (self.nope_dim + self.v_dim), self.kv_rank)
        return out + linear("o", C, H * self.v_dim, self.o_bias)

    def expert_tensors(self) -> list[Tensor]:
        C, inner = self.n_embd, self.n_shared * self.expert_inner
        shared = linear("gate", inner, C) + linear("up", inner, C) + linear("down", C, inner)
        return [*self.stacks(), self.router(), *shared]

    def constants(self) -> dict[str, tuple[int, ...]]:
        """What corrects the routers' choice: transformers makes it in the weights' precision from a configuration."""
        sparse = range(len(self.dense_layers), self.n_layer)
        return {f"blocks.{i}.router.correction": (self.n_expert,) for i in sparse}

    @property
    def rotary_dim(self) -> int:
        return self.rope_dim

    # ------------------------------------------------------------ attention

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        B, T, _ = hidden.shape
        if self.q_rank is None:
            q = layers(hidden, at + "q")
        else:
            q = layers(self.norm(layers, layers(hidden, at + "q_a"), at + "q_norm"), at + "q_b")
        q = views.transpose(views.view(q, B, T, -1, self.head_dim), 1, 2)
        q_pass, q_rot = views.split(q, [self.nope_dim, self.rope_dim])
        compressed = layers(hidden, at + "kv_a_proj_with_mqa")
        latent, k_rot = views.split(compressed, [self.kv_rank, self.rope_dim])
        latent = self.norm(layers, latent, at + "kv_norm")
        latent = views.view(latent, B, 1, T, self.kv_rank)
        k_rot = views.view(k_rot, B, 1, T, self.rope_dim)
        if self.interleaved:
            q_rot, k_rot = _rotate_interleaved(q_rot, k_rot, cos, sin)
        else:
            q_rot, k_rot = rotate(q_rot, k_rot, cos, sin)
        latent, k_rot = cached(layers, latent, k_rot)
        queries = joined(q_rot, q_pass)
        keys, values = self._expanded(layers, latent, k_rot, at)
        y, weights = attend(layers, queries, keys, values, mask, self.attention_dropout, self.eager)
        return layers(y, at + "o"), weights

    def _expanded(self, layers: Layers, latent: Value, k_rot: Value, at: str) -> tuple[Value, Value]:
        """Keys and values of every head, (B, H, T, nope + rope) and (B, H, T, v)."""
        B, _, T, _ = latent.shape
        both = views.view(layers(latent, at + "kv_b"), B, T, -1, self.nope_dim + self.v_dim)
        both = views.transpose(both, 1, 2)
        k_nope, values = views.split(both, [self.nope_dim, self.v_dim])
        k_rot = views.expand(k_rot, -1, self.n_head, -1, -1)
        keys = layers.tape.new((B, self.n_head, T, self.head_dim), both.dtype)
        keys = views.write(keys, k_nope)
        keys = views.write(keys, k_rot)
        return keys, values

    # ------------------------------------------------------------ experts

    def mixture(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        residuals = x
        _logits, weights, chosen = self.route(layers, x, at + "router")
        x = views.view(x, -1, C)
        x = views.view(self.experts(layers, x, chosen, weights, at + "experts."), B, T, C)
        return ops.add(x, Llama.mlp(self, layers, residuals, at))

    def route(self, layers: Layers, x: Value, name: str) -> tuple[Value, Value, Value]:
        """As everywhere, but the choice is by corrected scores, within each token's best groups."""
        E, G = self.n_expert, self.groups
        weight = folded_row(layers, name)
        x = views.view(x, -1, self.n_embd)
        logits = ops.linear(ops.cast(x, "float32"), ops.cast(weight(), "float32"))
        scores = ops.sigmoid(logits)
        corrected = ops.add(scores, layers[name + ".correction"])
        in_groups = routing.sum_of(routing.topk(views.view(corrected, -1, G, E // G), 2)[0], -1)
        best_groups = routing.topk(in_groups, self.top_groups)[1]  # noqa: F841  bound to the end, as others
        marks = ops.like(in_groups)
        allowed = views.view(views.expand(views.unsqueeze(marks, -1), -1, G, E // G), -1, E)
        corrected = ops.mask_fill(corrected, _negated(allowed))
        chosen = routing.topk(corrected, self.top_k)[1]
        best = routing.gather(scores, chosen)
        if self.normed:
            best = routing.divide_in_place(best, ops.shift(routing.sum_of(best, -1, keep=True)))
        best = ops.scale(best)
        return logits, best, chosen


def _rotate_interleaved(q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    half = cos.shape[-1] // 2
    cos, sin = (views.unsqueeze(views.narrow(x, 2, half), 1) for x in (cos, sin))
    q1, q2 = views.every_other(q), views.every_other(q)
    k1, k2 = views.every_other(k), views.every_other(k)
    q = _turned(q1, q2, cos, sin)
    k = _turned(k1, k2, cos, sin)
    return q, k


def _turned(first: Value, second: Value, cos: Value, sin: Value) -> Value:
    """Of pairs, (x cos - y sin, y cos + x sin)."""
    a = ops.subtract(ops.multiply(first, cos), ops.multiply(second, sin))
    b = ops.add(ops.multiply(second, cos), ops.multiply(first, sin))
    return ops.cat([a, b])


def _negated(marks: Value) -> Value:
    """``~marks.bool()``."""
    new = marks.storage.tape.new
    as_bools = new(marks.shape, "bool")  # noqa: F841  lives until this returns
    return new(marks.shape, "bool")
