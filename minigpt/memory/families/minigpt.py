"""MiniGPT, this course's own model (``minigpt.model``): a GPT without biases, its head tied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Architecture, Tensor, linear, norm
from minigpt.memory.families.decoder import heads, layer_norm, run_block
from minigpt.memory.families.losses import shifted_loss, upcasted


@dataclass(frozen=True, kw_only=True)
class MiniGPT(Architecture):
    @classmethod
    def read(cls, config) -> MiniGPT:
        return cls(
            family="minigpt", vocab_size=config.vocab_size, n_layer=config.n_layer, n_embd=config.n_embd,
            n_head=config.n_head, n_kv_head=config.n_head, head_dim=config.n_embd // config.n_head,
            n_inner=4 * config.n_embd, context=config.context, tied=True,
        )  # fmt: skip

    def check(self, plan) -> None:
        only = {"modules_to_save": "", "logits_to_keep": 0, "sequences": "plain", "use_cache": False,
                "float32_outputs": False}  # fmt: skip
        for name, value in only.items():
            if getattr(plan, name) != value:
                raise ValueError(f"{name} is {getattr(plan, name)!r}; MiniGPT has {value!r} only")
        if plan.method != "full" and "head" in plan.targets.split(","):
            raise ValueError(f"targets is {plan.targets!r}; MiniGPT's head is its token embedding: no adapter for it")
        if plan.method == "qlora" and self.n_embd < 8:
            raise ValueError(f"n_embd is {self.n_embd}; with method 'qlora' a matrix needs the 64 weights of one block")
        if plan.checkpointing == "reentrant" and plan.method != "full":
            raise ValueError("checkpointing is 'reentrant'; over MiniGPT's frozen embeddings nothing is trained")
        if plan.loss not in ("model", "shifted"):
            raise ValueError(f"loss is {plan.loss!r}; allowed with MiniGPT: model, shifted")

    @property
    def in_a_row(self) -> bool:
        return True

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        first, last = super().outer_tensors()
        return [*first, Tensor("positions", (self.context, self.n_embd), "embedding")], last

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner = self.n_embd, self.n_inner
        out = norm("attn_norm", C) + [tensor for name in "qkvo" for tensor in linear(name, C, C)]
        return tuple(out + norm("mlp_norm", C) + linear("up", inner, C) + linear("down", C, inner))

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        """The model's own logits live through its own loss; those that it returned, as long as the loop holds them."""
        plan = layers.plan
        logits = layers(self.hidden(layers, tokens), "head")
        if plan.loss == "shifted":
            return shifted_loss(layers, logits, targets)
        if plan.holds == "outputs":
            logits = layers.ranks.forward_ends(logits)
            layers.outputs.append(logits)
        return self._cross_entropy(layers, logits, targets)

    def hidden(self, layers: Layers, tokens: Value) -> Value:
        tape = layers.tape
        positions = tape.new((tokens.shape[1],), "int64")
        x = ops.add(ops.embedding(tokens, layers["embedding"]), ops.embedding(positions, layers["positions"]))
        for i in range(self.n_layer):
            x = run_block(layers, i, lambda i: partial(self.block, layers, at=f"blocks.{i}."), x)
        tape.block = "head"
        return layer_norm(layers, x, "norm")

    def _cross_entropy(self, layers: Layers, logits: Value, targets: Value) -> Value:
        upcast = upcasted(layers, logits)
        return ops.cross_entropy(views.view(upcast, -1, self.vocab_size), views.view(targets, -1))

    def block(self, layers: Layers, x: Value, *, at: str) -> Value:
        x = ops.add(x, self.attention(layers, layer_norm(layers, x, at + "attn_norm"), at))
        return ops.add(x, self.mlp(layers, layer_norm(layers, x, at + "mlp_norm"), at))

    def attention(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        q, k, v = (heads(layers(x, at + name), self.head_dim) for name in "qkv")
        y = attention(q, k, v) if layers.plan.attention == "sdpa" else _eager(q, k, v)
        return layers(views.view(views.transpose(y, 1, 2), B, T, C), at + "o")

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        h = layers(x, at + "up")
        return layers(ops.gelu(h), at + "down")


def _eager(q: Value, k: Value, v: Value) -> Value:
    tape, T = q.storage.tape, q.shape[2]
    scores = ops.scale(ops.matmul(q, views.transpose(k, 2, 3)))
    everything = tape.new((T, T), "bool")
    future = tape.new((T, T), "bool")
    del everything
    scores = ops.mask_fill(scores, future)
    weights = ops.cast(ops.softmax_in_float32(scores), v.dtype)
    return ops.matmul(weights, v)
