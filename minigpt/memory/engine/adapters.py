"""A linear layer with a DoRA adapter: peft 0.21's operations, and those of this course's own layer.

    V = W + s B A      t = m / ||V||      y' = y + (t - 1) y + t (x32 A^T) B^T s

||V|| is the length of each row, a constant to autograd; m, one number a row, is trained. What that adds to LoRA:

    for a moment    W in x32's precision (the parameter itself, if it has that), B A, s B A and V: (n_out, n_in) each
    until backward  both factors of each product with t: y, and (x32 A^T) B^T, as wide as the layer's output
    in peft         an identity matrix (n_in, n_in), which goes through A and B to make B A, and stays while B A does

The order is that of peft 0.21's ``DoraLinearVariant`` and ``DoraLinearLayer``, and of ``minigpt.lora.LoRALinear``:
as in ``forward``, the names that are still bound decide what is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minigpt.memory.engine import ops
from minigpt.memory.engine.tape import Tape, Value

if TYPE_CHECKING:
    from minigpt.memory.engine.linears import Linears


def peft_layer(linears: Linears, x: Value, result: Value, name: str, n_out: int) -> Value:
    """peft's layer called ``name`` on x (rows, n_in), given the base's result (rows, n_out)."""
    tape, itemsize = linears.tape, result.itemsize
    if name in linears.quantized:
        result = ops.copy(tape, result, gradient_copied=False)
    x = ops.cast(tape, x, linears.plan.adapter_itemsize)
    result = ops.add(tape, result, _peft_change(linears, x, result, name, n_out))
    return ops.cast(tape, result, itemsize)


def _peft_change(linears: Linears, x: Value, result: Value, name: str, n_out: int) -> Value:
    tape = linears.tape
    product = ops.cast(tape, _through_identity(linears, name, n_out), x.itemsize)
    weight = ops.cast(tape, linears.base_weight(name), x.itemsize)
    detached = Value(product.storage, product.numel, product.itemsize)
    norms = _norms(tape, weight, ops.scale(tape, detached), n_out)
    factor = ops.view(tape, _divide(tape, linears.weights[name + ".magnitude"], norms))
    update = linears.update(x, name, n_out)
    return _change(linears, factor, result, update, name)  # B A, its graph and W stay until this returns


def _through_identity(linears: Linears, name: str, n_out: int) -> Value:
    """B A: the adapter of an identity matrix. Autograd records it, so the matrix is saved, for nothing."""
    A = linears.weights[name + ".A"]
    n_in = A.numel // linears.plan.rank
    return linears.update(linears.tape.constant(n_in * n_in, A.itemsize), name, n_out)


def own_layer(linears: Linears, x: Value, y: Value, name: str, n_out: int) -> Value:
    """This course's layer called ``name`` on x (rows, n_in), given the base's result (rows, n_out)."""
    tape, itemsize = linears.tape, y.itemsize
    x = ops.cast(tape, x, linears.plan.adapter_itemsize)
    weight = ops.cast(tape, linears.base_weight(name), x.itemsize)
    norms = _norms(tape, weight, _own_product(linears, name, weight), n_out)
    update = linears.update(x, name, n_out)
    factor = _divide(tape, linears.weights[name + ".magnitude"], norms)
    return ops.cast(tape, ops.add(tape, y, _change(linears, factor, y, update, name)), itemsize)


def _own_product(linears: Linears, name: str, weight: Value) -> Value:
    """s B A, in W's size and precision, without autograd. Autocast casts B and A, and keeps that for the update."""
    itemsize = [linears.cast_weight(name + part).itemsize for part in (".B", ".A")][0]
    product = linears.tape.constant(weight.numel, itemsize)
    product = ops.cast(linears.tape, product, weight.itemsize)
    return ops.scale(linears.tape, product)


def _norms(tape: Tape, weight: Value, scaled: Value, n_out: int) -> Value:
    """The length of each row of V = W + scaled."""
    total = ops.add(tape, weight, scaled)
    del scaled
    return tape.constant(n_out, total.itemsize)


def _divide(tape: Tape, magnitude: Value, norms: Value) -> Value:
    """t = m / ||V||. Saves the divisor alone, since that is a constant."""
    out = Value(tape.new(magnitude.nbytes), magnitude.numel, magnitude.itemsize)
    return tape.record("divide", [magnitude], out, [norms.storage])


def _change(linears: Linears, factor: Value, y: Value, update: Value, name: str) -> Value:
    """(t - 1) (y - bias) + t update s."""
    tape, bias = linears.tape, linears.weights.get(name + ".bias")
    if bias is not None:
        y = ops.add(tape, y, bias)  # less the bias: the same bytes
    length = ops.multiply(tape, ops.shift(tape, factor), y)
    return ops.add(tape, length, ops.scale(tape, ops.multiply(tape, factor, update)))
