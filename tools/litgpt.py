"""One LoRA step of LitGPT on the tape, as its code of early 2024 runs it, for the readings its authors published.

Every switch is the one behind LitGPT's tutorials/resource-tables.md: torch 2.1, bf16-true, rank 8 on q and v, dropout
0.05 before A, no checkpointing, the head applied to 128 tokens at a time. What differs from transformers and peft:

    q, k and v are one matrix; its adapter is padded with zeros to the width of all three
    adapters are bfloat16 like the rest, and so are AdamW's moments
    Lightning Fabric casts what the model returns, the logits, to float32 (its wrappers.py, convert_output)
    bitsandbytes 0.41 saves each 4-bit layer's input, and dequantizes twice: to float16, then to bfloat16
    the head is in 4 bits too; paged moments lie outside torch's allocator where a tensor has 100,000 elements

Source: litgpt 0.2.0 (lora.py, model.py, finetune/lora.py), the oldest on PyPI; bitsandbytes 0.41.1
(autograd/_functions.py, nn/modules.py). The tables are of October 2023, made with a version before it.
Left out: the kernels' scratch, cuDNN's workspace for the grouped convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine import ops, views
from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.layers import quantized_bytes
from minigpt.memory.engine.tape import OPTIMIZER, WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.families.decoder import heads
from minigpt.memory.families.rotary import rotate_half
from minigpt.memory.gpus import GPUS

RANK, ADAPTED, CHUNK, PAGED_FROM = 8, 2, 128, 100_000  # r; of q, k, v; tokens; elements
HALF = "bfloat16"


@dataclass(frozen=True)
class Shape:
    """A model as LitGPT's config.py describes it. ``llama``: RMSNorm, gated MLP, blocks one after the other."""

    vocab_size: int  # padded
    n_layer: int
    n_embd: int
    n_head: int
    n_inner: int
    rotary: float  # share of each head that is rotated
    llama: bool  # else: LayerNorm with bias, GELU, attention and MLP on one norm, side by side, biases everywhere


SHAPES = {
    "Llama-2-7B": Shape(32000, 32, 4096, 32, 11008, 1.0, llama=True),
    "phi-1.5": Shape(51200, 24, 2048, 32, 8192, 0.5, llama=False),
}


