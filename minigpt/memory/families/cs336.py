"""cs336: BasicsTransformerLM of Stanford's CS336, assignment 2: the model behind the recordings of real GPUs.

RMSNorm, rotary positions, SwiGLU, no biases, an untied head; products by einsum, attention with every score a real
tensor, softmax and the loss written out. ``edition`` is the year of the course: in 2026 rotations are sliced out of
their table and joined half to half, and the embeddings stay bound; in 2025 they were gathered by position for each
call, and interleaved.

Parameters, with C the width and I the inner width: per block 4 C C + 3 C I + 2 C; outside 2 V C + C.

Source: stanford-cs336/assignment2-systems, cs336-basics/cs336_basics/model.py and nn_utils.py. transformers has no such
model: its configuration is the one that BasicsTransformerLM takes, with ``model_type`` "cs336".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import einsum, ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Architecture, Tensor, divide, linear, norm
from minigpt.memory.families.losses import shifted_loss
from minigpt.values import check_choice

SIZES = ("vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff")
WITHOUT_EFFECT = ("model_type", "rope_theta")
EDITIONS = ("2026", "2025")


@dataclass(frozen=True, kw_only=True)
class CS336(Architecture):
    edition: str = EDITIONS[0]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(EDITIONS, edition=self.edition)

    @classmethod
    def read(cls, config: dict[str, Any]) -> CS336:
        for name, value in config.items():
            if name not in (*SIZES, *WITHOUT_EFFECT, "edition"):
                raise ValueError(f"{name} is {value!r}; cs336 has no such field")
        missing = [name for name in SIZES if name not in config]
        if missing:
            raise ValueError(f"{missing[0]} is missing; cs336 has no default for it")
        C, heads = config["d_model"], config["num_heads"]
        return cls(
            family="cs336", vocab_size=config["vocab_size"], n_layer=config["num_layers"], n_embd=C, n_head=heads,
            n_kv_head=heads, head_dim=divide(d_model=C, num_heads=heads), n_inner=config["d_ff"],
            context=config["context_length"], tied=False, edition=config.get("edition", EDITIONS[0]),
        )  # fmt: skip

    def check(self, plan) -> None:
        only = {"method": "full", "attention": "eager", "checkpointing": "none", "sequences": "plain",
                "use_cache": False, "float32_outputs": False, "logits_to_keep": 0}  # fmt: skip
        for name, value in only.items():
            if getattr(plan, name) != value:
                raise ValueError(f"{name} is {getattr(plan, name)!r}; cs336 has {value!r} only")
        if plan.seq_len > self.context:
            raise ValueError(f"seq_len is {plan.seq_len}; cs336's rotations end at its context_length, {self.context}")
        if plan.loss not in ("model", "shifted"):
            raise ValueError(f"loss is {plan.loss!r}; allowed with cs336: model, shifted")

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        return [Tensor("embedding", (self.vocab_size, self.n_embd), "embedding")], norm("norm", self.n_embd)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner = self.n_embd, self.n_inner
        out = [tensor for name in "qkvo" for tensor in linear(name, C, C)]
        out += linear("gate", inner, C) + linear("down", C, inner) + linear("up", inner, C)
        return tuple(out + norm("norm1", C) + norm("norm2", C))

    def constants(self) -> dict[str, tuple[int, ...]]:
        return {"rotations": (2, self.context, self.head_dim // 2)}

    # ------------------------------------------------------------ forward

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        logits = self.logits(layers, tokens)
        if layers.plan.holds == "outputs":
            layers.outputs.append(logits)
        if layers.plan.loss == "shifted":
            return shifted_loss(layers, logits, targets)
        return cross_entropy(logits, targets)

    def logits(self, layers: Layers, tokens: Value) -> Value:
        tape = layers.tape
        embedded = ops.rows_by_index(tokens, layers["embedding"])
        x = embedded
        if self.edition == "2025":
            del embedded
        for i in range(self.n_layer):
            tape.block = f"block {i}"
            x = self.block(layers, x, f"blocks.{i}.")
        tape.block = "head"
        x = rms_norm(layers, x, "norm")
        return einsum.by_weight(x, layers["head"])

    def block(self, layers: Layers, x: Value, at: str) -> Value:
        attended = self.attention(layers, rms_norm(layers, x, at + "norm1"), at)
        middle = ops.add(x, attended)
        fed = self.mlp(layers, rms_norm(layers, middle, at + "norm2"), at)
        return ops.add(middle, fed)

    def attention(self, layers: Layers, x: Value, at: str) -> Value:
        tape, (B, T, C) = layers.tape, x.shape
        Q, K, V = (einsum.by_weight(x, layers[at + name]) for name in "qkv")
        Q, K, V = (views.permute(views.view(y, B, T, self.n_head, -1), 0, 2, 1, 3) for y in (Q, K, V))
        positions = tape.new((T,), "int64") if self.edition == "2025" else None
        Q = self.turned(layers, Q)
        K = self.turned(layers, K)
        places = tape.new((T,), "int64")
        mask = tape.new((T, T), "bool")
        y = attention(Q, K, V, mask)
        y = views.view(views.permute(y, 0, 2, 1, 3), B, T, C)
        out = einsum.by_weight(y, layers[at + "o"])
        del positions, places
        return out

    def turned(self, layers: Layers, x: Value) -> Value:
        """x (B, H, T, D), with its positions turned into it."""
        B, H, T, D = x.shape
        first, second = views.unbind(views.permute(views.view(x, B, H, T, -1, 2), 4, 0, 1, 2, 3))
        table = layers["rotations"]
        if self.edition == "2026":
            cos, sin = views.unbind(views.narrowed(table, 1, T))
        else:
            cos, sin = views.unbind(layers.tape.new((2, 1, 1, T, D // 2), table.dtype))
        turned_first = ops.subtract(ops.multiply(cos, first), ops.multiply(sin, second))
        turned_second = ops.add(ops.multiply(sin, first), ops.multiply(cos, second))
        if self.edition == "2026":
            return ops.cat([turned_first, turned_second])
        return views.view(ops.cat([views.unsqueeze(turned_first, -1), views.unsqueeze(turned_second, -1)]), B, H, T, D)

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        product = ops.multiply(silu(einsum.by_weight(x, layers[at + "gate"])), einsum.by_weight(x, layers[at + "up"]))
        return einsum.by_weight(product, layers[at + "down"])


def rms_norm(layers: Layers, x: Value, name: str) -> Value:
    dtype = x.dtype
    x = ops.cast(x, "float32")
    rms = ops.rsqrt(ops.shift(ops.mean_of_last(ops.power(x))))
    x = ops.multiply(x, rms)
    return ops.cast(ops.multiply(layers[name], x), dtype)


def attention(q: Value, k: Value, v: Value, mask: Value) -> Value:
    scores = ops.scale(einsum.scores(q, k))
    scores = ops.where(mask, scores)
    weights = softmax(scores)
    return einsum.weighted(weights, v)


def softmax(x: Value) -> Value:
    shifted = ops.subtract(x, ops.largest_of_last(x))
    powers = ops.exp(shifted)
    return ops.divide(powers, ops.sum_of_last(powers))


def log_softmax(x: Value) -> Value:
    largest = ops.largest_of_last(x)
    x = ops.subtract(x, largest)
    out = ops.subtract(x, ops.log(ops.sum_of_last(ops.exp(x))))
    del largest  # bound until here
    return out


def cross_entropy(logits: Value, targets: Value) -> Value:
    negative = ops.scale(log_softmax(logits))
    return ops.mean_of_all(ops.gather_of_last(negative, targets))


def silu(x: Value) -> Value:
    return ops.multiply(x, ops.sigmoid(x))
