"""What transformers' causal language models share: embedding, blocks, last norm, head, loss; two kinds of attention.

Local variables matter: a name that is still bound keeps its storage alive, here as in the real model. So these
functions follow transformers 5.17 line by line (``modeling_llama``, ``masking_utils``, ``sdpa_attention``,
``loss_utils``), down to which names they keep.

Symbols: B batch, T sequence, C width, H query heads, K key heads, D head width, I inner width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.checkpointing import checkpoint
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Leaf, Value
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.families.losses import loss_of
from minigpt.values import check_choice, check_counts, check_shares

FULL, SLIDING = "full_attention", "sliding_attention"  # what a layer may be, in a configuration's layer_types
CAP = (ops.scale, ops.tanh, ops.scale)  # a soft cap: c * tanh(x / c)


@dataclass(frozen=True, kw_only=True)
class Decoder(Architecture):
    """A causal language model of transformers. A family gives ``block``, and what it does otherwise."""

    attention_dropout: float = 0.0
    window: int | None = None  # tokens that a sliding layer sees
    layer_types: tuple[str, ...] = ()  # FULL or SLIDING for each layer; none: FULL

    masked: ClassVar[tuple[str, ...]] = ()  # kinds of layers for which a mask is made even if there are none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(attention_dropout=self.attention_dropout)
        if self.window is not None:
            check_counts(least=0, sliding_window=self.window)
        object.__setattr__(self, "layer_types", tuple(self.layer_types))  # a JSON file has lists only
        for kind in self.layer_types:
            check_choice((FULL, SLIDING), layer_types=kind)
        if self.layer_types and len(self.layer_types) != self.n_layer:
            raise ValueError(f"layer_types has {len(self.layer_types)} items; it must have one for each layer")
        if self.window is None and SLIDING in (*self.masked, *self.layer_types):
            raise ValueError("sliding_window is None; layers with sliding attention need one")

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        """One block, (B, T, C) to (B, T, C); ``at`` is its name, such as "blocks.0."."""
        raise NotImplementedError

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return rms_norm(layers, x, name)

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        return loss_of(layers, self.model(layers, tokens), targets, self.logits)

    def logits(self, layers: Layers, hidden: Value) -> Value:
        return layers(hidden, "head")

    @property
    def kinds(self) -> tuple[str, ...]:
        """FULL or SLIDING for each layer."""
        return self.layer_types or (FULL,) * self.n_layer

    def model(self, layers: Layers, tokens: Value) -> Value:
        tape = layers.tape
        embedded = self.embed(layers, tokens)
        require_gradient(layers, embedded)
        if layers.plan.use_cache:  # a sliding layer's cache has its window as a tensor
            layers.outputs += [tape.new((1,), "int64") for kind in self.kinds if kind == SLIDING]
        positions = positions_of(layers, tokens)
        masks = self.masks(layers, embedded)
        hidden = self.first(embedded)
        turns = self.turns(hidden, positions)
        for i, kind in enumerate(self.kinds):
            tape.block = f"block {i}"
            cos, sin = turns[kind]
            shared = dict(positions=positions, cos=cos, sin=sin, mask=masks[i])
            hidden = run_block(layers, partial(self.block, layers, at=f"blocks.{i}.", **shared), hidden)
        tape.block = "norm"
        hidden = self.norm(layers, hidden, "norm")
        del positions, masks
        layers.beside = None
        return hidden

    def embed(self, layers: Layers, tokens: Value) -> Value:
        """What the embedding layer returns."""
        return ops.embedding(tokens, layers["embedding"])

    def first(self, embedded: Value) -> Value:
        """What the first block is given."""
        return embedded

    def masks(self, layers: Layers, embedded: Value) -> list[Value | None]:
        """The mask of each block; what follows them lives as long, unused."""
        kinds = dict.fromkeys((*self.masked, *self.kinds))
        made = {kind: causal_mask(layers, embedded, self.window if kind == SLIDING else None) for kind in kinds}
        return [made[kind] for kind in self.kinds] + list(made.values())

    @property
    def rotary_dim(self) -> int:
        """How much of a head's width is rotated."""
        return self.head_dim

    @property
    def rotary_width(self) -> int:
        """How many cosines a position has."""
        return self.rotary_dim

    def turns(self, hidden: Value, positions: Value) -> dict[str, tuple[Value, Value]]:
        """cos and sin for each kind of layer."""
        return dict.fromkeys((FULL, SLIDING), rotations(hidden, positions, self.rotary_width))

    def buffers(self) -> list[int]:
        """The rotary frequencies: two float32 vectors of half the rotated width."""
        return [4 * (self.rotary_dim // 2)] * 2


def run_block(layers: Layers, run: Callable[..., Value], *inputs: Value) -> Value:
    """One block, checkpointed if the plan says so. run's other arguments live as long as run does."""
    if layers.plan.checkpointing == "none":
        return run(*inputs)
    return checkpoint(layers.tape, run, inputs)


def require_gradient(layers: Layers, embedded: Value) -> None:
    """transformers' enable_input_require_grads, which checkpointing turns on: the embeddings take a gradient."""
    if layers.plan.checkpointing != "none" and embedded.source is None:
        embedded.source = Leaf(bucket=None)
        layers.embedded = embedded


def positions_of(layers: Layers, tokens: Value) -> Value:
    """(1, T), made by the model; or (B, T), given, where several sequences are packed in a row."""
    if layers.positions is not None:
        return layers.positions
    return layers.tape.new((1, tokens.shape[1]), "int64")


def causal_mask(layers: Layers, embedded: Value, window: int | None = None) -> Value | None:
    """The additive mask of eager attention, (B, 1, T, T); sdpa takes one of bools, and none if it is told enough.

    It is told that attention is causal, and no more: padding, packing or a sequence as long as the ``window`` need a
    mask. With a cache, packed sequences are not looked for. A window's own mask is made once for all sequences.
    """
    tape, plan, (B, T, _) = layers.tape, layers.plan, embedded.shape
    tape.doing = "mask"
    if plan.attention == "eager":
        return tape.new((B, 1, T, T), embedded.dtype)
    if plan.sequences == "padded" or (plan.sequences == "packed" and not plan.use_cache):
        return tape.new((B, 1, T, T), "bool")
    if window is None or T < window:
        return None
    return views.expand(tape.new((1, 1, T, T), "bool"), B, 1, T, T)


def rotations(embedded: Value, positions: Value, width: int) -> tuple[Value, Value]:
    """cos and sin of every position, (1 or B, T, D) each, computed in float32, kept in the embeddings' dtype."""
    tape, shape = embedded.storage.tape, (*positions.shape, width)
    return tape.new(shape, embedded.dtype), tape.new(shape, embedded.dtype)


def rms_norm(layers: Layers, x: Value, name: str) -> Value:
    """weight * (x32 / sqrt(mean(x32**2) + eps)).to(x's dtype), with x32 a float32 copy of x."""
    dtype = x.dtype
    hidden = ops.cast(x, "float32")
    variance = ops.mean_of_last(ops.power(hidden))
    hidden = ops.multiply(hidden, ops.rsqrt(ops.shift(variance)))
    return ops.multiply(layers[name], ops.cast(hidden, dtype))


def rms_norm_in_float32(layers: Layers, x: Value, name: str) -> Value:
    """As ``rms_norm``, but in float32 to the end: (weight * ...).to(x's dtype)."""
    dtype = x.dtype
    hidden = ops.cast(x, "float32")
    variance = ops.mean_of_last(ops.power(hidden))
    hidden = ops.multiply(hidden, ops.rsqrt(ops.shift(variance)))
    return ops.cast(ops.multiply(layers[name], hidden), dtype)


def layer_norm(layers: Layers, x: Value, name: str) -> Value:
    return ops.layer_norm(x, layers[name], layers.get(name + ".bias"))


def heads(x: Value, width: int) -> Value:
    """(B, T, H D) as (B, H, T, D)."""
    B, T, _ = x.shape
    return views.transpose(views.view(x, B, T, -1, width), 1, 2)


def rotate(q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    """apply_rotary_pos_emb: x * cos + rotate_half(x) * sin, for queries and keys."""
    cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
    q = rotated(q, cos, sin)
    k = rotated(k, cos, sin)
    return q, k


def rotated(x: Value, cos: Value, sin: Value) -> Value:
    straight = ops.multiply(x, cos)
    rotated = rotate_half(x)
    turned = ops.multiply(rotated, sin)
    del rotated
    return ops.add(straight, turned)


def rotate_half(x: Value) -> Value:
    """(-upper half, lower half). The gradient of each slice is a whole tensor with zeros."""
    half = x.shape[-1] // 2
    lower = views.narrow(x, 3, half)
    upper = views.narrow(x, 3, x.shape[-1] - half)
    return views.cat([ops.scale(upper), lower])


def parted(x: Value, width: int) -> tuple[Value, Value]:
    """The first ``width`` of each head, and the rest, which may be nothing."""
    return views.narrow(x, 3, width), views.narrow(x, 3, x.shape[-1] - width)


def joined(turned: Value, rest: Value) -> Value:
    """Rotated and other part in a new tensor."""
    return views.cat([turned, rest])


def rope(get, name: str, default):
    """A field of the rotary parameters, for which files have a dictionary, or a place among the others."""
    among = get("rope_scaling") or get("rope_parameters") or {}
    return among.get(name, get(name, default))


def cached(layers: Layers, k: Value, v: Value) -> tuple[Value, Value]:
    """transformers' DynamicCache: copies of the keys and values, in the keys' precision, kept as outputs."""
    if not layers.plan.use_cache:
        return k, v
    v = ops.cast(v, k.dtype)
    k, v = (views.cat([x]) for x in (k, v))
    layers.outputs += [k, v]
    return k, v


def attend(
    layers: Layers,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    dropout: float = 0.0,
    eager: Callable | None = None,
) -> tuple[Value, Value | None]:
    """Attention as the plan has it, (B, T, H D), and the weights where they are a tensor."""
    if layers.plan.attention == "sdpa":
        return sdpa(q, k, v, mask, dropout), None
    y, weights = (eager or eager_attention)(q, k, v, mask, dropout)
    return y, weights


def sdpa(q: Value, k: Value, v: Value, mask: Value | None, dropout: float = 0.0) -> Value:
    """(B, T, H D). Grouped keys and values stay as they are, unless there is a mask or a head is wider than 256."""
    if mask is not None or k.shape[-1] > 256:
        times = q.shape[1] // k.shape[1]
        k, v = views.repeat_heads(k, times), views.repeat_heads(v, times)
    y = views.contiguous(views.transpose(attention(q, k, v, mask, dropout), 1, 2))
    return merged(y)


def merged(y: Value) -> Value:
    """(B, T, H, D) as (B, T, H D)."""
    B, T, _, _ = y.shape
    return views.contiguous(views.view(y, B, T, -1))


def eager_attention(
    q: Value, k: Value, v: Value, mask: Value | None, dropout: float = 0.0, capped: bool = False
) -> tuple[Value, Value]:
    """llama's eager attention; grouped keys and values are repeated to every query head first."""
    times = q.shape[1] // k.shape[1]
    keys, values = views.repeat_heads(k, times), views.repeat_heads(v, times)
    weights = ops.scale(ops.matmul(q, views.transpose(keys, 2, 3)))
    for step in CAP if capped else ():
        weights = step(weights)
    weights = ops.add(weights, mask)
    # Softmax and cast are one expression: the masked scores are bound until both are done.
    weights = ops.cast(ops.softmax_in_float32(weights), q.dtype)
    weights = ops.dropout(weights, dropout)
    y = ops.matmul(weights, values)
    y = views.contiguous(views.transpose(y, 1, 2))
    return merged(y), weights
