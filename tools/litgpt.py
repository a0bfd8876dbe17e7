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

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine import ops
from minigpt.memory.engine.linears import quantized_bytes
from minigpt.memory.engine.tape import OPTIMIZER, WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.families.forward import INT64
from minigpt.memory.gpus import GPUS

HALF, RANK, ADAPTED, CHUNK, PAGED_FROM = 2, 8, 2, 128, 100_000  # bytes; r; of q, k, v; tokens; elements


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
        self.batch, self.seq_len, self.rows = batch, seq_len, batch * seq_len
        self.weights: dict[str, Value] = {}
        self.packed: dict[str, int] = {}  # elements of a 4-bit matrix
        self.storages: list[Storage] = []
        self.trained: list[int] = []  # elements
        C, inner = shape.n_embd, shape.n_inner
        self._matrix("head", shape.vocab_size, C)
        self._plain("embedding", shape.vocab_size * C)
        for i in range(shape.n_layer):
            at = f"{i}."
            self._norm(at + "norm_1")
            self._matrix(at + "qkv", 3 * C, C)
            self._plain(at + "A", ADAPTED * RANK * C, trained=True)
            self._plain(at + "B", ADAPTED * C * RANK, trained=True)
            self._matrix(at + "o", C, C)
            if shape.llama:
                self._norm(at + "norm_2")
                self._matrix(at + "gate", inner, C)
            self._matrix(at + "up", inner, C)
            self._matrix(at + "down", C, inner)
        self._norm("norm")

    # ------------------------------------------------------------ weights

    def _plain(self, name: str, numel: int, trained: bool = False) -> None:
        leaf = Leaf(HALF * numel) if trained else None
        self.weights[name] = Value(Storage(self.tape, HALF * numel, WEIGHTS), numel, HALF, leaf)
        if trained:
            self.trained.append(numel)

    def _matrix(self, name: str, n_out: int, n_in: int) -> None:
        if self.bits == "bf16":
            self._plain(name, n_out * n_in)
        else:
            sizes = quantized_bytes(n_out * n_in, double=self.bits == "nf4-dq")
            self.storages += [Storage(self.tape, nbytes, WEIGHTS) for nbytes in sizes]
            self.packed[name] = n_out * n_in
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
        cos, sin = (Value(Storage(tape, HALF * self.seq_len * D, WEIGHTS), self.seq_len * D, HALF) for _ in range(2))
        x = ops.embedding(tape, tokens, self.weights["embedding"], s.n_embd)
        for i in range(s.n_layer):
            tape.block = f"block {i}"
            x = self._block(x, f"{i}.", cos, sin)
        tape.block = "head"
        x = self._normed(x, "norm")
        tokens_in = [min(CHUNK, self.seq_len - start) * self.batch for start in range(0, self.seq_len, CHUNK)]
        chunks = [Value(x.storage, n * s.n_embd, HALF, output=i) for i, n in enumerate(tokens_in)]
        tape.record("split", [x], chunks[0], outputs=len(chunks))
        for chunk in chunks[1:]:
            chunk.source = chunks[0].source
        del x
        half = [self._linear(chunk, "head", s.vocab_size) for chunk in chunks]
        logits += [ops.cast(tape, chunk, 4) for chunk in half]
        del half
        losses = [ops.cross_entropy(tape, chunk, targets) for chunk in logits]
        return tape.record("sum", losses, Value(tape.new(HALF), 1, HALF))

    def _block(self, x: Value, at: str, cos: Value, sin: Value) -> Value:
        tape = self.tape
        n_1 = self._normed(x, at + "norm_1")
        h = self._attention(n_1, at, cos, sin)
        if not self.s.llama:
            return ops.add(tape, ops.add(tape, self._mlp(n_1, at), h), x)
        x = ops.add(tape, h, x)
        return ops.add(tape, self._mlp(self._normed(x, at + "norm_2"), at), x)

    def _normed(self, x: Value, name: str) -> Value:
        tape, weight = self.tape, self.weights[name]
        if not self.s.llama:
            return ops.layer_norm(tape, x, weight, self.rows, self.weights[name + ".bias"])
        x = ops.cast(tape, x, 4)
        mean = ops.mean_of_last(tape, ops.multiply(tape, x, x), self.rows)
        normed = ops.multiply(tape, x, ops.rsqrt(tape, ops.shift(tape, mean)))
        return ops.multiply(tape, ops.cast(tape, normed, HALF), weight)

    def _linear(self, x: Value, name: str, n_out: int) -> Value:
        if name in self.packed:
            return self._four_bit(x, name, n_out)
        return ops.linear(self.tape, x, self.weights[name], n_out, self.weights.get(name + ".bias"))

    def _four_bit(self, x: Value, name: str, n_out: int) -> Value:
        tape, numel = self.tape, self.packed[name]

        def dequantize() -> Storage:
            half = tape.new(HALF * numel)  # noqa: F841  float16, until it is bfloat16
            return tape.new(HALF * numel)

        weight, n = dequantize(), x.numel * n_out // numel * n_out
        out = Value(tape.new(HALF * n), n, HALF)
        del weight

        def backward(edges, gradient):
            weight = dequantize()  # noqa: F841  lives until this returns
            return tape.fresh(edges)

        return tape.record("linear, 4 bits", [x], out, [x.storage], backward)

    def _adapter(self, x: Value, at: str) -> Value:
        """dropout, A, the grouped convolution B, zeros for k, the scaling."""
        tape, C = self.tape, self.s.n_embd
        mask = tape.constant(x.numel, 1)
        dropped = tape.record("dropout", [x], Value(tape.new(x.nbytes), x.numel, HALF), [mask.storage])
        inner = ops.linear(tape, dropped, self.weights[at + "A"], ADAPTED * RANK)
        del dropped, mask
        b = self.weights[at + "B"]
        update = tape.record("conv1d", [inner, b], (self.rows * ADAPTED * C, HALF), [inner.storage, b.storage])
        index = tape.constant(ADAPTED * C, INT64)
        saves = [index.storage, update.storage]
        padded = tape.record("index_copy", [update], (3 * self.rows * C, HALF), saves)
        return ops.scale(tape, padded)

    def _attention(self, x: Value, at: str, cos: Value, sin: Value) -> Value:
        tape, C = self.tape, self.s.n_embd
        base = self._linear(x, at + "qkv", 3 * C)
        qkv = ops.add(tape, base, self._adapter(x, at))
        del base
        q, k, v = ops.split(tape, qkv, 3)
        del qkv
        q, k = (self._rotated(part, cos, sin) for part in (q, k))
        y = ops.attention(tape, q, k, v, self.rows * self.s.n_head)
        return self._linear(y, at + "o", C)

    def _rotated(self, x: Value, cos: Value, sin: Value) -> Value:
        """The rotated share and the rest, put side by side in a new tensor."""
        tape, n = self.tape, int(x.numel * self.s.rotary)
        part = tape.record("slice", [x], Value(x.storage, n, HALF))
        roped = ops.rotate(tape, part, cos, sin)
        return tape.record("concatenate", [roped, x], (x.numel, HALF))

    def _mlp(self, x: Value, at: str) -> Value:
        tape, inner, C = self.tape, self.s.n_inner, self.s.n_embd
        if not self.s.llama:
            return self._linear(ops.gelu(tape, self._linear(x, at + "up", inner)), at + "down", C)
        gate, up = self._linear(x, at + "gate", inner), self._linear(x, at + "up", inner)
        x = ops.multiply(tape, ops.silu(tape, gate), up)
        return self._linear(x, at + "down", C)


def predict(model: str, batch: int, seq_len: int, bits: str, card: str | None = "A100 40GB") -> StepMemory:
    """One step of ``model``, a name of SHAPES, with its base in ``bits``: "bf16", "nf4" or "nf4-dq". Bytes."""
    tape = Tape(cuda=card is not None)
    workspaces = [tape.new(GPUS[card].workspace) for _ in range(2)] if card else []
    lit = LitGPT(tape, SHAPES[model], batch, seq_len, bits)
    state = []
    for numel in lit.trained:
        paged = bits != "bf16"  # float32 moments, outside the allocator when large enough to be paged
        if not (paged and numel >= PAGED_FROM):
            state += [Storage(tape, numel * (4 if paged else HALF), OPTIMIZER) for _ in range(2)]
    tokens, targets = (tape.constant(batch * seq_len, INT64) for _ in range(2))
    logits: list[Value] = []
    tape.phase = "forward"
    loss = lit.loss(tokens, targets, logits)
    tape.phase = "backward"
    tape.backward(loss)
    tape.phase = "step"
    roots = [tape.new(HALF * numel) for numel in lit.trained if bits == "bf16"]  # foreach AdamW
    result = tape.result()
    del workspaces, roots, state, logits
    return result
