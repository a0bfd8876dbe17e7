"""falcon: attention and MLP side by side, q, k and v in one matrix, one key head or a few for all query heads.

Its own ways with memory (transformers' modeling_falcon): a mask is made for sdpa too; one key head is broadcast, which
the fused kernel does not do, so that every score is a real tensor; grouped ones are copied to every query head. Biases
are added in an operation of their own, the MLP's output and the scores' scale in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import cached, layer_norm
from minigpt.memory.families.rotary import Rotary, rotate
from minigpt.values import check_flags, check_shares


@dataclass(frozen=True, kw_only=True)
class Falcon(Rotary):
    grouped: bool = False  # the "new decoder architecture": n_kv_head groups, always side by side
    multi_query: bool = True  # without groups: one key head for all, or one for each
    parallel: bool = True  # attention and MLP both read the block's input
    norms: int = 1  # before attention and MLP, if they are side by side
    bias: bool = False
    alibi: bool = False  # instead of rotary positions: a bias on each score for its distance, in the mask
    hidden_dropout: float = 0.0

    named_activation: ClassVar[str] = "activation"
    product: ClassVar = staticmethod(ops.matmul_then_add)
    in_a_row: ClassVar[bool] = False  # a block returns its scores too

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(new_decoder_architecture=self.grouped, multi_query=self.multi_query)
        check_flags(parallel_attn=self.parallel, bias=self.bias, alibi=self.alibi)
        check_shares(hidden_dropout=self.hidden_dropout)
        if self.grouped and not self.parallel:
            raise ValueError("parallel_attn is False; the new decoder architecture needs True")
        if self.norms not in ((1, 2) if self.grouped else (1,)):
            allowed = "1 or 2" if self.grouped else "1, as the decoder's architecture is not the new one"
            raise ValueError(f"num_ln_in_parallel_attn is {self.norms!r}; allowed: {allowed}")

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        C, n_head, inner = config["hidden_size"], config["num_attention_heads"], config["ffn_hidden_size"]
        grouped, norms = config["new_decoder_architecture"], config["num_ln_in_parallel_attn"]
        n_kv_head = n_head if config["num_kv_heads"] is None else config["num_kv_heads"]
        if norms is None or not config["parallel_attn"]:
            norms = 2 if grouped else 1
        if not grouped and config["multi_query"]:
            n_kv_head = 1
        elif not grouped and n_kv_head != n_head:
            raise ValueError(f"num_kv_heads is {n_kv_head}; without multi_query it must be num_attention_heads")
        return dict(
            n_kv_head=n_kv_head, n_inner=4 * C if inner is None else inner, grouped=grouped, norms=norms,
            multi_query=config["multi_query"], parallel=config["parallel_attn"], bias=config["bias"],
            alibi=config["alibi"], hidden_dropout=config["hidden_dropout"],
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

    def masks(self, layers: Layers, embedded: Value) -> Sequence[Any]:
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
            self.refuse_view(layers, fed, at + "down")
            fed = ops.add(fed, attended, in_place=True)
        out = ops.add(residual, ops.dropout(fed, self.hidden_dropout))
        layers.beside = weights
        return out

    def refuse_view(self, layers: Layers, fed: Value, name: str) -> None:
        """Raise ValueError where torch refuses: with a bias bitsandbytes returns a view, which none may write into."""
        if name not in layers.quantized or name + ".A" in layers.weights or not self.bias:
            return
        view = layers.eight_bit or (fed.source is not None and fed.dtype == layers.half)  # else a cast, or no autograd
        if view:
            raise ValueError(
                "bias is True; torch refuses a quantized falcon with it: allowed with it: targets with down"
            )

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Any
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
