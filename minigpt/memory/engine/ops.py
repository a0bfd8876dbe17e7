"""What each operation of a transformer costs: its output, what it saves, what its backward makes.

Every rule here was read off the operations that torch 2.13 runs on a CPU, and is held there by the tests
that compare prediction and meter. ``n`` is a number of elements, ``itemsize`` the bytes of one.

The rules that surprise people:

    linear          saves its input (if the weight is trained) and its weight, never its output
    gelu, silu      save their input; the layer after saves their output
    softmax, tanh   save their output
    cross_entropy   saves the log-probabilities: one copy of the logits, in the loss's precision
    casts           save nothing, but their results do not vanish: the next operation saves them
"""

from __future__ import annotations

from minigpt.memory.engine.tape import Tape, Value


def _saves(a: Value, b: Value) -> list:
    """What a product saves: each factor, if the other takes a gradient."""
    return [x.storage for x, other in ((a, b), (b, a)) if other.source is not None]


def _like(tape: Tape, name: str, x: Value, saves_input=False, saves_output=False, scratch: int = 0) -> Value:
    """An elementwise operation whose backward makes one gradient, and ``scratch`` tensors like it on the way."""
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize) if saves_output else (x.numel, x.itemsize)
    saves = [x.storage] * saves_input + ([out.storage] if saves_output else [])
    if not scratch:
        return tape.record(name, [x], out, saves)

    def backward(edges, gradient):
        work = [tape.new(edges[0].nbytes) for _ in range(scratch)]  # noqa: F841  lives until this returns
        return tape.fresh(edges)

    return tape.record(name, [x], out, saves, backward)


def _through(edges, gradient):
    """A backward that hands its gradient on untouched."""
    return [gradient]


def scale(tape: Tape, x: Value) -> Value:
    """x times, or divided by, a number."""
    return _like(tape, "scale", x)


def gelu(tape: Tape, x: Value) -> Value:
    return _like(tape, "gelu", x, saves_input=True)


def silu(tape: Tape, x: Value) -> Value:
    return _like(tape, "silu", x, saves_input=True)


def tanh(tape: Tape, x: Value) -> Value:
    return _like(tape, "tanh", x, saves_output=True)


def softmax(tape: Tape, x: Value) -> Value:
    """CUDA's backward makes gradient times output first."""
    return _like(tape, "softmax", x, saves_output=True, scratch=int(tape.cuda))


def softmax_in_float32(tape: Tape, x: Value, half: bool) -> Value:
    """F.softmax(x, dtype=float32). CUDA casts float16 on the way, forward and backward, and no other format."""
    if not (tape.cuda and half and x.itemsize == 2):
        return softmax(tape, cast(tape, x, 4))
    out = Value(tape.new(4 * x.numel), x.numel, 4)

    def backward(edges, gradient):
        product = tape.new(gradient.nbytes)  # noqa: F841  gradient times output, until this returns
        return tape.fresh(edges)

    return tape.record("softmax", [x], out, [out.storage], backward)


def power(tape: Tape, x: Value) -> Value:
    """x to a fixed power. Its backward makes x**(p-1), then p times that, then the gradient."""
    return _like(tape, "power", x, saves_input=True, scratch=2)


def rsqrt(tape: Tape, x: Value) -> Value:
    return _like(tape, "rsqrt", x, saves_output=True, scratch=2)


def mask_fill(tape: Tape, x: Value, mask: Value) -> Value:
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize)
    return tape.record("mask", [x], out, [mask.storage])


def shift(tape: Tape, x: Value) -> Value:
    """x plus a number: the gradient passes through untouched."""
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize)
    return tape.record("add", [x], out, (), _through)


def view(tape: Tape, x: Value, gradient_copied: bool = False) -> Value:
    """The same storage under another shape; the gradient is copied if it arrives in another layout."""
    out = Value(x.storage, x.numel, x.itemsize)
    return tape.record("view", [x], out, (), None if gradient_copied else _through)


def copy(tape: Tape, x: Value, gradient_copied: bool = True) -> Value:
    """A contiguous copy of a transposed tensor; the gradient is copied back if its layout asks for it."""
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize)
    return tape.record("copy", [x], out, (), None if gradient_copied else _through)


def repeat(tape: Tape, x: Value, times: int) -> Value:
    """Each key or value head, ``times`` over; the gradient is their sum."""
    out = Value(tape.new(x.nbytes * times), x.numel * times, x.itemsize)
    return tape.record("repeat", [x], out)


def expand(tape: Tape, x: Value, times: int) -> Value:
    """As ``repeat``, without a copy: one head of one sequence can be seen as many."""
    return tape.record("expand", [x], Value(x.storage, x.numel * times, x.itemsize))


def cast(tape: Tape, x: Value, itemsize: int) -> Value:
    """x in another precision; x itself if it has that precision already."""
    if x.itemsize == itemsize:
        return x
    out = Value(tape.new(x.numel * itemsize), x.numel, itemsize)
    return tape.record("cast", [x], out)


def add(tape: Tape, a: Value, b: Value) -> Value:
    """a + b. The gradient is shared, not copied, unless a side is broadcast or in another precision."""
    n, itemsize = max(a.numel, b.numel), max(a.itemsize, b.itemsize)
    out = Value(tape.new(n * itemsize), n, itemsize)

    def backward(edges, gradient):
        return [gradient if edge.nbytes == gradient.nbytes else tape.gradient(edge) for edge in edges]

    return tape.record("add", [a, b], out, (), backward)


