"""HanFa's own model and loop: torch's MultiheadAttention and LayerNorm, trained mode without gradients, 25 times.

Layers have biases, so that a product adds one in its kernel: cuBLASLt's, with a workspace of its own.

Source: HanFa/assignment2-systems, cs336_systems/playground/toy_model.py and benchmark_toy_model.py; torch's
nn/functional.py, multi_head_attention_forward.
"""

from __future__ import annotations

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.tape import Leaf, Value
from tools.recorded.programme import Programme

ROUNDS = 25  # five warm-ups and twenty


class Model(Programme):
    def __init__(self, width: int, blocks: int, heads: int, inner: int, words: int, shape: tuple, kernels: Kernels):
        super().__init__(kernels)
        self.heads, self.blocks, self.weights = heads, blocks, dict[str, Value]()
        self.tokens, self.targets = (self.tape.new(shape, "int64") for _ in range(2))
        self.began = len(self.tape.events)
        self.add("embedding", words, width)
        for i in range(blocks):
            at = f"{i}."
            self.layer(at + "out", width, width)  # a module moves its children first
            self.layer(at + "in", 3 * width, width)
            self.norm_of(at + "norm1", width)
            self.layer(at + "up", inner, width)
            self.layer(at + "down", width, inner)
            self.norm_of(at + "norm2", width)
        self.norm_of("norm", width)
        self.layer("head", words, width)
        self.tape.phase, self.tape.records_nothing = "forward", True
        self.run()

    def add(self, name: str, *shape: int) -> None:
        self.weights[name] = self.tape.new(shape, "float32")
        self.weights[name].source = Leaf()  # it could be trained

    def layer(self, name: str, n_out: int, n_in: int) -> None:
        self.add(name, n_out, n_in)
        self.add(name + ".bias", n_out)

    def norm_of(self, name: str, width: int) -> None:
        self.add(name, width)
        self.add(name + ".bias", width)

    def run(self) -> None:
        logits = loss = None
        for _ in range(ROUNDS):
            logits = self.logits()
            flat = views.view(logits, -1, logits.shape[-1])
            loss = ops.cross_entropy(flat, views.view(self.targets, -1))
            del flat
        self.kept = logits, loss

    # ------------------------------------------------------------ forward

    def linear(self, x: Value, name: str) -> Value:
        return ops.linear(x, self.weights[name], self.weights[name + ".bias"])

    def norm(self, x: Value, name: str) -> Value:
        return ops.layer_norm(x, self.weights[name], self.weights[name + ".bias"])

    def logits(self) -> Value:
        x = ops.embedding(self.tokens, self.weights["embedding"])
        for i in range(self.blocks):
            x = self.block(x, f"{i}.")
        x = self.norm(x, "norm")
        return self.linear(x, "head")

    def block(self, x: Value, at: str) -> Value:
        attended, weights = self.attention(x, at)
        x = self.norm(ops.add(x, attended), at + "norm1")
        fed = self.mlp(x, at)
        x = self.norm(ops.add(x, fed), at + "norm2")
        del weights, attended
        return x

    def mlp(self, x: Value, at: str) -> Value:
        """nn.Sequential: one name for what goes through."""
        x = self.linear(x, at + "up")
        x = ops.gelu(x)
        return self.linear(x, at + "down")

    def attention(self, x: Value, at: str) -> tuple[Value, Value]:
        B, T, C = x.shape
        width, batch = C // self.heads, B * self.heads
        packed = self.linear(views.transpose(x, 0, 1), at + "in")
        packed = views.clone(views.permute(views.view(packed, T, B, 3, C), 2, 0, 1, 3))
        q, k, v = (views.transpose(views.view(one, T, batch, width), 0, 1) for one in views.unbind(packed))
        scaled = ops.scale(q)
        weights = ops.softmax(ops.bmm(scaled, views.transpose(k, 1, 2)))
        out = ops.bmm(weights, v)
        out = views.view(views.clone(views.transpose(out, 0, 1)), T * B, C)
        out = self.linear(out, at + "out")
        mean = self.tape.new((B, T, T), "float32")
        del packed
        return views.transpose(views.view(out, T, B, C), 0, 1), mean