class LitGPT:
    """The model on a tape: makes the weights, then ``loss(tokens, targets)``."""

    def __init__(self, tape: Tape, shape: Shape, batch: int, seq_len: int, bits: str) -> None:
        self.tape, self.s, self.bits = tape, shape, bits
        self.batch, self.seq_len = batch, seq_len
        self.weights: dict[str, Value] = {}
        self.packed: dict[str, tuple[int, int]] = {}  # shapes of 4-bit matrices, (out, in)
        self.storages: list[Storage] = []
        self.trained: list[int] = []  # elements
        C, inner = shape.n_embd, shape.n_inner
        self._matrix("head", shape.vocab_size, C)
        self._plain("embedding", shape.vocab_size, C)
        for i in range(shape.n_layer):
            at = f"{i}."
            self._norm(at + "norm_1")
            self._matrix(at + "qkv", 3 * C, C)
            self._plain(at + "A", ADAPTED * RANK, C, trained=True)
            self._plain(at + "B", ADAPTED * C, RANK, trained=True)
            self._matrix(at + "o", C, C)
            if shape.llama:
                self._norm(at + "norm_2")
                self._matrix(at + "gate", inner, C)
            self._matrix(at + "up", inner, C)
            self._matrix(at + "down", C, inner)
        self._norm("norm")

    # ------------------------------------------------------------ weights

    def _plain(self, name: str, *shape: int, trained: bool = False) -> None:
        value = self.weights[name] = self.tape.new(shape, HALF, bucket=WEIGHTS)
        if trained:
            value.source = Leaf()
            self.trained.append(value.numel)

    def _matrix(self, name: str, n_out: int, n_in: int) -> None:
        if self.bits == "bf16":
            self._plain(name, n_out, n_in)
        else:
            sizes = quantized_bytes(n_out * n_in, double=self.bits == "nf4-dq")
            self.storages += [Storage(self.tape, nbytes, WEIGHTS) for nbytes in sizes]
            self.packed[name] = n_out, n_in
        if not self.s.llama:
            self._plain(name + ".bias", n_out)

    def _norm(self, name: str) -> None:
        self._plain(name, self.s.n_embd)
        if not self.s.llama:
            self._plain(name + ".bias", self.s.n_embd)

    # ------------------------------------------------------------ the pass

    def loss(self, tokens: Value, targets: Value, logits: list[Value]) -> Value:
        """The mean loss; ``logits`` receives every chunk's, which the training loop holds through backward."""
        tape, s = self.tape, self.s
        D = int(s.n_embd // s.n_head * s.rotary)
        cos, sin = (tape.new((self.seq_len, D), HALF, bucket=WEIGHTS) for _ in range(2))
        x = ops.embedding(tokens, self.weights["embedding"])
        for i in range(s.n_layer):
            tape.block = f"block {i}"
            x = self._block(x, f"{i}.", cos, sin)
        tape.block = "head"
        x = self._normed(x, "norm")
        lengths = [min(CHUNK, self.seq_len - start) for start in range(0, self.seq_len, CHUNK)]
        chunks = views.split(x, lengths, 1)
        del x
        half = [self._linear(chunk, "head") for chunk in chunks]
        logits += [ops.cast(chunk, "float32") for chunk in half]
        del half
        losses = [ops.cross_entropy(views.view(chunk, -1, s.vocab_size), targets) for chunk in logits]
        return tape.record("sum", losses, ((), HALF, None), (), lambda g: [g] * len(losses))

    def _block(self, x: Value, at: str, cos: Value, sin: Value) -> Value:
        n_1 = self._normed(x, at + "norm_1")
        h = self._attention(n_1, at, cos, sin)
        if not self.s.llama:
            return ops.add(ops.add(self._mlp(n_1, at), h), x)
        x = ops.add(h, x)
        return ops.add(self._mlp(self._normed(x, at + "norm_2"), at), x)

    def _normed(self, x: Value, name: str) -> Value:
        weight = self.weights[name]
        if not self.s.llama:
            return ops.layer_norm(x, weight, self.weights[name + ".bias"])
        x = ops.cast(x, "float32")
        mean = ops.mean_of_last(ops.multiply(x, x))
        normed = ops.multiply(x, ops.rsqrt(ops.shift(mean)))
        return ops.multiply(ops.cast(normed, HALF), weight)

    def _linear(self, x: Value, name: str) -> Value:
        if name in self.packed:
            return self._four_bit(x, name)
        return ops.linear(x, self.weights[name], self.weights.get(name + ".bias"))

    def _four_bit(self, x: Value, name: str) -> Value:
        tape, packed, shape = self.tape, self.packed[name], x.shape

        def dequantize() -> Value:
            half = tape.new(packed, "float16")  # noqa: F841  until it is bfloat16
            return tape.new(packed, HALF)

        weight = dequantize()
        out = tape.new((*shape[:-1], packed[0]), HALF)
        del weight

        def backward(g):
            weight = dequantize()  # noqa: F841  lives until this returns
            return [tape.new(shape, HALF)]

        return tape.record("linear, 4 bits", (x,), out, [x.storage], backward)

    def _adapter(self, x: Value, at: str) -> Value:
        """dropout, A, the grouped convolution B, zeros for k, the scaling."""
        tape, C = self.tape, self.s.n_embd
        inner = ops.linear(ops.dropout(x, 0.05), self.weights[at + "A"])
        b = self.weights[at + "B"]
        made = inner.shape, b.shape
        update = tape.record(
            "conv1d", (inner, b), ((*inner.shape[:-1], ADAPTED * C), HALF), [inner.storage, b.storage],
            lambda g: [tape.new(shape, HALF) for shape in made],
        )  # fmt: skip
        index, width = tape.new((ADAPTED * C,), "int64"), update.shape
        saves = [index.storage, update.storage]
        out = (*width[:-1], 3 * C), HALF
        padded = tape.record("index_copy", (update,), out, saves, lambda g: [tape.new(width, HALF)])
        return ops.scale(padded)

    def _attention(self, x: Value, at: str, cos: Value, sin: Value) -> Value:
        C = self.s.n_embd
        base = self._linear(x, at + "qkv")
        qkv = ops.add(base, self._adapter(x, at))
        del base
        q, k, v = (heads(part, C // self.s.n_head) for part in views.split(qkv, [C] * 3))
        del qkv
        q, k = (self._rotated(part, cos, sin) for part in (q, k))
        y = views.transpose(attention(q, k, v), 1, 2)
        return self._linear(views.view(y, self.batch, self.seq_len, C), at + "o")

    def _rotated(self, x: Value, cos: Value, sin: Value) -> Value:
        """The rotated share and the rest, put side by side in a new tensor."""
        width = cos.shape[-1]
        part = views.narrow(x, 3, width)
        straight, turned = ops.multiply(part, cos), ops.multiply(rotate_half(part), sin)
        roped = ops.add(straight, turned)
        return ops.cat([roped, views.narrow(x, 3, x.shape[-1] - width)])

    def _mlp(self, x: Value, at: str) -> Value:
        if not self.s.llama:
            return self._linear(ops.gelu(self._linear(x, at + "up")), at + "down")
        gate, up = self._linear(x, at + "gate"), self._linear(x, at + "up")
        x = ops.multiply(ops.silu(gate), up)
        return self._linear(x, at + "down")


def predict(model: str, batch: int, seq_len: int, bits: str, card: str | None = "A100 40GB") -> StepMemory:
    """One step of ``model``, a name of SHAPES, with its base in ``bits``: "bf16", "nf4" or "nf4-dq". Bytes."""
    tape = Tape(cuda=card is not None)
    workspaces = [tape.new((GPUS[card].workspace,), "uint8") for _ in range(2)] if card else []
    lit = LitGPT(tape, SHAPES[model], batch, seq_len, bits)
    state = []
    for numel in lit.trained:
        paged = bits != "bf16"  # float32 moments, outside the allocator when large enough to be paged
        if not (paged and numel >= PAGED_FROM):
            state += [tape.new((numel,), "float32" if paged else HALF, bucket=OPTIMIZER) for _ in range(2)]
    tokens, targets = (tape.new((batch, seq_len), "int64") for _ in range(2))
    logits: list[Value] = []
    tape.phase = "forward"
    loss = lit.loss(tokens, targets, logits)
    tape.phase = "backward"
    tape.backward(loss)
    tape.phase = "step"
    roots = [tape.new((numel,), HALF) for numel in lit.trained if bits == "bf16"]  # foreach AdamW
    result = tape.result()
    del workspaces, roots, state, logits
    return result


def generating(model: str, bits: str) -> int:
    """Bytes to generate with: weights, and for 4 bits the largest one dequantized twice.

    Left out: the key-value cache of a few tokens, under 1% of it.
    """
    lit = LitGPT(Tape(), SHAPES[model], batch=1, seq_len=1, bits=bits)
    adapters = 2 * sum(lit.trained)
    largest = max(map(prod, lit.packed.values()), default=0)
    return lit.tape.live - adapters + 2 * 2 * largest