def multiply(tape: Tape, a: Value, b: Value) -> Value:
    """a * b, elementwise; either may be broadcast or in lower precision."""
    out = max(a.numel, b.numel), max(a.itemsize, b.itemsize)

    def backward(edges, gradient):
        final = [edge.target is None or edge.nbytes == gradient.nbytes for edge in edges]
        made = [tape.gradient(edges[i]) if final[i] else tape.new(gradient.nbytes) for i in range(2)]
        tape.recomputed.clear()  # the node has run
        for i in range(2):
            if not final[i]:  # once both products are made, the engine sums or casts this one into the gradient
                made[i] = tape.gradient(edges[i])
        return made

    return tape.record("multiply", [a, b], out, _saves(a, b), backward)


def mean_of_last(tape: Tape, x: Value, rows: int) -> Value:
    """The mean over the last dimension: one number a row."""
    return tape.record("mean", [x], Value(tape.new(rows * x.itemsize), rows, x.itemsize))


def linear(
    tape: Tape, x: Value, weight: Value, n_out: int, bias: Value | None = None, transposed: bool = True
) -> Value:
    """x @ weight.T (+ bias), for x (rows, n_in) and weight (n_out, n_in), or stored as (n_in, n_out), as gpt2 does."""
    out = x.numel * n_out // weight.numel * n_out, x.itemsize
    # A product makes the weight's gradient first; addmm, which adds a bias, the input's.
    inputs = [weight, x] if bias is None else [x, weight, bias]
    views = [x] + [weight] * transposed  # x's gradient (rows, n_in) is seen as (batch, seq, n_in)
    viewed = [value in views for value in inputs[:2]]
    del views

    def backward(edges, gradient):  # it must not know x, weight or bias, or they would live as long as the node
        made = [tape.gradient(edge) for edge in edges[:2]]
        for product, seen in zip(made, viewed, strict=True):
            if product is not None:
                product.viewed = seen
        if len(edges) == 3:
            tape.recomputed.clear()  # the node has run; the engine sums the gradient's rows into the bias's
            made.append(tape.gradient(edges[2]))
        return made

    return tape.record("linear", inputs, out, _saves(x, weight), backward)


def matmul(tape: Tape, a: Value, b: Value, n: int) -> Value:
    """A batched product of n elements. Backward makes the right factor's gradient first."""
    return tape.record("matmul", [b, a], (n, a.itemsize), _saves(a, b))


def embedding(tape: Tape, indices: Value, table: Value, width: int) -> Value:
    """Rows of a table. Saves the indices; the gradient is a whole table."""
    n = indices.numel * width
    out = Value(tape.new(n * table.itemsize), n, table.itemsize)
    return tape.record("embedding", [table], out, [indices.storage])


def layer_norm(tape: Tape, x: Value, weight: Value, rows: int, bias: Value | None = None) -> Value:
    """Saves its input, and a mean and a reciprocal deviation for each row; CUDA has these in float32 always."""
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize)
    statistics = [tape.new(rows * (4 if tape.cuda else x.itemsize)) for _ in range(2)]
    inputs = [x, weight] + ([bias] if bias is not None else [])
    return tape.record("layer_norm", inputs, out, [x.storage, *statistics])


def attention(tape: Tape, q: Value, k: Value, v: Value, heads_by_rows: int) -> Value:
    """Scaled dot-product attention in one kernel: saves q, k, v, the output and a logsumexp in float32."""
    out = Value(tape.new(q.nbytes), q.numel, q.itemsize)
    logsumexp = tape.new(4 * heads_by_rows)
    saves = [q.storage, k.storage, v.storage, out.storage, logsumexp]

    def backward(edges, gradient):
        made = [tape.gradient(edge) or tape.new(edge.nbytes) for edge in edges]  # all three, wanted or not
        return [None if edge.target is None else one for edge, one in zip(edges, made, strict=True)]

    return tape.record("attention", [q, k, v], out, saves, backward)


def split(tape: Tape, x: Value, parts: int) -> list[Value]:
    """Views of ``parts`` equal parts; backward concatenates their gradients into a new tensor."""
    outs = [Value(x.storage, x.numel // parts, x.itemsize, output=i) for i in range(parts)]
    tape.record("split", [x], outs[0], outputs=parts)
    for out in outs[1:]:
        out.source = outs[0].source
    return outs


def rotate(tape: Tape, x: Value, cos: Value, sin: Value) -> Value:
    """Rotary position embedding: x * cos + rotate_half(x) * sin, as transformers writes it."""
    straight = multiply(tape, x, cos)
    rotated = _rotate_half(tape, x)
    turned = multiply(tape, rotated, sin)
    del rotated
    return add(tape, straight, turned)


def _rotate_half(tape: Tape, x: Value) -> Value:
    """(-upper half, lower half). The gradient of each slice is a whole tensor with zeros."""
    lower, upper = (Value(x.storage, x.numel // 2, x.itemsize) for _ in range(2))
    tape.record("slice", [x], lower)
    tape.record("slice", [x], upper)
    negative = scale(tape, upper)
    out = Value(tape.new(x.nbytes), x.numel, x.itemsize)
    return tape.record("concatenate", [negative, lower], out, (), lambda edges, g: [g, g])


def cross_entropy(tape: Tape, logits: Value, targets: Value) -> Value:
    """Log-softmax, which saves its output, then the negative log-likelihood, which saves the targets."""
    log_probabilities = _like(tape, "log_softmax", logits, saves_output=True)
    total_weight = tape.new(logits.itemsize)
    loss = Value(tape.new(logits.itemsize), 1, logits.itemsize)
    return tape.record("nll_loss", [log_probabilities], loss, [targets.storage, total_weight])
