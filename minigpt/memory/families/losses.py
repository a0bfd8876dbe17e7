"""From the last hidden states to the loss: transformers' own, a loop's, and those that never make all logits.

    model     ForCausalLMLoss: all logits, a float32 copy of them, and their log-softmax
    shifted   a loop's own: a copy of all logits but the last token's, then as above
    chunked   torchtune's LinearCrossEntropyLoss: CHUNKS pieces of the sequence, whose log-softmaxes are all kept
    fused     Liger's fused linear cross-entropy: the gradients are made in forward, piece by piece, and kept instead
    trl       trl's fused head, which SFTTrainer always uses: one tile of logits, made again in backward

Sources: transformers 5.17 loss_utils.py; torchtune 0.6 modules/loss/cross_entropy_loss.py; Liger 0.8
ops/fused_linear_cross_entropy.py; trl 1.15 kernels/chunked_logprob.py and trainer/utils.py. Kernels of Triton work in
place and allocate nothing. The last two record no product of their own, so they say how much they multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.layout import Shape
from minigpt.memory.engine.tape import ITEMSIZE, Value

CHUNKS = 8  # torchtune's num_output_chunks
TILE_TOKENS, TILE_WORDS = 4096, 32768  # trl's TOKEN_CHUNK_SIZE and _CHUNKED_LOGPROB_CHUNK_SIZE
SFT_OUTPUTS = ("entropy", "is_top1")  # what SFTTrainer asks for beside log-probabilities


def upcasted(layers: Layers, logits: Value) -> Value:
    """In float32 if the plan says so; cross-entropy under a CPU's autocast does it by itself."""
    itself = layers.tape.autocast is not None and not layers.tape.cuda
    return ops.cast(logits, "float32") if layers.plan.upcast or itself else logits


def causal_loss(layers: Layers, logits: Value, targets: Value) -> Value:
    """ForCausalLMLoss: the logits in float32, the labels moved by one. The cache lives until the model returns."""
    tape, plan = layers.tape, layers.plan
    if plan.holds == "outputs" and not layers.wrapped:
        layers.outputs.append(logits)
    B, T = targets.shape
    upcast = ops.cast(logits, "float32")
    padded = tape.new((B, T + 1), "int64")
    shifted = views.contiguous(views.narrow(padded, 1, T))  # one row needs no copy
    loss = ops.cross_entropy(views.view(upcast, -1, upcast.shape[-1]), views.view(shifted, -1))
    if layers.wrapped:
        layers.logits = logits
    elif plan.holds == "loss":
        layers.outputs.clear()
    del padded
    return loss


def returned(layers: Layers) -> None:
    """accelerate's convert_outputs_to_fp32, after autocast has ended: a float32 copy of the logits, held or not."""
    logits, layers.logits = layers.logits, None
    if logits is not None:
        copy = ops.cast(logits, "float32")
        layers.outputs = [*layers.outputs, copy] if layers.plan.holds == "outputs" else []


def shifted_loss(layers: Layers, logits: Value, targets: Value) -> Value:
    """A loop's own: ``logits[:, :-1].contiguous()`` against ``targets[:, 1:]``; the model's outputs live through it."""
    logits = layers.ranks.forward_ends(logits)
    B, T, V = logits.shape
    autocast = layers.tape.autocast
    if layers.wrapped:  # then the loss is outside of autocast
        layers.tape.casts.clear()
        layers.tape.autocast = None
        logits = ops.cast(logits, "float32")
    held = [*layers.outputs, logits]
    shifted = views.contiguous(views.narrow(logits, 1, T - 1))
    if layers.plan.upcast:
        shifted = ops.cast(shifted, "float32")
    labels = views.view(views.narrow(targets, 1, T - 1), -1)
    loss = ops.cross_entropy(views.view(shifted, -1, V), labels)
    layers.tape.autocast = autocast
    layers.outputs = held if layers.plan.holds == "outputs" else []
    return loss


def chunked(layers: Layers, hidden: Value, targets: Value) -> Value:
    total: Value | None = None
    lengths = _lengths(hidden.shape[1])
    for piece, labels in zip(_pieces(hidden, lengths), _pieces(targets, lengths), strict=True):
        logits = layers(piece, "head")
        if total is None:
            total = ops.shift(_piece_loss(logits, labels))
        else:
            total = ops.add(total, _piece_loss(logits, labels))
        del logits
    assert total is not None  # there are CHUNKS pieces
    return ops.scale(total)


def _piece_loss(logits: Value, labels: Value) -> Value:
    return ops.cross_entropy(views.view(ops.cast(logits, "float32"), -1, logits.shape[-1]), views.view(labels, -1))


def _lengths(length: int) -> list[int]:
    """How ``tensor_split`` cuts a sequence into CHUNKS pieces."""
    return [length // CHUNKS + (i < length % CHUNKS) for i in range(CHUNKS)]


def _pieces(x: Value, lengths: list[int]) -> list[Value]:
    return [views.narrow(x, 1, length, alias_whole=False) for length in lengths]


def fused(layers: Layers, hidden: Value, targets: Value) -> Value:
    """Pieces of logits as large as the hidden states, one after the other; a kernel writes the gradient over them."""
    tape, weight = layers.tape, layers["head"]
    hidden = views.view(hidden, -1, hidden.shape[-1])
    tokens, C, V = *hidden.shape, weight.shape[0]
    size = -(-tokens // -(-V // C))
    size = min(1 << (size - 1).bit_length(), tokens)  # the next power of two
    tape.doing = "fused loss"
    grad_hidden = tape.new(hidden.shape, hidden.dtype)
    grad_weight = tape.new(weight.shape, weight.dtype) if weight.source is not None else None
    losses = tape.new((tokens,), "float32")
    dtype = tape.autocast or hidden.dtype
    whole = hidden.dtype == weight.dtype == dtype
    storage = tape.new((size, V), dtype) if whole else None
    for start in range(0, tokens, size):
        piece = views.narrowed(hidden, 0, min(size, tokens - start))
        logits = storage or _product(piece, weight, (piece.shape[0], V), dtype)
        if not whole:  # the product is copied into its place in grad_hidden; autocast keeps a trained weight's cast
            _product(logits, ops.lowered(weight)[0], piece.shape, dtype)
        if grad_weight is not None and ITEMSIZE[dtype] == 2:
            _as(piece, dtype)
        elif grad_weight is not None:
            tape.new(weight.shape, dtype)
        del logits
    del storage
    kept = [value and (value.storage, value.shape, value.dtype) for value in (grad_hidden, grad_weight)]
    saves = [grad_hidden.storage] + ([grad_weight.storage] if grad_weight is not None else [])
    tape.multiplied(tokens, C, V)
    tape.work.gradients(tokens, C, V * len(saves))
    del grad_hidden, grad_weight
    loss = tape.new((), "float32")
    del losses
    return tape.record("fused loss", (hidden, weight), loss, saves, lambda g: [x and Value(*x) for x in kept])


def _as(x: Value, dtype: str) -> Value:
    """x in ``dtype``, unrecorded."""
    return x if x.dtype == dtype else x.storage.tape.new(x.shape, dtype)


def _product(a: Value, b: Value, shape: Shape, dtype: str) -> Value:
    """A product under autocast, unrecorded: its factors' casts live as long as it takes."""
    casts = _as(a, dtype), _as(b, dtype)
    out = a.storage.tape.new(shape, dtype)
    del casts
    return out


def trl(layers: Layers, hidden: Value, targets: Value) -> Value:
    """The labels' positions picked out, their log-probabilities made tile by tile, put back in place, and summed."""
    tape, weight = layers.tape, layers["head"]
    B, T, C = hidden.shape
    places = (B, T - 1)
    picked = views.narrow(hidden, 1, T - 1)
    tape.doing = "labels"
    mask = tape.new(places, "bool")
    picked = pick(picked, mask, mask.numel)
    labels = tape.new((picked.shape[0],), "int64")
    per_token, entropy, is_top1 = log_probabilities(tape, picked, weight, labels)
    del picked, labels
    log_probs = scatter(tape, per_token, mask)
    others = [scatter(tape, entropy, mask), tape.new(places, "bool")]
    ops.scale(summed(log_probs))
    negative = ops.scale(log_probs)
    count = tape.new((), "int64")
    loss = ops.divide(summed(negative), count)
    del others, is_top1
    return loss


def pick(x: Value, mask: Value, count: int) -> Value:
    """``x[mask]``: (B, T, C) to (count, C), where the mask is true. Its backward fills a tensor of zeros."""
    tape, old = x.storage.tape, x.shape
    shape = (count, old[-1])
    return tape.record("pick", (x,), (shape, x.dtype, None), [mask.storage], lambda g: [tape.new(old, g.dtype)])


def scatter(tape, x: Value, mask: Value) -> Value:
    """``zeros.masked_scatter(mask, x)``."""
    zeros, n = tape.new(mask.shape, x.dtype), x.shape
    out = tape.record("scatter", (x,), (mask.shape, x.dtype, None), [mask.storage], lambda g: [tape.new(n, g.dtype)])
    del zeros
    return out


def summed(x: Value) -> Value:
    """The sum of all; its gradient is one number seen many times."""
    shape = x.shape

    def backward(g):
        return [views.expand(views.view(views.detach(g), *[1] * len(shape)), *shape)]

    return x.storage.tape.record("sum", (x,), ((), x.dtype, None), (), backward)


def log_probabilities(
    tape, hidden: Value, weight: Value, labels: Value, outputs: Sequence[str] = SFT_OUTPUTS
) -> list[Value]:
    """Of (n, C) and (V, C): the log-probability of each label, by tiles, and which ``outputs`` are asked beside it."""
    n, V, dtype = hidden.shape[0], weight.shape[0], tape.autocast or hidden.dtype
    wanted = [value.source is not None for value in (hidden, weight)]
    tape.doing = "trl loss"
    tape.multiplied(n, hidden.shape[1], V)

    def tiles() -> Value | None:
        piece = None  # stays bound to the function's end
        for start in range(0, n, TILE_TOKENS):
            piece = _as(views.narrowed(hidden_like, 0, min(TILE_TOKENS, n - start)), dtype)
            for word in range(0, V, TILE_WORDS):
                part = _as(views.narrowed(weight_like, 0, min(TILE_WORDS, V - word)), dtype)
                del part
        return piece

    hidden_like, weight_like = views.detach(hidden), views.detach(weight)
    statistics = [tape.new((n,), "float32") for _ in range(7)]
    buffer = tape.new((min(n, TILE_TOKENS), TILE_WORDS), dtype)
    piece = tiles()
    log_z = tape.new((n,), "float32")
    per_token = tape.new((n,), "float32")
    others = []
    if "entropy" in outputs:
        share = tape.new((n,), "float32")
        others.append(tape.new((n,), "float32"))
        del share
    if "mean_logits" in outputs:
        others.append(tape.new((n,), "float32"))
    if "is_top1" in outputs:
        compared = [tape.new((n,), "bool") for _ in range(2)]
        others.append(tape.new((n,), "bool"))
        del compared
    entropy = others[0] if "entropy" in outputs else log_z  # which only fills its place
    saves = [value.storage for value in (hidden, weight, labels, log_z, entropy)]
    made = [(value.shape, value.dtype) for value in (hidden, weight)]

    def backward(g, *_):
        tape.work.gradients(n, made[0][0][1], V * (1 + sum(wanted)))  # the logits again, and each gradient
        grads = [tape.new(shape, "float32") if want else None for want, (shape, _) in zip(wanted, made, strict=True)]
        bound = tape.new((min(n, TILE_TOKENS), TILE_WORDS), dtype), tiles()  # noqa: F841  live until this returns
        return [g and _as(g, own) for g, (_, own) in zip(grads, made, strict=True)]

    tape.record("trl loss", (hidden, weight), per_token, saves, backward, outputs=2)
    if "entropy" in outputs:
        entropy.source, entropy.output = per_token.source, 1
    del statistics, buffer, piece
    return [per_token, *others]


def loss_of(layers: Layers, hidden: Value, targets: Value, head: Callable[[Layers, Value], Value]) -> Value:
    """The loss of last hidden states (B, T, C), as the plan has it; ``head`` makes logits (B, T, V) of them."""
    plan, layers.tape.block = layers.plan, "head"
    if plan.loss in HEADLESS:
        loss = HEADLESS[plan.loss](layers, hidden, targets)
        layers.outputs = [*layers.outputs, hidden] if plan.holds == "outputs" else []
        return loss
    if plan.logits_to_keep:
        keep = min(plan.logits_to_keep, targets.shape[1])
        hidden, targets = views.narrow(hidden, 1, keep), views.narrow(targets, 1, keep)
    else:
        hidden = views.alias(hidden)
    if plan.loss == "shifted":  # after the model has returned
        logits = [head(layers, hidden)]
        del hidden
        return shifted_loss(layers, logits.pop(), targets)  # the one name that it has
    return causal_loss(layers, head(layers, hidden), targets)


HEADLESS = {"chunked": chunked, "fused": fused, "trl": trl}
