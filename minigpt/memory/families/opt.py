"""opt: learned positions, LayerNorm, a plain MLP with relu (transformers' modeling_opt).

Embeddings may be narrower than the blocks, with a matrix on the way in and another on the way out. Two rows of the
table of positions are never used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import Decoder, attend, cached, causal_mask, heads, require_gradient, run_block
from minigpt.values import check_counts, check_flags, check_shares

UNUSED = 2  # rows of the table of positions
PROJECTIONS = ("project_out", "project_in")  # between embeddings and blocks, in the order of the real model


@dataclass(frozen=True, kw_only=True)
class OPT(Decoder):
    n_embedded: int  # width of the embeddings
    norm_first: bool = True  # before attention and MLP; else after
    last_normed: bool = True
    bias: bool = True
    affine: bool = True  # the norms have weights and biases
    dropout: float = 0.0

    named_activation: ClassVar[str] = "activation_function"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(word_embed_proj_dim=self.n_embedded)
        check_flags(norm_first=self.norm_first, last_normed=self.last_normed, bias=self.bias, affine=self.affine)
        check_shares(dropout=self.dropout)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        first, embedded = config["do_layer_norm_before"], config["word_embed_proj_dim"]
        return dict(
            n_inner=config["ffn_dim"], n_embedded=config["hidden_size"] if embedded is None else embedded,
            norm_first=first, last_normed=first and not config["_remove_final_layer_norm"], bias=config["enable_bias"],
            affine=config["layer_norm_elementwise_affine"], dropout=config["dropout"],
        )  # fmt: skip

    # ------------------------------------------------------------ tensors

    @property
    def head_width(self) -> int:
        return self.n_embedded

    @property
    def projected(self) -> bool:
        return self.n_embedded != self.n_embd

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The last norm stands before the blocks."""
        C, narrow = self.n_embd, self.n_embedded
        out = [Tensor("embedding", (self.vocab_size, narrow), "embedding")]
        out.append(Tensor("positions", (self.context + UNUSED, C), "embedding"))
        if self.projected:
            out += linear(PROJECTIONS[0], narrow, C) + linear(PROJECTIONS[1], C, narrow)
        return out + (self._norm("norm") if self.last_normed else []), []

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner, bias = self.n_embd, self.n_inner, self.bias
        out = [tensor for name in "kvqo" for tensor in linear(name, C, C, bias)] + self._norm("attn_norm")
        return tuple(out + linear("up", inner, C, bias) + linear("down", C, inner, bias) + self._norm("mlp_norm"))

    def adapter_rank(self, tensor: Tensor, plan, targets: set[str]) -> int:
        """ "all-linear" is also the two matrices outside the blocks."""
        if tensor.name in PROJECTIONS:
            return plan.rank if plan.method != "full" and "all-linear" in plan.targets.split(",") else 0
        return super().adapter_rank(tensor, plan, targets)

    def _norm(self, name: str) -> list[Tensor]:
        return norm(name, self.n_embd, bias=True) if self.affine else []

    # ------------------------------------------------------------ forward

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return ops.layer_norm(x, layers.get(name), layers.get(name + ".bias"))

    def model(self, layers: Layers, tokens: Value) -> Value:
        tape, (B, T) = layers.tape, tokens.shape
        embedded = self.embed(layers, tokens)
        require_gradient(layers, embedded)
        # A mask even if none is given, so that packed sequences are not looked for.
        ones = tape.new((B, T), "float32") if layers.plan.sequences != "padded" else None
        positions = layers.positions or tape.new((B, T), "int64")
        unseen = layers.plan.sequences == "packed" and layers.plan.attention == "sdpa"
        mask = None if unseen else causal_mask(layers, embedded)
        position_embeds = ops.embedding(tape.new((B, T), "int64"), layers["positions"])
        if self.projected:
            embedded = layers(embedded, PROJECTIONS[1])
        hidden = ops.add(embedded, position_embeds)
        layerdrop = None

        def block(i: int):
            return partial(self.block, layers, at=f"blocks.{i}.", mask=mask, positions=positions)

        for i in range(self.n_layer):
            tape.block = f"block {i}"
            layerdrop = tape.new((), "float32")  # what chance would leave this layer out by
            hidden = run_block(layers, i, block, hidden)
        tape.block = "norm"
        if self.last_normed:
            hidden = self.norm(layers, hidden, "norm")
        if self.projected:
            hidden = layers(hidden, PROJECTIONS[0])
        del ones, layerdrop
        return hidden

    def block(self, layers: Layers, hidden: Value, *, at: str, mask: Value | None, positions: Value) -> Value:
        residual = hidden
        if self.norm_first:
            hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden, _weights = self.attention(layers, hidden, mask, at)
        hidden = ops.dropout(hidden, self.dropout)
        hidden = ops.add(residual, hidden)
        if not self.norm_first:
            hidden = self.norm(layers, hidden, at + "attn_norm")
        shape = hidden.shape
        hidden = views.view(hidden, -1, self.n_embd)
        residual = hidden
        if self.norm_first:
            hidden = self.norm(layers, hidden, at + "mlp_norm")
        hidden = layers(hidden, at + "up")
        hidden = ACTIVATIONS[self.activation](hidden)
        hidden = layers(hidden, at + "down")
        hidden = ops.dropout(hidden, self.dropout)
        hidden = views.view(ops.add(residual, hidden), *shape)
        if not self.norm_first:
            hidden = self.norm(layers, hidden, at + "mlp_norm")
        return hidden

    def attention(self, layers: Layers, hidden: Value, mask: Value | None, at: str) -> tuple[Value, Value | None]:
        q = heads(ops.scale(layers(hidden, at + "q")), self.head_dim)
        k = layers(hidden, at + "k")
        v = layers(hidden, at + "v")
        k, v = heads(k, self.head_dim), heads(v, self.head_dim)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights
