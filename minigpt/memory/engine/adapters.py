"""A linear layer with an adapter: the operations of peft 0.21, and those of this course's own layer.

    lora    y' = y + s (x32 A^T) B^T
    dora    y' = y + (t - 1) y + t (x32 A^T) B^T s        V = W + s B A      t = m / ||V||

peft keeps adapters in float32 on a 16-bit base (``autocast_adapter_dtype``), so x32 is a copy of the input
that each adapted layer makes for itself: q, k and v save three copies of one tensor. Under autocast A takes a
16-bit copy of that copy, and it is this one that is saved. rsLoRA is LoRA with another s.

In DoRA ||V|| is the length of each row, a constant to autograd; m, one number per row, is trained. What that adds:

    for a moment    W in x32's precision (the parameter itself, if it has that), B A, s B A and V: (n_out, n_in) each
    until backward  both factors of each product with t: y, and (x32 A^T) B^T, as wide as the layer's output
    in peft         an identity matrix (n_in, n_in), which goes through A and B to make B A, and stays while B A does

The order is that of peft's ``lora.Linear``, ``lora.bnb.Linear4bit``, ``DoraLinearVariant`` and ``DoraLinearLayer``,
and of ``minigpt.lora``: the names that are still bound decide what is alive.

On a GPU under autocast peft leaves the input of a 4-bit layer as it is: what it asks torch is whether CUDA's autocast
is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.tape import Storage, Value

if TYPE_CHECKING:
    from minigpt.memory.engine.layers import Layers


def adapted(layers: Layers) -> Callable[[Layers, Value, Value, str], Value]:
    """The function for the plan's adapters: (layers, x (..., n_in), the base's result (..., n_out), name)."""
    if layers.plan.variant == "dora":
        return _own_dora if layers.own else _peft_dora
    return _lora


def _lora(layers: Layers, x: Value, result: Value, name: str) -> Value:
    dtype = result.dtype
    quantized = name in layers.quantized and not layers.own
    if quantized and not layers.eight_bit:
        result = views.clone(result)  # peft clones, against in-place surprises
    if converts := not (quantized and layers.tape.cuda and layers.tape.autocast):
        x = ops.cast(x, layers.adapter_dtype)
    if layers.own:  # keeps the dropped input by its name, peft the one before
        x = ops.dropout(x, layers.plan.lora_dropout)
        update = ops.scale(_update(layers, x, name))
    else:  # in one expression: the dropped input is gone before B multiplies
        A, B = name + ".A", name + ".B"
        update = ops.scale(layers.plain(layers.plain(ops.dropout(x, layers.plan.lora_dropout), A), B))
    if quantized:
        if converts:
            update = ops.cast(update, dtype)
        return ops.add(result, update)
    result = ops.add(result, update)
    del update
    return ops.cast(result, dtype)


def _update(layers: Layers, x: Value, name: str) -> Value:
    """(x A^T) B^T, not yet scaled."""
    return layers.plain(layers.plain(x, name + ".A"), name + ".B")


def _peft_dora(layers: Layers, x: Value, result: Value, name: str) -> Value:
    dtype = result.dtype
    if name in layers.quantized:
        result = views.clone(result)
    x = ops.cast(x, layers.adapter_dtype)  # bound to the end, dropout or not
    if layers.plan.lora_dropout:
        result = ops.add(result, _peft_change(layers, ops.dropout(x, layers.plan.lora_dropout), None, name))
    else:
        result = ops.add(result, _peft_change(layers, x, result, name))
    return ops.cast(result, dtype)


def _peft_change(layers: Layers, x: Value, result: Value | None, name: str) -> Value:
    """``result`` None: dropout made x another input, and W x is taken again."""
    product = ops.cast(views.transpose(_through_identity(layers, name), 0, 1), x.dtype)
    weight = ops.cast(layers.base_weight(name), x.dtype)
    norms = _norms(weight, ops.scale(views.detach(product)), recorded=weight.base is not None)
    factor = views.view(_divide(layers[name + ".magnitude"], norms), 1, -1)
    update = _update(layers, x, name)
    bias = layers.get(name + ".bias")
    if result is None:
        result = ops.linear(x, weight)
    elif bias is not None:
        result = ops.add(result, bias)  # less the bias: the same bytes
    return _change(factor, result, update)  # B A, its graph and W stay until this returns


def _through_identity(layers: Layers, name: str) -> Value:
    """B A: the adapter of an identity matrix. Autograd records it, so the matrix is saved, for nothing."""
    A = layers[name + ".A"]
    layers.tape.doing = "identity"
    return _update(layers, layers.tape.new((A.shape[1], A.shape[1]), A.dtype), name)


def _own_dora(layers: Layers, x: Value, y: Value, name: str) -> Value:
    dtype = y.dtype
    x = ops.dropout(ops.cast(x, layers.adapter_dtype), layers.plan.lora_dropout)
    weight = ops.cast(layers.base_weight(name), x.dtype)
    norms = _norms(weight, _own_product(layers, name, weight))
    update = _update(layers, x, name)
    factor = _divide(layers[name + ".magnitude"], norms)
    Wx = ops.linear(x, weight) if layers.plan.lora_dropout else y
    return ops.cast(ops.add(y, _change(factor, Wx, update)), dtype)


def _own_product(layers: Layers, name: str, weight: Value) -> Value:
    """s B A, in W's size and precision, without autograd. Autocast casts B and A, and keeps that for the update."""
    dtype = [ops.lowered(layers[name + part])[0].dtype for part in (".B", ".A")][0]
    product = ops.cast(layers.tape.made("linear", (weight.shape, dtype, None)), weight.dtype)
    layers.tape.multiplied(weight.shape[0], layers[name + ".A"].shape[0], weight.shape[1])
    return ops.scale(product)


