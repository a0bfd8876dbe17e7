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
from typing import Any, ClassVar, Self

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.checkpointing import checkpoint, checkpoint_reentrant, in_a_row
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Leaf, Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import MOST_LAYERS, Architecture, divide
from minigpt.memory.families.losses import loss_of
from minigpt.memory.segments import segments
from minigpt.values import check_choice, check_counts, check_shares

CAP = (ops.scale, ops.tanh, ops.scale)  # a soft cap: c * tanh(x / c)


@dataclass(frozen=True, kw_only=True)
class Decoder(Architecture):
    """A causal language model of transformers. A family gives ``model``, and what it does otherwise."""

    attention_dropout: float = 0.0
    activation: str = "silu"  # of the MLP, by transformers' name for it

    named_activation: ClassVar[str] = "hidden_act"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(attention_dropout=self.attention_dropout)
        check_choice(ACTIVATIONS, activation=self.activation)

    @classmethod
    def read(cls, config: dict[str, Any]) -> Self:
        return cls(**{**cls.sizes(config), **cls.read_more(config)})

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, Any]:
        """What nearly every family has, by the same names; one that it lacks is as one that is null."""
        C, n_head = config["hidden_size"], config["num_attention_heads"]
        n_kv_head, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
        check_counts(most=MOST_LAYERS, num_hidden_layers=config["num_hidden_layers"])
        check_counts(hidden_size=C, num_attention_heads=n_head)
        return dict(
            family=config["model_type"], vocab_size=config["vocab_size"], n_layer=config["num_hidden_layers"], n_embd=C,
            n_head=n_head, n_kv_head=n_head if n_kv_head is None else n_kv_head,
            head_dim=divide(hidden_size=C, num_attention_heads=n_head) if head_dim is None else head_dim,
            context=config["max_position_embeddings"], tied=config["tie_word_embeddings"],
            attention_dropout=config["attention_dropout"],
            activation=config.get(cls.named_activation, cls.activation),
        )  # fmt: skip

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The family's own fields, and those that it names otherwise."""
        raise NotImplementedError

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return rms_norm(layers, x, name)

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        return loss_of(layers, self.model(layers, tokens), targets, self.logits)

    def logits(self, layers: Layers, hidden: Value) -> Value:
        return layers(hidden, "head")

    def model(self, layers: Layers, tokens: Value) -> Value:
        """The last hidden states, (B, T, C), of tokens (B, T)."""
        raise NotImplementedError

    def embed(self, layers: Layers, tokens: Value) -> Value:
        """What the embedding layer returns."""
        return ops.embedding(tokens, layers["embedding"])

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        """The plain one: up, activation, down."""
        hidden = layers(x, at + "up")
        hidden = ACTIVATIONS[self.activation](hidden)
        return layers(hidden, at + "down")


def run_block(layers: Layers, i: int, block: Callable[[int], Callable[..., Value]], *inputs: Value) -> Value:
    """Block ``i``, which ``block(i)`` makes, checkpointed if the plan says so: also in a row with those after it, which
    then have run when it is their turn. What else a block is given lives as long as it does.
    """
    layers.tape.block = f"block {i}"
    return layers.ranks.block_ends(i, _run_block(layers, i, block, *layers.ranks.block_begins(i, inputs)))


def _run_block(layers: Layers, i: int, block: Callable[[int], Callable[..., Value]], *inputs: Value) -> Value:
    tape, plan = layers.tape, layers.plan
    runs = segments(plan.checkpointing, layers.architecture.n_layer, plan.every_n_layers)
    segment = next((some for some in runs if i in some), None)
    if segment is None:
        return block(i)(*inputs)
    if i != segment.start:
        return inputs[0]
    if plan.checkpointing == "reentrant":
        return checkpoint_reentrant(layers, block(i), inputs)
    run = block(i) if len(segment) == 1 else partial(in_a_row, tape, {j: block(j) for j in segment})
    return checkpoint(tape, run, inputs, plan.checkpointing)


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


def cached(layers: Layers, k: Value, v: Value) -> tuple[Value, Value]:
    """transformers' DynamicCache: copies of the keys and values, in the keys' precision, kept as outputs."""
    if not layers.plan.use_cache:
        return k, v
    v = ops.cast(v, k.dtype)
    k, v = (ops.cat([x]) for x in (k, v))
    layers.outputs += [k, v]
    return k, v


def attend(
    layers: Layers,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    dropout: float = 0.0,
    eager: Callable[..., tuple[Value, Value]] | None = None,
) -> tuple[Value, Value | None]:
    """Attention as the plan has it, (B, T, H D), and the weights where they are a tensor."""
    if layers.plan.attention == "sdpa":
        return sdpa(q, k, v, mask, dropout), None
    assert mask is not None  # the plain one always has it
    return (eager or eager_attention)(q, k, v, mask, dropout)


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
    q: Value, k: Value, v: Value, mask: Value, dropout: float = 0.0, capped: bool = False
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
