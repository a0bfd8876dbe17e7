"""transformers' activations by their names in a configuration (its ``activations.py``): one kernel each, or Python."""

from __future__ import annotations

from minigpt.memory.engine import ops
from minigpt.memory.engine.tape import Value


def gelu_new(x: Value) -> Value:
    """0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), each step a tensor of its own."""
    half = ops.scale(x)
    bent = ops.scale(ops.add(x, ops.scale(ops.power(x))))
    bent = ops.tanh(bent)
    bent = ops.shift(bent)
    return ops.multiply(half, bent)


def quick_gelu(x: Value) -> Value:
    """x * sigmoid(1.702 * x)."""
    return ops.multiply(x, ops.sigmoid(ops.scale(x)))


ACTIVATIONS = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu": ops.gelu,
    "gelu_pytorch_tanh": ops.gelu,
    "gelu_new": gelu_new,
    "relu": ops.relu,
    "quick_gelu": quick_gelu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
}
