"""falcon: attention and MLP side by side, q, k and v in one matrix, one key head or a few for all query heads.

Its own ways with memory (transformers' modeling_falcon): a mask is made for sdpa too; one key head is broadcast, which
the fused kernel does not do, so that every score is a real tensor; grouped ones are copied to every query head. Biases
are added in an operation of their own, the MLP's output and the scores' scale in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor, divide, linear, norm
from minigpt.memory.families.decoder import Decoder, cached, layer_norm, rotate
from minigpt.values import check_choice, check_flags, check_shares


@dataclass(frozen=True, kw_only=True)
class Falcon(Decoder):
    grouped: bool = False  # the "new decoder architecture": n_kv_head groups, always side by side
    multi_query: bool = True  # without groups: one key head for all, or one for each
    parallel: bool = True  # attention and MLP both read the block's input
    norms: int = 1  # before attention and MLP, if they are side by side
    bias: bool = False
    alibi: bool = False  # instead of rotary positions: a bias on each score for its distance, in the mask
    hidden_dropout: float = 0.0
    activation: str = "gelu"

    product: ClassVar = staticmethod(ops.matmul_then_add)
    defaults: ClassVar[dict] = dict(
        vocab_size=65024, hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, alibi=False,
        new_decoder_architecture=False, multi_query=True, parallel_attn=True, bias=False, hidden_dropout=0.0,
        attention_dropout=0.0, activation="gelu", max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(new_decoder_architecture=self.grouped, multi_query=self.multi_query)
        check_flags(parallel_attn=self.parallel, bias=self.bias, alibi=self.alibi)
        check_shares(hidden_dropout=self.hidden_dropout)
        check_choice(ACTIVATIONS, activation=self.activation)
        if self.grouped and not self.parallel:
            raise ValueError("parallel_attn is False; the new decoder architecture needs True")
        if self.norms not in ((1, 2) if self.grouped else (1,)):
            allowed = "1 or 2" if self.grouped else "1, as the decoder's architecture is not the new one"
            raise ValueError(f"num_ln_in_parallel_attn is {self.norms!r}; allowed: {allowed}")

    @classmethod
    def read(cls, config: dict) -> Falcon:
        get = {**cls.defaults, **{name: value for name, value in config.items() if value is not None}}.get
        flags = ("multi_query", "new_decoder_architecture", "tie_word_embeddings")
        check_flags(**{name: get(name) for name in flags})
        C, n_head, grouped = (
            get("n_embed", get("hidden_size")),
            get("num_attention_heads"),
            get("new_decoder_architecture"),
        )
        n_kv_head = get("num_kv_heads", n_head)
        if not grouped and get("multi_query"):
            n_kv_head = 1
        elif not grouped and n_kv_head != n_head:
            raise ValueError(f"num_kv_heads is {n_kv_head}; without multi_query it must be num_attention_heads")
        return cls(
            family="falcon", vocab_size=get("vocab_size"), n_layer=get("num_hidden_layers"), n_embd=C, n_head=n_head,
            n_kv_head=n_kv_head, head_dim=divide(hidden_size=C, num_attention_heads=n_head),
            n_inner=get("ffn_hidden_size", 4 * C), context=get("max_position_embeddings"),
            tied=get("tie_word_embeddings"), attention_dropout=get("attention_dropout"),
            grouped=grouped, multi_query=get("multi_query"), parallel=get("parallel_attn"),
            norms=get("num_ln_in_parallel_attn", 2 if grouped else 1) if get("parallel_attn") else 1,
            bias=get("bias"), alibi=get("alibi"), hidden_dropout=get("hidden_dropout"), activation=get("activation"),
        )  # fmt: skip

    # ------------------------------------------------------------ tensors

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        return super().outer_tensors()[0], norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner, bias = self.n_embd, self.n_inner, self.bias
        out = linear("qkv", (self.n_head + 2 * self.n_kv_head) * self.head_dim, C, bias) + linear("o", C, C, bias)
        out += linear("up", inner, C, bias) + linear("down", C, inner, bias) + norm("attn_norm", C, bias=True)
        return tuple(out + (norm("mlp_norm", C, bias=True) if self.norms == 2 or not self.parallel else []))

    # ------------------------------------------------------------ forward

    def masks(self, layers: Layers, embedded: Value) -> list:
        """Never left out; packed sequences are not looked for. With alibi each head has its own, and alibi beside."""
        tape, plan, (B, T, _) = layers.tape, layers.plan, embedded.shape
        tape.doing = "mask"
        if plan.attention == "eager" or plan.sequences == "padded":
            mask = tape.new((B, 1, T, T), embedded.dtype if plan.attention == "eager" else "bool")
        else:
            mask = views.expand(tape.new((1, 1, T, T), "bool"), B, 1, T, T)
        if not self.alibi:
            return [(mask, None)] * self.n_layer
        ones = [] if plan.sequences == "padded" else [tape.new((B, T), "int64")]
        alibi = ops.cast(tape.new((B * self.n_head, 1, T), "bfloat16"), embedded.dtype)
        return [(tape.new((B, self.n_head, T, T), embedded.dtype), alibi)] * self.n_layer + ones

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return layer_norm(layers, x, name)

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        attention_norm = mlp_norm = self.norm(layers, hidden, at + "attn_norm")
        if self.norms == 2:
            mlp_norm = self.norm(layers, hidden, at + "mlp_norm")
        attended, weights = self.attention(layers, attention_norm, at=at, **shared)
        if not self.parallel:
            residual = ops.add(residual, ops.dropout(attended, self.attention_dropout))
            mlp_norm = self.norm(layers, residual, at + "mlp_norm")
        fed = self.mlp(layers, mlp_norm, at)
        if self.parallel:
            fed = ops.add(fed, attended, in_place=True)
        out = ops.add(residual, ops.dropout(fed, self.hidden_dropout))
        layers.beside = weights
        return out

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: tuple
    ) -> tuple[Value, Value | None]:
        (B, T, C), (mask, alibi) = hidden.shape, mask
        qkv = layers(hidden, at + "qkv")  # bound until this returns
        q, k, v = self.split_heads(qkv)
        q, k, v = views.transpose(q, 1, 2), views.transpose(k, 1, 2), views.transpose(v, 1, 2)
        if alibi is None:
            q, k = rotate(q, k, cos, sin)
        k, v = cached(layers, k, v)
        scores = None
        if layers.plan.attention == "sdpa":
            y = attention(q, k, v, mask, self.attention_dropout if alibi is not None else 0.0, enable_gqa=False)
        elif alibi is not None:
            products = ops.matmul(q, views.transpose(k, 2, 3))  # this and all names are bound to the end
            exact = ops.cast(products, "float32")
            biased = ops.scale(ops.add(exact, views.view(alibi, B, self.n_head, 1, T)), in_place=True)
            masked = ops.add(biased, mask)
            scores = ops.softmax(ops.cast(masked, hidden.dtype))
            del masked
            scores = ops.dropout(scores, self.attention_dropout)
            y = ops.matmul(scores, v)
        else:
            scores = ops.scale(ops.matmul(q, views.transpose(k, 2, 3)), in_place=True)
            scores = ops.softmax(ops.cast(ops.add(scores, mask), hidden.dtype))
            y = ops.matmul(scores, v)
        y = views.view(views.permute(y, 0, 2, 1, 3), B, T, C)
        return layers(y, at + "o"), scores

    def split_heads(self, qkv: Value) -> tuple[Value, Value, Value]:
        """q, k and v, (B, T, heads, D) each; with groups all of them have every query head."""
        B, T, _ = qkv.shape
        if self.grouped:
            qkv = views.view(qkv, B, T, self.n_kv_head, -1, self.head_dim)
            q = views.narrow(qkv, 3, qkv.shape[3] - 2)
            k, v = views.pick(qkv, 3), views.pick(qkv, 3)
            k, v = views.expand(k, *q.shape), views.expand(v, *q.shape)
            q, k, v = (views.view(x, B, T, self.n_head, self.head_dim) for x in (q, k, v))
            return q, k, v
        if not self.multi_query:
            qkv = views.view(qkv, B, T, self.n_head, 3, self.head_dim)
            return views.select(qkv, 3), views.select(qkv, 3), views.select(qkv, 3)
        qkv = views.view(qkv, B, T, self.n_head + 2, self.head_dim)
        return views.narrow(qkv, 2, self.n_head), views.pick(qkv, 2), views.pick(qkv, 2)

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        hidden = layers(x, at + "up")
        hidden = ACTIVATIONS[self.activation](hidden)
        return layers(hidden, at + "down")
