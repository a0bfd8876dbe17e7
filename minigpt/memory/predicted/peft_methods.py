"""trained(model, method): what peft's other methods train, and hold beside it, from the model's shape alone.

With (out, in) of each matrix that is adapted, L blocks, C the width, K the width of all key heads, v virtual tokens:

    method     trained parameters                           beside it, not trained
    prompt     v C                                          v more tokens in every sequence, with all they save
    prefix     2 v L K                                      v more keys and values in every block's attention
    p-tuning   v C + 3 (C h + h), h = C                     as prompt; only v C is kept after training
    ia3        out of each of k and v, in of down
    ln         every norm's weight, (2 L + 1) C in llama    the norms that it copied
    lora       r (in + out)
    dora       r (in + out) + out
    vera       r + out                                      r max(in) + max(out) r numbers, shared by all
    loha       2 r (in + out)
    lokr       two factors: see ``_kronecker``
    oft        in / b blocks of b (b - 1) / 2               two indices of 8 bytes for each number of one block
    boft       in / b blocks of b x b, and out              in x in numbers for each matrix: in the CPU's memory where
                                                            the model was on a GPU before, and then sent each pass

All are float32, also over a base in 16 bits (``autocast_adapter_dtype=True``), but for LayerNorm tuning, which trains
copies of the base's own. A trained parameter then costs 4 + 4 + 8 bytes with AdamW, whatever the method.

Read in peft 0.21: ``tuners/*/layer.py`` and ``model.py``. Tests build each of them with peft, and compare peft's own
published counts. Left out: what a method saves for backward, which is ``predict``'s for LoRA and DoRA; biases; other
options than these.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from minigpt.memory.families import Architecture
from minigpt.values import check_choice, check_counts

Shapes = list[tuple[int, int]]  # (out, in) of each matrix

METHODS = ("prompt", "prefix", "p-tuning", "ia3", "ln", "lora", "dora", "vera", "loha", "lokr", "oft", "boft")
SCALED = ("k", "v", "down")  # what peft's IA3 scales in llama, unless told otherwise
FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Trained:
    """``parameters`` are trained, of ``itemsize`` bytes each; ``beside`` are bytes that come with them, not trained."""

    method: str
    parameters: int
    itemsize: int = 4
    beside: int = 0

    @property
    def weights(self) -> int:
        """Bytes of the trained numbers themselves: about what a saved adapter takes."""
        return self.itemsize * self.parameters

    @property
    def total(self) -> int:
        """Bytes that stay from step to step with AdamW: weights, gradients, two moments, and what is beside."""
        return 4 * self.weights + self.beside


def trained(
    model, method: str, *, rank: int = 8, targets: str = "q,v", tokens: int = 20, block: int = 32, itemsize: int = 2
) -> Trained:
    """What ``method`` trains on ``model`` (anything ``Architecture.of`` reads).

    ``rank`` and ``targets`` ("all-linear" or names) are for methods that adapt matrices, ``tokens`` for those that add
    virtual ones, ``block`` for "oft" and "boft"; ``itemsize`` is the base's, for "ln". Raises ValueError for a method
    or a target that is not there, and for a block that does not divide a matrix's inputs.
    """
    check_choice(METHODS, method=method)
    check_counts(rank=rank, tokens=tokens, block=block, itemsize=itemsize)
    a = Architecture.of(model)
    if method == "prompt":
        return Trained(method, tokens * a.n_embd)
    if method == "prefix":
        return Trained(method, 2 * tokens * a.n_layer * a.n_kv_head * a.head_dim)
    if method == "p-tuning":
        return Trained(method, tokens * a.n_embd + 3 * (a.n_embd + 1) * a.n_embd)
    if method == "ln":
        norms = sum(t.numel for t in a.tensors() if t.kind == "norm")
        return Trained(method, norms, itemsize, beside=itemsize * norms)
    if method == "ia3":
        shapes = {name: _shapes(a, name) for name in SCALED}
        return Trained(
            method, sum(n_in if name == "down" else n_out for name in SCALED for n_out, n_in in shapes[name])
        )
    shapes_of = _shapes(a, targets)
    if method in ("oft", "boft"):
        return _rotations(method, shapes_of, block)
    return _products(method, shapes_of, rank)


def _shapes(a: Architecture, targets: str) -> Shapes:
    """(out, in) of the blocks' matrices with these names."""
    if not isinstance(targets, str):
        raise ValueError(f"targets is {targets!r}; it must be 'all-linear', or names such as 'q,v'")
    linears = [(t.name.rpartition(".")[2], t.shape) for t in a.tensors() if t.kind == "linear"]
    names = {name for name, _ in linears}
    asked = names if targets == "all-linear" else {word.strip().removesuffix("_proj") for word in targets.split(",")}
    if not asked <= names:
        wrong, right = ", ".join(sorted(asked - names)), ", ".join(sorted(names))
        raise ValueError(f"targets has {wrong!r}; allowed: all-linear, or some of {right}")
    return [(shape[0], shape[1]) for name, shape in linears if name in asked]


def _products(method: str, shapes: Shapes, r: int) -> Trained:
    """Methods whose change of a matrix is made of products of smaller ones."""
    both = sum(n_out + n_in for n_out, n_in in shapes)
    outs = sum(n_out for n_out, _ in shapes)
    if method == "vera":
        shared = r * max(n_in for _, n_in in shapes) + max(n_out for n_out, _ in shapes) * r
        return Trained(method, outs + r * len(shapes), beside=FLOAT32 * shared)
    if method == "lokr":
        return Trained(method, sum(_kronecker(n_out, n_in, r) for n_out, n_in in shapes))
    return Trained(method, {"lora": r * both, "dora": r * both + outs, "loha": 2 * r * both}[method])


def _kronecker(n_out: int, n_in: int, r: int) -> int:
    """LoKr: the Kronecker product of (o1, i1) and (o2, i2), o1 o2 = n_out; the second as r (o2 + i2) where r is small.

    o1 is n_out's largest divisor up to its square root, i1 n_in's.
    """
    o1, i1 = (max(d for d in range(1, isqrt(n) + 1) if n % d == 0) for n in (n_out, n_in))
    o2, i2 = n_out // o1, n_in // i1
    return o1 * i1 + (r * (o2 + i2) if 2 * r < max(o2, i2) else o2 * i2)


def _rotations(method: str, shapes: Shapes, b: int) -> Trained:
    """Methods that multiply a matrix by an orthogonal one of blocks of b x b."""
    for _, n_in in shapes:
        if n_in % b:
            raise ValueError(f"block is {b}; it must divide a matrix's inputs, which are {n_in}")
    if method == "oft":
        one = b * (b - 1) // 2
        return Trained(method, sum(n_in // b * one for _, n_in in shapes), beside=len(shapes) * 2 * 8 * one)
    blocks = sum(n_in * b + n_out for n_out, n_in in shapes)
    return Trained(method, blocks, beside=sum(FLOAT32 * n_in**2 for _, n_in in shapes))
