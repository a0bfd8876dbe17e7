"""What each operation of a transformer costs: its output, what it saves, what its backward makes.

Every rule was read off the operations that torch 2.13 runs on a CPU, and is held there by the tests that compare
prediction and meter. This is the one name under which the models use them:

    casting      in which precision: casts, also those of autocast
    pointwise    on each element by itself: activations, sums, dropout
    products     of matrices
    rows         along the last dimension: softmax, norms, the loss; and embeddings

What makes no new tensor is in ``views``; what mixtures of experts need, in ``routing``.
"""

from minigpt.memory.engine.casting import FLOATING, cast, like, lowered, lowered_unrecorded, promote, raised
from minigpt.memory.engine.pointwise import (
    add,
    cat,
    clamp,
    divide,
    dropout,
    exp,
    gelu,
    log,
    mask_fill,
    multiply,
    power,
    relu,
    rsqrt,
    scale,
    shift,
    sigmoid,
    silu,
    subtract,
    tanh,
    where,
)
from minigpt.memory.engine.products import addmm, baddbmm, bmm, conv1d, linear, matmul, matmul_then_add, mm
from minigpt.memory.engine.rows import (
    PAIR,
    cross_entropy,
    embedding,
    gather_of_last,
    largest_of_last,
    layer_norm,
    mean_of_all,
    mean_of_last,
    rows_by_index,
    softmax,
    softmax_in_float32,
    sum_of_last,
)

__all__ = [
    "FLOATING", "PAIR", "add", "addmm", "baddbmm", "bmm", "cast", "cat", "clamp", "conv1d", "cross_entropy", "divide",
    "dropout", "embedding", "exp", "gather_of_last", "gelu", "largest_of_last", "layer_norm", "like", "linear", "log",
    "lowered", "lowered_unrecorded", "mask_fill", "matmul", "matmul_then_add", "mean_of_all", "mean_of_last", "mm",
    "multiply", "power", "promote", "raised", "relu", "rows_by_index", "rsqrt", "scale", "shift", "sigmoid", "silu",
    "softmax", "softmax_in_float32", "subtract", "sum_of_last", "tanh", "where",
]  # fmt: skip
