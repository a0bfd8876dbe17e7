"""llama: rotary positions, RMSNorm, grouped keys and values, a gated MLP (transformers' modeling_llama).

Parameters, with C the width, I the MLP's inner width, q = n_head * head_dim and kv = n_kv_head * head_dim:

    per block   C q + 2 C kv + q C + 3 C I + 2 C     (+ biases)
    outside     V C (embedding) + V C (head, if untied) + C (last norm)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor, divide, linear, norm
from minigpt.memory.families.decoder import SLIDING, Decoder, attend, cached, eager_attention, heads, rotate
from minigpt.values import check_choice, check_counts, check_flags

# Null says none, not the default.
NULLABLE = ("sliding_window", "final_logit_softcapping", "attn_logit_softcapping", "q_lora_rank")


@dataclass(frozen=True, kw_only=True)
class Llama(Decoder):
    """Also the parent of the families that differ from it in little."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"

    named_activation: ClassVar[str] = "hidden_act"

    # transformers' defaults, for configurations that leave fields out (llama's first config.json did)
    defaults: ClassVar[dict] = dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(qkv_bias=self.qkv_bias, o_bias=self.o_bias, mlp_bias=self.mlp_bias)
        check_choice(ACTIVATIONS, hidden_act=self.activation)

    @classmethod
    def read(cls, config: dict) -> Llama:
        given = {name: value for name, value in config.items() if value is not None or name in NULLABLE}
        get = {**cls.defaults, **given}.get
        C, n_head, head_dim = get("hidden_size"), get("num_attention_heads"), get("head_dim")
        check_flags(tie_word_embeddings=get("tie_word_embeddings"))
        check_counts(hidden_size=C, num_attention_heads=n_head)
        if head_dim is None:
            head_dim = divide(hidden_size=C, num_attention_heads=n_head)
        return cls(
            family=config["model_type"], vocab_size=get("vocab_size"), n_layer=get("num_hidden_layers"), n_embd=C,
            n_head=n_head, n_kv_head=get("num_key_value_heads", n_head), head_dim=head_dim,
            n_inner=get("intermediate_size"), context=get("max_position_embeddings"),
            tied=get("tie_word_embeddings"), attention_dropout=get("attention_dropout", 0.0),
            activation=get(cls.named_activation, "silu"), **cls.read_more(get),
        )  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        """The family's own fields, from ``get(name, default)`` of the configuration."""
        bias, mlp_bias = get("attention_bias", False), get("mlp_bias", False)
        check_flags(attention_bias=bias, mlp_bias=mlp_bias)
        return dict(qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)

    # ------------------------------------------------------------ tensors

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        norms = norm("attn_norm", self.n_embd) + norm("mlp_norm", self.n_embd)
        return tuple(self.attention_tensors() + self.mlp_tensors(layer) + norms)

    def attention_tensors(self) -> list[Tensor]:
        C, q, kv = self.n_embd, self.n_head * self.head_dim, self.n_kv_head * self.head_dim
        out = linear("q", q, C, self.qkv_bias) + linear("k", kv, C, self.qkv_bias)
        return out + linear("v", kv, C, self.qkv_bias) + linear("o", C, q, self.o_bias)

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        C, inner = self.n_embd, self.n_inner
        out = linear("gate", inner, C, self.mlp_bias) + linear("up", inner, C, self.mlp_bias)
        return out + linear("down", C, inner, self.mlp_bias)

    # ------------------------------------------------------------ forward

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden, _weights = self.attention(layers, hidden, at=at, **shared)  # bound to the block's end, there too
        hidden = self.added(residual, hidden)
        residual = hidden
        hidden = self.norm(layers, hidden, at + "mlp_norm")
        hidden = self.mlp(layers, hidden, at)
        return self.added(residual, hidden)

    def added(self, residual: Value, hidden: Value) -> Value:
        """The residual stream after attention, or after the MLP."""
        return ops.add(residual, hidden)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        """The output, and eager attention's weights, which transformers returns beside it."""
        q = heads(layers(hidden, at + "q"), self.head_dim)
        k = heads(layers(hidden, at + "k"), self.head_dim)
        v = heads(layers(hidden, at + "v"), self.head_dim)
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout, self.eager)
        return layers(y, at + "o"), weights

    def eager(self, q: Value, k: Value, v: Value, mask: Value, dropout: float) -> tuple[Value, Value]:
        return eager_attention(q, k, v, mask, dropout)

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        return rotate(q, k, cos, sin)

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        gate = layers(x, at + "gate")
        activated = ACTIVATIONS[self.activation](gate)
        del gate
        up = layers(x, at + "up")
        product = ops.multiply(activated, up)
        del activated, up
        return layers(product, at + "down")


def windowed(get) -> dict:
    """A window for every layer, or for none."""
    window = get("sliding_window")
    return dict(window=window, layer_types=(SLIDING,) * get("num_hidden_layers") if window is not None else ())