def _norms(weight: Value, scaled: Value, recorded: bool = False) -> Value:
    """The length of each row of V = W + scaled. ``recorded``: peft turns gpt2's W into a parameter, so V is saved."""
    total = ops.add(weight, scaled)
    del scaled
    tape = total.storage.tape
    saved = [*tape.keep([total.storage])] if recorded else []
    norms = tape.new((total.shape[0],), total.dtype)
    saved += tape.keep([norms.storage]) if recorded else []
    for item in saved:
        if isinstance(item, Storage):  # else a checkpointed block's
            tape.let_go(item)
    return norms


def _divide(magnitude: Value, norms: Value) -> Value:
    """t = m / ||V||. Saves the divisor alone, since that is a constant."""
    return ops.divide(magnitude, norms)


def _change(factor: Value, Wx: Value, update: Value) -> Value:
    """(t - 1) W x + t update s."""
    length = ops.multiply(ops.shift(factor), Wx)
    return ops.add(length, ops.scale(ops.multiply(factor, update)))


# ------------------------------------------------------------ on a parameter that is no layer's


def folded(layers: Layers, name: str) -> Callable[[], Value]:
    """What gives the experts' matrices (E, n_out, n_in), the sum with their adapter where they have one.

    peft's ParamWrapper: torch's ``register_parametrization`` makes the sum once, to look at it, and forgets it; the one
    that is used stays as long as what gives it.
    """
    weight = layers[name]
    if name + ".A" not in layers.weights:
        return lambda: weight
    experts, n_out, n_in = weight.shape
    if experts == 1:
        return folded_row(layers, name)
    A = views.view(layers[name + ".A"], experts, -1, n_in)
    B = views.permute(views.view(layers[name + ".B"], n_out, -1, experts), 2, 0, 1)
    B, A = ops.cast(B, weight.dtype), ops.cast(A, weight.dtype)

    def fold() -> Value:
        return routing.baddbmm(weight, B, A, scaled=layers.scales(A.shape[1]))

    return _made_twice(fold)


def _made_twice(make: Callable[[], Value]) -> Callable[[], Value]:
    make()
    kept: list[Value] = []

    def give() -> Value:
        if not kept:
            kept.append(make())
        return kept[0]

    return give


def folded_row(layers: Layers, name: str) -> Callable[[], Value]:
    """As ``folded``, of one matrix: s B A is made whole, and added."""
    weight = layers[name]
    if name + ".A" not in layers.weights:
        return lambda: weight
    A, B = layers[name + ".A"], layers[name + ".B"]
    dtype = A.dtype
    if not layers.tape.cuda and dtype != "float32":
        A, B = ops.cast(A, "float32"), ops.cast(B, "float32")
    A, B = ops.lowered(A, B)
    product = ops.scale(ops.mm(B, A))
    if not layers.tape.cuda:
        product = ops.cast(product, dtype) if dtype != "float32" else product
    change = ops.cast(product, weight.dtype)
    del product

    def fold() -> Value:
        return ops.add(weight, change)

    return _made_twice(fold)
