"""silmont2000's attention alone, forward and backward, on an empty GPU.

Source: silmont2000/assignment2-systems, cs336_systems/debug_memory.py.
"""

from __future__ import annotations

from minigpt.memory.engine import einsum, ops
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.tape import Leaf, Value
from tools.recorded.niu import most, total
from tools.recorded.programme import Programme


class Attention(Programme):
    def __init__(self, batch: int, seq_len: int, width: int, kernels: Kernels) -> None:
        super().__init__(kernels)
        self.tape.phase = "forward"
        given = [self.tape.new((batch, seq_len, width), "float32") for _ in range(3)]
        for value in given:
            value.source = Leaf()
        output = attention(*given)
        loss = total(output)
        self.tape.phase = "backward"
        self.tape.backward(loss)
        self.kept = given, output, loss


def attention(q: Value, k: Value, v: Value) -> Value:
    scores = ops.scale(einsum.scores(q, k))
    weights = softmax(scores)
    return einsum.weighted(weights, v)


def softmax(x: Value) -> Value:
    largest, places = most(x)
    del places
    powers = ops.exp(ops.subtract(x, largest))
    return ops.divide(powers, ops.sum_of_last(powers))
