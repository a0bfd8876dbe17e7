"""NiuHuangxiaozi's own model and loop, from the first allocation on: four recordings that begin with an empty GPU.

The model is as CS336's, and differs in what a kernel sees: rotations and mask come from the CPU in every layer, roots
are taken apart, softmax makes its powers twice, and the mask is filled in place. Adam makes new weights in each step.

Source: NiuHuangxiaozi/assignment2-systems, cs336_basics/modules, loss, optimizer, and profile_memory.py.
"""

from __future__ import annotations

from minigpt.memory import TrainingPlan
from minigpt.memory.engine import einsum, ops, routing, views
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.pointwise import unary
from minigpt.memory.engine.tape import OPTIMIZER, WEIGHTS, Storage, Tape, Value
from minigpt.memory.families.cs336 import CS336
from tools.recorded.programme import Programme

BUILT = ("norm1", "norm2", "q", "k", "v", "o", "gate", "down", "up")  # as its constructors make them
RUNS = 3


class Niu(CS336):
    def block_tensors(self, layer: int = 0):
        own = {tensor.name: tensor for tensor in super().block_tensors(layer)}
        return tuple(own[name] for name in BUILT)

    def constants(self):
        return {}  # on the CPU

    def logits(self, layers: Layers, tokens: Value) -> Value:
        x = ops.rows_by_index(tokens, layers["embedding"])
        for i in range(self.n_layer):
            x = self.block(layers, x, f"blocks.{i}.")
        x = norm(layers, x, "norm")
        return einsum.by_weight(x, layers["head"])

    def block(self, layers: Layers, x: Value, at: str) -> Value:
        normed = norm(layers, x, at + "norm1")
        attended = self.attention(layers, normed, at)
        middle = ops.add(attended, x)
        normed_again = norm(layers, middle, at + "norm2")
        fed = self.mlp(layers, normed_again, at)
        out = ops.add(fed, middle)
        del normed, normed_again
        return out

    def attention(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        q, k, v = (einsum.by_weight(x, layers[at + name]) for name in "qkv")
        q = self.heads(q)
        k = self.heads(k)
        v = self.heads(v)
        q = self.turned(layers, q)
        k = self.turned(layers, k)
        o = attention(q, k, v)
        o = views.view(views.permute(o, 0, 2, 1, 3), B, T, C)
        return einsum.by_weight(o, layers[at + "o"])

    def heads(self, x: Value) -> Value:
        B, T, _ = x.shape
        return views.permute(views.view(x, B, T, self.n_head, -1), 0, 2, 1, 3)

    def turned(self, layers: Layers, x: Value) -> Value:
        (B, H, T, D), tape = x.shape, layers.tape
        sin, cos = (tape.new((T, D // 2), "float32") for _ in range(2))
        sin, cos = views.view(sin, 1, T, D // 2, 1), views.view(cos, 1, T, D // 2, 1)
        x = views.view(x, B, H, T, D // 2, 2)

        def half() -> Value:
            return views.narrow(x, -1, 1)

        first = ops.subtract(ops.multiply(cos, half()), ops.multiply(sin, half()))
        second = ops.add(ops.multiply(sin, half()), ops.multiply(cos, half()))
        both = ops.cat([first, second])
        return views.view(both, B, H, T, D)

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        a = einsum.by_weight(x, layers[at + "gate"])
        b = ops.multiply(a, ops.sigmoid(a))
        c = einsum.by_weight(x, layers[at + "up"])
        product = ops.multiply(b, c)
        out = einsum.by_weight(product, layers[at + "down"])
        del a, b, c
        return out


def norm(layers: Layers, x: Value, name: str) -> Value:
    root = unary("sqrt", ops.shift(ops.mean_of_last(ops.power(x))), saves_output=True, scratch=1)
    return ops.multiply(ops.divide(x, root), layers[name])


def attention(q: Value, k: Value, v: Value) -> Value:
    tape, T = q.storage.tape, q.shape[2]
    given = tape.new((T, T), "float32")
    product = einsum.scores(q, k)
    scores = ops.divide(product, root_of_width(tape))
    flags = tape.new((T, T), "bool")
    hidden = tape.new((T, T), "bool")
    del flags
    filled = routing.fill_in_place(scores, hidden)
    del hidden
    weights = softmax(filled)
    out = einsum.weighted(weights, v)
    del given, product, scores
    return out


def root_of_width(tape: Tape) -> Value:
    """torch.sqrt(torch.tensor(d_k, device=...))."""
    width = tape.new((), "int64")
    root = tape.new((), "float32")
    del width
    return root


def softmax(x: Value) -> Value:
    largest, places = most(x)
    out = ops.divide(ops.exp(ops.subtract(x, largest)), ops.sum_of_last(ops.exp(ops.subtract(x, largest))))
    del places
    return out


def most(x: Value) -> tuple[Value, Value]:
    """torch.max(x, dim=-1, keepdim=True), both of which stay bound."""
    tape, old, dtype = x.storage.tape, x.shape, x.dtype
    values, places = tape.new((*old[:-1], 1), dtype), tape.new((*old[:-1], 1), "int64")
    tape.kernels.reduction(x, tuple(range(len(old) - 1)), ops.PAIR)
    return tape.record("max", (x,), values, [places.storage], lambda g: [tape.new(old, dtype)]), places


def loss_of(logits: Value, tape: Tape) -> Value:
    """Of the last token's logits (B, V), against a one-hot matrix."""
    largest, places = most(logits)
    shifted = ops.subtract(logits, largest)
    out = ops.subtract(shifted, ops.log(ops.sum_of_last(ops.exp(ops.subtract(logits, largest)))))
    del shifted
    one_hot = tape.new(out.shape, "float32")
    product = [ops.multiply(one_hot, out)]
    loss = ops.scale(ops.scale(total(product.pop())))
    del places, one_hot, out
    return loss


def last_token(logits: Value) -> Value:
    """``logits[:, -1, :]`` as torch 2.6 has it: a slice that leaves nothing out is one all the same."""
    B, _, V = logits.shape
    last = views.select(views.narrow(logits, 0, B, alias_whole=False), 1)
    return views.narrow(last, 1, V, alias_whole=False)


def total(x: Value) -> Value:
    """The sum of all; its gradient is one number seen many times."""
    shape = x.shape

    def backward(g: Value) -> list[Value]:
        return [views.expanded(views.reshaped(g, (1,) * len(shape)), shape)]

    out = x.storage.tape.record("sum", (x,), ((), x.dtype, None), (), backward)
    x.storage.tape.kernels.reduction(x, ())
    return out


class Run(Programme):
    """profile_memory.py: the model, its optimizer if it trains, its batch, then RUNS rounds."""

    def __init__(self, batch: int, seq_len: int, trains: bool, kernels: Kernels) -> None:
        super().__init__(kernels)
        config = dict(vocab_size=10000, context_length=256, d_model=512, num_layers=4, num_heads=16, d_ff=1344)
        self.architecture = Niu.read(config)
        self.layers = Layers(self.tape, self.architecture, TrainingPlan(batch=batch, seq_len=seq_len))
        self.state = {value: self.moments(value) for value in self.layers.trained} if trains else {}
        tokens = self.tape.new((batch, seq_len), "int64")
        if trains:
            self.train(tokens, self.tape.new((batch,), "int64"))
        else:
            for _ in range(RUNS):
                self.tape.phase = "forward"
                self.architecture.logits(self.layers, tokens)

    def moments(self, value: Value) -> list[Storage]:
        return [Storage(self.tape, value.nbytes, OPTIMIZER) for _ in range(2)]

    def train(self, tokens: Value, labels: Value) -> None:
        tape, logits, last, loss = self.tape, None, None, None
        for _ in range(RUNS):
            for value in self.layers.trained:
                value.source.gradient = None
            tape.phase = "forward"
            logits = self.architecture.logits(self.layers, tokens)
            last = last_token(logits)
            loss = loss_of(last, tape)
            tape.phase = "backward"
            tape.backward(loss)
            tape.phase = "step"
            self.step()
        self.kept = logits, last, loss

    def step(self) -> None:
        """NIUAdam.step: every result has a place of its own, the weights' too."""
        m = v = new_m = new_v = None
        for value in self.layers.trained:

            def new(nbytes: int = value.nbytes) -> Storage:
                return Storage(self.tape, nbytes)

            m = self.state[value][0]
            scaled, fresh = new(), new()
            new_m = Storage(self.tape, value.nbytes, OPTIMIZER)
            del scaled, fresh
            self.state[value][0] = new_m
            v = self.state[value][1]
            scaled, square = new(), new()
            fresh = new()
            del square
            new_v = Storage(self.tape, value.nbytes, OPTIMIZER)
            del scaled, fresh
            self.state[value][1] = new_v
            root = new()
            shifted = new()
            del root
            ratio = new()
            del shifted
            change = new()
            del ratio
            value.storage = Storage(self.tape, value.nbytes, WEIGHTS)
            del change
            decay = new()
            value.storage = Storage(self.tape, value.nbytes, WEIGHTS)
            del decay
        del m, v, new_m, new_v
