"""bloom: positions by alibi, a bias on every score; LayerNorm after the embedding too (transformers' modeling_bloom).

Attention is eager whatever the plan says, since transformers has no other here, and keeps its scores to its end three
times over: biased, masked, and as probabilities. GELU is an autograd function in Python, which saves its input and
makes every step of its formula anew in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, divide, linear, norm
from minigpt.memory.families.decoder import Decoder, cached, layer_norm, require_gradient, run_block
from minigpt.values import check_flags, check_shares

TRAINED = 2048  # tokens in a sequence when it was trained; alibi has no longest one


@dataclass(frozen=True, kw_only=True)
class Bloom(Decoder):
    residual_normed: bool = False  # the residual stream is taken after the norms
    hidden_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(apply_residual_connection_post_layernorm=self.residual_normed)
        check_shares(hidden_dropout=self.hidden_dropout)

    @classmethod
    def read(cls, config: dict[str, Any]) -> Bloom:
        C, n_head = config["hidden_size"], config["n_head"]
        return cls(
            family="bloom", vocab_size=config["vocab_size"], n_layer=config["n_layer"], n_embd=C, n_head=n_head,
            n_kv_head=n_head, head_dim=divide(hidden_size=C, n_head=n_head), n_inner=4 * C, context=TRAINED,
            tied=config["tie_word_embeddings"], attention_dropout=config["attention_dropout"],
            hidden_dropout=config["hidden_dropout"],
            residual_normed=config["apply_residual_connection_post_layernorm"],
        )  # fmt: skip

    def check(self, plan) -> None:
        super().check(plan)
        if plan.sequences == "packed":
            raise ValueError("sequences is 'packed'; bloom takes no position_ids: allowed with it: plain, padded")

    # ------------------------------------------------------------ tensors

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        first, _ = super().outer_tensors()
        return first + norm("embedding_norm", self.n_embd, bias=True), norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner = self.n_embd, self.n_inner
        out = norm("attn_norm", C, bias=True) + linear("qkv", 3 * C, C, True) + linear("o", C, C, True)
        return tuple(
            out + norm("mlp_norm", C, bias=True) + linear("up", inner, C, True) + linear("down", C, inner, True)
        )

    # ------------------------------------------------------------ forward

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return layer_norm(layers, x, name)

    def model(self, layers: Layers, tokens: Value) -> Value:
        tape, (B, T) = layers.tape, tokens.shape
        embedded = self.embed(layers, tokens)
        require_gradient(layers, embedded)
        hidden = self.norm(layers, embedded, "embedding_norm")
        ones = tape.new((B, T), "float32") if layers.plan.sequences != "padded" else None  # else the mask is given
        alibi = self.alibi(hidden)
        mask = tape.new((B, 1, T, T), embedded.dtype)

        def block(i: int):
            return partial(self.block, layers, at=f"blocks.{i}.", alibi=alibi, mask=mask)

        for i in range(self.n_layer):
            hidden = run_block(layers, i, block, hidden)
        tape.block = "norm"
        hidden = self.norm(layers, hidden, "norm")
        layers.beside = None
        del ones
        return hidden

    def alibi(self, hidden: Value) -> Value:
        """What each head adds to a score for its distance, (B H, 1, T), computed in float32."""
        B, T, _ = hidden.shape
        return ops.cast(hidden.storage.tape.new((B * self.n_head, 1, T), "float32"), hidden.dtype)

    def block(self, layers: Layers, hidden: Value, *, at: str, alibi: Value, mask: Value) -> Value:
        normed = self.norm(layers, hidden, at + "attn_norm")
        residual = normed if self.residual_normed else hidden
        attended, weights = self.attention(layers, normed, residual, alibi, mask, at)
        normed = self.norm(layers, attended, at + "mlp_norm")
        residual = normed if self.residual_normed else attended
        out = self.fed(layers, normed, residual, at)
        layers.beside = weights
        return out

    def attention(
        self, layers: Layers, hidden: Value, residual: Value, alibi: Value, mask: Value, at: str
    ) -> tuple[Value, Value]:
        (B, T, C), H, D = hidden.shape, self.n_head, self.head_dim
        qkv = layers(hidden, at + "qkv")  # this and all names below are bound until the function returns
        parts = views.view(qkv, B, T, H, 3, D)
        q, k, v = (views.transpose(views.select(parts, 3), 1, 2) for _ in range(3))
        del parts
        k, v = cached(layers, k, v)
        q = views.view(q, B * H, T, D)
        k = views.transpose(views.view(k, B * H, T, D), 1, 2)
        v = views.view(v, B * H, T, D)
        scores = ops.baddbmm(alibi, q, k)
        weights = ops.add(views.view(scores, B, H, T, T), mask)
        probabilities = ops.cast(ops.softmax_in_float32(weights), q.dtype)
        probabilities = ops.dropout(probabilities, self.attention_dropout)
        y = ops.bmm(views.view(probabilities, B * H, T, T), v)
        y = views.view(views.permute(views.view(y, B, H, T, D), 0, 2, 1, 3), B, T, C)
        out = layers(y, at + "o")
        return ops.add(residual, ops.dropout(out, self.hidden_dropout)), probabilities

    def fed(self, layers: Layers, x: Value, residual: Value, at: str) -> Value:
        hidden = gelu(layers(x, at + "up"))
        out = layers(hidden, at + "down")
        return ops.add(residual, ops.dropout(out, self.hidden_dropout))


def gelu(x: Value) -> Value:
    """GeLUFunction, an autograd function: its steps are not recorded, those of its backward neither."""
    out = bloom_gelu_forward(views.detach(x))
    return x.storage.tape.record("gelu", (x,), out, [x.storage], lambda g: [bloom_gelu_back(g, g)])  # x is as g


def bloom_gelu_forward(x: Value) -> Value:
    """x * 0.5 * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x * x)))"""
    return ops.multiply(ops.scale(x), ops.shift(_tanh(x)))


def _tanh(x: Value) -> Value:
    return ops.tanh(ops.multiply(ops.scale(x), ops.shift(ops.multiply(ops.scale(x), x))))


def bloom_gelu_back(g: Value, x: Value) -> Value:
    """(0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g, with t the tanh above."""
    t = _tanh(x)
    slope = ops.add(
        ops.multiply(
            ops.scale(x), ops.multiply(ops.shift(ops.multiply(t, t)), ops.shift(ops.multiply(ops.scale(x), x)))
        ),
        ops.scale(ops.shift(t)),
    )
    return ops.multiply(slope, g)
