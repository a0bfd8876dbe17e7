"""The engine by itself: each operation against the meter on real tensors, layouts against torch's, the tape's rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine import layout, ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.checkpointing import checkpoint
from minigpt.memory.engine.tape import ITEMSIZE, OPTIMIZER, WEIGHTS, Leaf, Tape, Value
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.precision import result_dtypes
from tools.fuzz_case import quantities


@dataclass(frozen=True)
class Operation:
    """One operation, as the engine and as torch has it, on inputs of these shapes; integers and bools are constants.

    A floating input is a parameter times two, so that saving it makes an activation; the last ``parameters`` are
    parameters themselves: torch saves a norm's weight and bias too, and the tape knows that they are nothing else.
    """

    ours: Callable[..., Value]
    theirs: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ()  # float32 where this is shorter
    parameters: int = 0

    def inputs(self) -> list[tuple[tuple[int, ...], str]]:
        return list(zip(self.shapes, itertools.chain(self.dtypes, itertools.repeat("float32"))))

    def doubled(self, place: int) -> bool:
        return self.inputs()[place][1] in ops.FLOATING and place < len(self.shapes) - self.parameters


def swap(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2)


X, Y, ROW, Q, K = (3, 5, 8), (3, 5, 8), (8,), (2, 4, 6, 8), (2, 2, 6, 8)
OPERATIONS = {
    "scale": Operation(ops.scale, lambda x: x * 3.0, (X,)),
    "shift": Operation(ops.shift, lambda x: x + 3.0, (X,)),
    "gelu": Operation(ops.gelu, lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "silu": Operation(ops.silu, F.silu, (X,)),
    "relu": Operation(ops.relu, F.relu, (X,)),
    "tanh": Operation(ops.tanh, torch.tanh, (X,)),
    "sigmoid": Operation(ops.sigmoid, torch.sigmoid, (X,)),
    "power": Operation(ops.power, lambda x: x.pow(3), (X,)),
    "rsqrt": Operation(ops.rsqrt, torch.rsqrt, (X,)),
    "softmax": Operation(ops.softmax, lambda x: x.softmax(-1), (X,)),
    "softmax in float32": Operation(
        ops.softmax_in_float32, lambda x: F.softmax(x, dim=-1, dtype=torch.float32), (X,), ("bfloat16",)
    ),
    "mask": Operation(ops.mask_fill, lambda x, m: x.masked_fill(m, 0.0), (X, X), ("float32", "bool")),
    "dropout": Operation(lambda x: ops.dropout(x, 0.5), lambda x: F.dropout(x, 0.5), (X,)),
    "no dropout": Operation(lambda x: ops.scale(ops.dropout(x, 0.0)), lambda x: F.dropout(x, 0.0) * 2.0, (X,)),
    "cast down": Operation(lambda x: ops.cast(x, "bfloat16"), lambda x: x.to(torch.bfloat16), (X,)),
    "cast up": Operation(lambda x: ops.cast(x, "float32"), torch.Tensor.float, (X,), ("bfloat16",)),
    "add": Operation(ops.add, torch.add, (X, Y)),
    "add a row": Operation(ops.add, torch.add, (X, ROW)),
    "add two dtypes": Operation(ops.add, torch.add, (X, Y), ("bfloat16", "float32")),
    "multiply": Operation(ops.multiply, torch.mul, (X, Y)),
    "multiply by a row": Operation(ops.multiply, torch.mul, (ROW, X)),
    "multiply by a column": Operation(ops.multiply, torch.mul, (X, (3, 5, 1))),
    "multiply two dtypes": Operation(ops.multiply, torch.mul, (X, Y), ("bfloat16", "float32")),
    "x times itself": Operation(lambda x: ops.multiply(x, x), lambda x: x * x, (X,)),
    "divide": Operation(lambda a, b: ops.divide(a, views.detach(b)), lambda a, b: a / b.detach(), (X, ROW)),
    "mean": Operation(ops.mean_of_last, lambda x: x.mean(-1, keepdim=True), (X,)),
    "linear": Operation(ops.linear, F.linear, (X, (7, 8))),
    "linear with a bias": Operation(ops.linear, F.linear, (X, (7, 8), (7,))),
    "linear, one row": Operation(ops.linear, F.linear, ((1, 1, 8), (7, 8))),
    "conv1d": Operation(ops.conv1d, lambda x, w, b: torch.addmm(b, x.view(-1, 8), w).view(3, 5, 7), (X, (8, 7), (7,))),
    "matmul": Operation(ops.matmul, torch.matmul, (Q, (2, 4, 8, 6))),
    "matmul of interleaved heads": Operation(
        lambda a, b: ops.matmul(views.transpose(a, 1, 2), views.transpose(b, 2, 3)),
        lambda a, b: torch.matmul(a.transpose(1, 2), b.transpose(2, 3)),
        ((2, 6, 4, 8), (2, 4, 6, 8)),
    ),
    "embedding": Operation(ops.embedding, F.embedding, ((3, 5), (11, 8)), ("int64",)),
    "layer norm": Operation(ops.layer_norm, lambda x, w, b: F.layer_norm(x, (8,), w, b), (X, ROW, ROW), parameters=2),
    "layer norm without a bias": Operation(
        ops.layer_norm, lambda x, w: F.layer_norm(x, (8,), w), (X, ROW), parameters=1
    ),
    "layer norm in bfloat16": Operation(
        ops.layer_norm, lambda x, w: F.layer_norm(x, (8,), w), (X, ROW), ("bfloat16", "bfloat16"), parameters=1
    ),
    "cross entropy": Operation(ops.cross_entropy, F.cross_entropy, ((15, 11), (15,)), ("float32", "int64")),
    "attention": Operation(
        attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, Q, Q)
    ),
    "attention, grouped": Operation(
        attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (Q, K, K)
    ),
    "attention with a mask of bools": Operation(
        attention,
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        (Q, Q, Q, (2, 1, 6, 6)),
        ("float32", "float32", "float32", "bool"),
    ),
    "attention with dropout": Operation(
        lambda q, k, v: attention(q, k, v, dropout=0.5),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True),
        (Q, Q, Q),
    ),
    "attention, narrow values": Operation(
        attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, Q, (2, 4, 6, 3))
    ),
    "view": Operation(lambda x: ops.scale(views.view(x, 15, 8)), lambda x: x.view(15, 8) * 2.0, (X,)),
    "reshape that copies": Operation(
        lambda x: views.view(views.transpose(x, 1, 2), 3, 40), lambda x: swap(x).reshape(3, 40), (X,)
    ),
    "transpose": Operation(lambda x: ops.scale(views.transpose(x, 1, 2)), lambda x: swap(x) * 2.0, (X,)),
    "permute": Operation(lambda x: ops.scale(views.permute(x, 2, 0, 1)), lambda x: x.permute(2, 0, 1) * 2.0, (X,)),
    "unsqueeze": Operation(lambda x: ops.scale(views.unsqueeze(x, 1)), lambda x: x.unsqueeze(1) * 2.0, (X,)),
    "expand": Operation(lambda x: ops.scale(views.expand(x, 3, 5, 8)), lambda x: x.expand(3, 5, 8) * 2.0, ((3, 1, 8),)),
    "contiguous": Operation(lambda x: views.contiguous(views.transpose(x, 1, 2)), lambda x: swap(x).contiguous(), (X,)),
    "slice": Operation(lambda x: ops.scale(views.narrow(x, 2, 3)), lambda x: x[..., :3] * 2.0, (X,)),
    "split": Operation(lambda x: ops.add(*views.split(x, [4, 4])), lambda x: torch.add(*x.split([4, 4], dim=-1)), (X,)),
    "concatenate": Operation(lambda a, b: ops.cat([a, b]), lambda a, b: torch.cat([a, b], dim=-1), (X, Y)),
    "repeat heads": Operation(
        lambda x: views.repeat_heads(x, 3), lambda x: x[:, :, None].expand(2, 2, 3, 6, 8).reshape(2, 6, 6, 8), (K,)
    ),
    "repeat one head": Operation(
        lambda x: ops.scale(views.repeat_heads(x, 3)),
        lambda x: x[:, :, None].expand(1, 1, 3, 6, 8).reshape(1, 3, 6, 8) * 2.0,
        ((1, 1, 6, 8),),
    ),
    "summed in place": Operation(lambda x: ops.add(ops.scale(x), ops.tanh(x)), lambda x: x * 2.0 + torch.tanh(x), (X,)),
}


def on_the_tape(operation: Operation, autocast: str | None) -> StepMemory:
    tape, weights = Tape(autocast=autocast), []
    for shape, dtype in operation.inputs():
        floating = dtype in ops.FLOATING
        value = tape.new(shape, dtype, bucket=WEIGHTS if floating else None)
        value.source = Leaf() if floating else None
        weights.append(value)
    tape.phase = "forward"
    inputs = [ops.scale(value) if operation.doubled(i) else value for i, value in enumerate(weights)]
    out = operation.ours(*inputs)
    tape.casts.clear()
    tape.phase = "backward"
    tape.backward(out)
    return tape.result()


def in_torch(operation: Operation, autocast: str | None) -> StepMemory:
    torch.manual_seed(0)
    weights = []
    for shape, dtype in operation.inputs():
        floating = dtype in ops.FLOATING
        data = torch.rand(shape) if floating or dtype == "bool" else torch.randint(0, 5, shape)
        data = (data > 0.5) if dtype == "bool" else data.to(getattr(torch, dtype))
        weights.append(nn.Parameter(data) if floating else data)
    model = nn.ParameterList([weight for weight in weights if isinstance(weight, nn.Parameter)])
    constants = tuple(weight for weight in weights if not isinstance(weight, nn.Parameter))
    with MemoryMeter(model, None, constants) as meter:
        meter.mark("forward")
        inputs = [weight * 2.0 if operation.doubled(i) else weight for i, weight in enumerate(weights)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast is not None):
            out = operation.theirs(*inputs)
        meter.mark("backward")
        out.backward(torch.ones(out.shape, dtype=out.dtype))
    return meter.result()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_each_operation_is_the_meters(operation):
    ours, theirs = (quantities(run(operation, None)) for run in (on_the_tape, in_torch))
    assert ours == theirs


@pytest.mark.parametrize("name", ["linear", "linear with a bias", "conv1d", "matmul", "matmul of interleaved heads",
                                  "attention", "attention, grouped"])  # fmt: skip
def test_products_under_autocast_are_the_meters(name):
    ours, theirs = (quantities(run(OPERATIONS[name], "bfloat16")) for run in (on_the_tape, in_torch))
    assert ours == theirs


# ------------------------------------------------------------ layouts


SHAPES = ((2, 3, 4), (1, 3, 4), (2, 1, 4), (3, 1, 1), (2, 3, 1))
NEW = (
    (24,),
    (6, 4),
    (2, 12),
    (4, 6),
    (1, 24),
    (3, 2, 4),
    (2, 3, 2, 2),
    (12,),
    (3, 4),
    (8,),
    (2, 4),
    (3,),
    (6,),
    (1, 3),
)


def strides_of(tensor: torch.Tensor):
    return layout.plain(tuple(tensor.shape), tensor.stride())


def steps(shape: layout.Shape, strides: layout.Strides) -> list[int]:
    """The strides of every dimension that has more than one element; those of the others mean nothing."""
    return [step for n, step in zip(shape, strides or layout.contiguous(shape), strict=True) if n > 1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_views_are_torchs(shape, order):
    """Permuted by every order: the strides, what a view needs, and how an elementwise result lies."""
    tensor = torch.empty(shape).permute(order)
    permuted = layout.permute(shape, None, order)
    assert permuted == (tuple(tensor.shape), strides_of(tensor))
    for new in NEW:
        if torch.Size(new).numel() != tensor.numel():
            continue
        try:
            expected = strides_of(tensor.view(new))
        except RuntimeError:
            expected = False
        assert layout.view(*permuted, new) == expected, new
    assert steps(*layout.elementwise((permuted,))) == steps(tuple(tensor.shape), (tensor + 1).stride())
    for other in itertools.permutations(range(3)):
        second = torch.empty(tuple(tensor.shape[i] for i in other)).permute([other.index(i) for i in range(3)])
        both = layout.elementwise((permuted, (tuple(second.shape), strides_of(second))))
        assert steps(*both) == steps(tuple(tensor.shape), (tensor + second).stride()), other


# ------------------------------------------------------------ the tape's rules


def leaf(tape: Tape, n: int = 100) -> Value:
    value = tape.new((n,), "float32", bucket=WEIGHTS)
    value.source = Leaf()
    return value


def test_a_storage_dies_with_its_last_name():
    tape = Tape()
    x = tape.new((10, 10), "float32")
    seen = views.view(x, 100)
    del x
    assert tape.live == 400
    del seen
    assert tape.live == 0 and tape.peak == 400


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_bytes_of_an_element_are_torchs(dtype):
    assert ITEMSIZE[dtype] == torch.empty(1, dtype=getattr(torch, dtype)).element_size()


def test_nothing_is_saved_without_a_gradient():
    tape = Tape()
    out = ops.gelu(tape.new((100,), "float32"))
    assert out.source is None and tape.result().ledger.activations == 0


def test_a_gradient_counts_as_one_from_its_birth():
    tape = Tape()
    x = leaf(tape)
    tape.backward(ops.scale(x))
    result = tape.result()
    assert x.source.gradient.nbytes == 400
    assert (result.ledger.weights, result.ledger.gradients, result.ledger.optimizer) == (400, 400, 0)


def test_a_second_backward_adds_to_the_gradient():
    tape = Tape()
    x = leaf(tape)
    for _ in range(2):
        tape.backward(ops.scale(x))
    assert tape.result().ledger.gradients == 400 and tape.live == 800


def test_a_graph_that_was_run_keeps_nothing():
    tape = Tape()
    x = leaf(tape)
    y = ops.tanh(ops.tanh(x))
    assert tape.result().ledger.activations == 800
    tape.backward(y)
    del y
    x.source.gradient = None
    assert tape.live == x.nbytes


def test_the_parts_add_up_to_the_peak():
    tape = Tape()
    x, state = leaf(tape), tape.new((50,), "float32", bucket=OPTIMIZER)
    tape.phase = "forward"
    tape.backward(ops.multiply(ops.tanh(x), x))
    result = tape.result()
    assert result.peak.total == tape.peak == max(ledger.total for _, ledger in result.timeline())
    assert result.ledger.optimizer == state.nbytes


def test_checkpointing_keeps_the_input_alone_and_gives_the_same_gradients():
    def block(x: Value) -> Value:
        return ops.tanh(ops.gelu(ops.tanh(x)))

    kept = {}
    for name in ("kept", "again"):
        tape = Tape()
        x = leaf(tape)
        h = ops.scale(x)
        tape.phase = "forward"
        y = block(h) if name == "kept" else checkpoint(tape, block, (h,))
        forward = tape.result().ledger.activations
        tape.phase = "backward"
        tape.backward(y)
        kept[name] = forward, x.source.gradient.nbytes
    assert kept == {"kept": (800, 400), "again": (400, 400)}  # tanh's output is gelu's input


def test_cuda_autocast_raises_what_torch_says():
    """torch's own CUDA autocast, asked for the dtype of each result."""
    tape = Tape(cuda=True, autocast="bfloat16")
    x, weight = tape.new((4, 8), "bfloat16"), tape.new((8,), "bfloat16")
    ours = {
        "softmax": ops.softmax(x), "layer_norm": ops.layer_norm(x, weight), "power": ops.power(x),
        "rsqrt": ops.rsqrt(x), "gelu": ops.gelu(x), "silu": ops.silu(x), "tanh": ops.tanh(x),
        "linear": ops.linear(tape.new((4, 8), "float32"), tape.new((4, 8), "float32")),
    }  # fmt: skip
    theirs = result_dtypes("cuda")
    assert {name: getattr(torch, value.dtype) for name, value in ours.items()} == {name: theirs[name] for name in ours}
