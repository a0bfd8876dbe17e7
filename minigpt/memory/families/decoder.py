"""What transformers' causal language models share: embedding, blocks, last norm, head, loss; two kinds of attention.

Local variables matter: a name that is still bound keeps its storage alive, here as in the real model. So these
functions follow transformers 5.17 line by line (``modeling_llama``, ``masking_utils``, ``sdpa_attention``,
``loss_utils``), down to which names they keep.

Symbols: B batch, T sequence, C width, H query heads, K key heads, D head width, I inner width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.checkpointing import checkpoint
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Leaf, Value
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.families.losses import loss_of


class Decoder(Architecture):
    """A causal language model of transformers. A family gives ``block``, and what it does otherwise."""

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        """One block, (B, T, C) to (B, T, C); ``at`` is its name, such as "blocks.0."."""
        raise NotImplementedError

    def last_norm(self, layers: Layers, hidden: Value) -> Value:
        return rms_norm(layers, hidden, "norm")

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        return loss_of(layers, self.model(layers, tokens), targets)

    def model(self, layers: Layers, tokens: Value) -> Value:
        tape = layers.tape
        embedded = ops.embedding(tokens, layers["embedding"])
        require_gradient(layers, embedded)
        positions = positions_of(layers, tokens)
        masks = self.masks(layers, embedded)
        cos, sin = rotations(embedded, positions, self.rotary_width)
        hidden = embedded
        for i in range(self.n_layer):
            tape.block = f"block {i}"
            shared = dict(positions=positions, cos=cos, sin=sin, mask=masks[i])
            hidden = run_block(layers, partial(self.block, layers, at=f"blocks.{i}.", **shared), hidden)
        tape.block = "norm"
        hidden = self.last_norm(layers, hidden)
        del positions, masks
        return hidden

    def masks(self, layers: Layers, embedded: Value) -> list[Value | None]:
        """The mask of each block; what follows them lives as long, unused."""
        return [causal_mask(layers, embedded)] * self.n_layer

    @property
    def rotary_width(self) -> int:
        """How many cosines a position has."""
        return self.head_dim

    def buffers(self) -> list[int]:
        """The rotary frequencies: two float32 vectors of head_dim / 2."""
        return [4 * (self.head_dim // 2)] * 2


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


def causal_mask(layers: Layers, embedded: Value, window: bool = False) -> Value | None:
    """The additive mask of eager attention, (B, 1, T, T); sdpa takes one of bools, and none if it is told enough.

    It is told that attention is causal, and no more: padding, packing or a ``window`` shorter than the sequence need a
    mask. With a cache, packed sequences are not looked for.
    """
    tape, plan, (B, T, _) = layers.tape, layers.plan, embedded.shape
    tape.doing = "mask"
    if plan.attention == "eager":
        return tape.new((B, 1, T, T), embedded.dtype)
    told = plan.sequences == "padded" or (plan.sequences == "packed" and not plan.use_cache)
    return tape.new((B, 1, T, T), "bool") if window or told else None


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


def layer_norm(layers: Layers, x: Value, name: str) -> Value:
    return ops.layer_norm(x, layers[name], layers.get(name + ".bias"))


def heads(x: Value, width: int) -> Value:
    """(B, T, H D) as (B, H, T, D)."""
    B, T, _ = x.shape
    return views.transpose(views.view(x, B, T, -1, width), 1, 2)


def rotate(q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    """apply_rotary_pos_emb: x * cos + rotate_half(x) * sin, for queries and keys."""
    cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
    q = _rotated(q, cos, sin)
    k = _rotated(k, cos, sin)
    return q, k


def _rotated(x: Value, cos: Value, sin: Value) -> Value:
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
    """(B, T, H D). Grouped keys and values stay as they are, unless there is a mask."""
    if mask is not None:
        times = q.shape[1] // k.shape[1]
        k, v = views.repeat_heads(k, times), views.repeat_heads(v, times)
    y = views.contiguous(views.transpose(attention(q, k, v, mask, dropout), 1, 2))
    return merged(y)


def merged(y: Value) -> Value:
    """(B, T, H, D) as (B, T, H D)."""
    B, T, _, _ = y.shape
    return views.contiguous(views.view(y, B, T, -1))


def eager_attention(q: Value, k: Value, v: Value, mask: Value | None, dropout: float = 0.0) -> tuple[Value, Value]:
    """llama's eager attention; grouped keys and values are repeated to every query head first."""
    times = q.shape[1] // k.shape[1]
    keys, values = views.repeat_heads(k, times), views.repeat_heads(v, times)
    weights = ops.scale(ops.matmul(q, views.transpose(keys, 2, 3)))
    weights = ops.add(weights, mask)
    # Softmax and cast are one expression: the masked scores are bound until both are done.
    weights = ops.cast(ops.softmax_in_float32(weights), q.dtype)
    weights = ops.dropout(weights, dropout)
    y = ops.matmul(weights, values)
    y = views.contiguous(views.transpose(y, 1, 2))
    return merged(y), weights
