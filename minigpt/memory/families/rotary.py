"""Decoders with rotary positions, whose layers may have sliding windows: the loop over the blocks, and the rotations.

Follows ``modeling_llama`` of transformers 5.17 line by line, as ``decoder`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.decoder import Decoder, causal_mask, positions_of, require_gradient, run_block
from minigpt.values import check_choice, check_counts

FULL, SLIDING = "full_attention", "sliding_attention"  # what a layer may be, in a configuration's layer_types


@dataclass(frozen=True, kw_only=True)
class Rotary(Decoder):
    """A family gives ``block``, and what it does otherwise."""

    window: int | None = None  # tokens that a sliding layer sees
    layer_types: tuple[str, ...] = ()  # FULL or SLIDING for each layer; none: FULL

    masked: ClassVar[tuple[str, ...]] = ()  # kinds of layers for which a mask is made even if there are none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None:
            check_counts(least=0, sliding_window=self.window)
        object.__setattr__(self, "layer_types", tuple(self.layer_types))  # a JSON file has lists only
        for kind in self.layer_types:
            check_choice((FULL, SLIDING), layer_types=kind)
        if self.layer_types and len(self.layer_types) != self.n_layer:
            raise ValueError(f"layer_types has {len(self.layer_types)} items; it must have one for each layer")
        if self.window is None and SLIDING in (*self.masked, *self.layer_types):
            raise ValueError("sliding_window is None; layers with sliding attention need one")

    @property
    def kinds(self) -> tuple[str, ...]:
        """FULL or SLIDING for each layer."""
        return self.layer_types or (FULL,) * self.n_layer

    @property
    def in_a_row(self) -> bool:
        return len(set(self.kinds)) == 1

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

        def block(i: int):
            cos, sin = turns[self.kinds[i]]
            at = f"blocks.{i}."
            return partial(self.block, layers, at=at, positions=positions, cos=cos, sin=sin, mask=masks[i])

        for i in range(self.n_layer):
            hidden = run_block(layers, i, block, hidden)
        tape.block = "norm"
        hidden = self.norm(layers, hidden, "norm")
        layers.beside = None
        return hidden

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        """One block, (B, T, C) to (B, T, C); ``at`` is its name, such as "blocks.0."."""
        raise NotImplementedError

    def first(self, embedded: Value) -> Value:
        """What the first block is given."""
        return embedded

    def masks(self, layers: Layers, embedded: Value) -> Sequence[Value | None]:
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
        return dict.fromkeys((FULL, SLIDING), rotations(hidden, positions, self.rotary_width, self.rotary_dim // 2))

    def buffers(self) -> list[int]:
        """The rotary frequencies: two float32 vectors of half the rotated width."""
        return [4 * (self.rotary_dim // 2)] * 2


def rotations(embedded: Value, positions: Value, width: int, frequencies: int) -> tuple[Value, Value]:
    """cos and sin of every position, (1 or B, T, width) each, computed in float32, kept in the embeddings' dtype."""
    tape, shape = embedded.storage.tape, (*positions.shape, width)
    tape.multiplied(positions.numel, 1, frequencies)
    return tape.new(shape, embedded.dtype), tape.new(shape, embedded.dtype)


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
    return ops.cat([ops.scale(upper), lower])


def parted(x: Value, width: int) -> tuple[Value, Value]:
    """The first ``width`` of each head, and the rest, which may be nothing."""
    return views.narrow(x, 3, width), views.narrow(x, 3, x.shape[-1] - width)


def joined(turned: Value, rest: Value) -> Value:
    """Rotated and other part in a new tensor."""
    return ops.cat([turned, rest])
