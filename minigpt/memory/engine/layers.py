"""The weights of a model under a plan, and a linear layer under each method.

    full    y = x W^T                            saves x and W (a parameter, so no bytes)
    lora    y = x W^T + s (x32 A^T) B^T          saves x32 and x32 A^T; x itself no more, since W is frozen
    qlora   the same, W stored in 4 bits         W is made 16-bit again for each product, and thrown away

The adapters' own operations are in ``adapters``; what autocast casts is in ``ops``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from minigpt.memory.engine import adapters, ops, views
from minigpt.memory.engine.alone import Alone
from minigpt.memory.engine.tape import WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.plan import TrainingPlan

if TYPE_CHECKING:
    from minigpt.memory.families import Architecture

BLOCK, NESTED_BLOCK = 64, 256  # weights that share a scale; scales that share a scale
GROUP = 128  # inputs that share a scale in GPTQ and AWQ: transformers' group_size
OWN_TABLES = (16 + 512) * 4  # bytes: the tables that minigpt.nf4 makes to decode with
OWN_CHUNK = 2**17 // BLOCK * BLOCK  # weights that it decodes at a time on a CPU
TABLE, NESTED_TABLE = 16 * 4, 256 * 4  # bytes: bitsandbytes keeps a copy of both tables with every tensor


def quantized_bytes(numel: int, double: bool, tables: bool = True) -> list[int]:
    """The storages of one 4-bit tensor: packed weights, scales, tables.

    4.5 bits per weight; 4.127 with double quantization.
    """
    blocks = -(-numel // BLOCK)
    if not double:
        return [(numel + 1) // 2, 4 * blocks] + [TABLE] * tables
    return [(numel + 1) // 2, blocks, 4 * -(-blocks // NESTED_BLOCK), 4] + [TABLE, NESTED_TABLE] * tables


def grouped_bytes(n_out: int, n_in: int, kind: str) -> list[int]:
    """The storages of a matrix in GPTQ's or AWQ's 4 bits: packed weights, then zeros and scales of each group of a row.

    4.16 bits per weight. GPTQ also says for each input which group it is in (``g_idx``).
    Source: gptqmodel 7.7, nn_modules/qlinear/__init__.py; AutoAWQ 0.2.9, modules/linear/gemm.py.
    """
    groups = -(-n_in // GROUP)
    sizes = [n_out * n_in // 2, groups * n_out // 2, 2 * groups * n_out]
    return sizes + [4 * n_in] * (kind == "gptq")


Loaded = dict[str, list[Storage]]  # by a tensor's name: what loading has made for it


class Tensor(NamedTuple):
    """A weight by its name, with its shape (n_out, n_in)."""

    name: str
    shape: tuple[int, int]


class Layers:
    """The weights, as Values by name, and ``layers(x, name)``, the linear layer called ``name`` on x.

    ``trained``: the Values that take a gradient, in the optimizer's order. What was ``loaded`` is there already.
    ``updates_on``: the tape of what the optimizer reads and writes, where that is not on this one.
    """

    updates_on: Tape | None = None

    def __init__(
        self, tape: Tape, architecture: Architecture, plan: TrainingPlan, loaded: Loaded | None = None
    ) -> None:
        self.tape, self.plan, self.architecture = tape, plan, architecture
        self.loaded = loaded or {}
        self.ranks = Alone()
        self.weights: dict[str, Value] = {}
        self.quantized: dict[str, tuple[int, int]] = {}  # shape (n_out, n_in), by name
        self.trained: list[Value] = []
        self.storages: list[Storage] = []
        self.products: dict[str, Callable[..., Value]] = {}  # of the layers that are no nn.Linear
        self.outputs: list[Value] = []  # what the model returns besides the loss
        self.wrapped = plan.float32_outputs and plan.autocast_dtype is not None  # by accelerate
        self.logits: Value | None = None  # which it will copy
        self.positions: Value | None = None  # of packed sequences, given with the tokens
        self.beside: Value | None = None  # what the last block returned beside its output, if the model's loop binds it
        self.embedded: Value | None = None  # embeddings that take a gradient only for a checkpoint's sake
        self.own = architecture.family == "minigpt"  # this course's layers, not peft's and bitsandbytes'
        regime = plan.regime
        self.base_dtype = regime.half if regime.weights == 2 else "float32"
        self.half = regime.autocast or regime.half  # what 4-bit weights are computed in: bnb_4bit_compute_dtype
        self.adapter_dtype = "float32" if plan.adapter_dtype == "fp32" else self.base_dtype
        self.adapted = adapters.adapted(self)
        self.eight_bit = plan.method == "qlora" and plan.quantization == "int8"
        self.frozen = plan.method != "full"
        saved = plan.saved_modules if self.frozen else ()
        targets = plan.target_names(architecture) - set(saved)  # peft adapts nothing that is trained whole
        for tensor in architecture.tensors():
            self._add_base(tensor)
            if architecture.tied and tensor.name == "head.bias":  # phi's, which comes after the head
                self._tie_head("head" in saved, "head" in targets)
            if tensor.name.removesuffix(".bias") in saved:
                self._save_whole(tensor.name)
            if rank := architecture.adapter_rank(tensor, plan, targets):
                self._add_adapter(tensor, rank)
        for name, shape in architecture.constants().items():
            self.add(name, shape, self.base_dtype, trained=False)
            if "embedding" in saved and not name.startswith("blocks."):  # its own: the trained copy has them too
                self.add(name + ".copy", shape, self.base_dtype, trained=False)
        if architecture.tied and "head" not in self.weights:
            self._tie_head("head" in saved, "head" in targets)

    def _add_base(self, tensor) -> None:
        plan = self.plan
        if plan.method == "qlora" and tensor.kind in ("linear", "gate"):
            if plan.quantization in ("gptq", "awq"):
                n_out, n_in = tensor.shape
                sizes = grouped_bytes(n_out, n_in, plan.quantization)
            elif self.eight_bit:  # a byte per weight, and a float32 scale per row
                sizes = [tensor.numel, 4 * tensor.shape[0]]
            else:  # this course's NF4Linear shares its tables
                sizes = quantized_bytes(tensor.numel, plan.double_quantization, tables=not self.own)
            self._add_packed(tensor, sizes)
            self.quantized[tensor.name] = tensor.shape
            return
        prepared = plan.method == "qlora" and plan.kbit_preparation and plan.quantization != "gptq"  # which peft leaves
        dtype = "float32" if prepared else self.base_dtype
        if tensor.name.removesuffix(".bias") in self.quantized and not self.eight_bit:
            dtype = self.half  # Linear4bit casts its bias to what it computes in, and keeps that
        product = self.architecture.product if tensor.kind == "linear" else ops.linear
        if product is not ops.linear:
            self.products[tensor.name] = product
        turned = product is ops.conv1d
        self.add(tensor.name, tensor.shape[::-1] if turned else tensor.shape, dtype, trained=not self.frozen)

    def _save_whole(self, name: str) -> None:
        """peft's modules_to_save: a trained copy takes the place of the frozen module, which stays.

        On a quantized base trl casts all that is trained, this too, when it casts adapters.
        """
        frozen = self.weights[name]
        self.weights[name + ".frozen"] = frozen
        dtype = self.adapter_dtype if self.plan.adapter_dtype == "same" else frozen.dtype
        self.add(name, frozen.shape, dtype, trained=True)

    def _tie_head(self, saved: bool, adapted: bool) -> None:
        """A tied head is the embedding's own weight, frozen where peft trains a copy of either."""
        table = self.weights.get("embedding.frozen", self.weights["embedding"])
        self.weights["head"] = table
        if saved:
            self._save_whole("head")
        if adapted:
            V, C = table.shape
            self._add_adapter(Tensor("head", (V, C)), self.plan.rank)

    def _add_adapter(self, tensor, rank: int) -> None:
        plan, dtype = self.plan, self.adapter_dtype
        *experts, n_out, n_in = tensor.shape
        rank *= prod(experts)  # all experts' adapters lie in one pair of matrices
        self.add(tensor.name + ".A", (rank, n_in), dtype, trained=True)
        self.add(tensor.name + ".B", (n_out, rank), dtype, trained=True)
        if plan.variant == "dora":
            # trl leaves the lengths on a quantized base in float32.
            length = "float32" if plan.method == "qlora" and not self.own else dtype
            self.add(tensor.name + ".magnitude", (n_out,), length, trained=True)

    def _add_packed(self, tensor, sizes: list[int]) -> None:
        """The codes of a quantized matrix, then its scales and tables."""
        self.tape.doing = tensor.name
        if tensor.name in self.loaded:
            self.storages += self.loaded.pop(tensor.name)
            return
        dtype = "int8" if self.eight_bit else "nf4"
        self.storages.append(Storage(self.tape, sizes[0], WEIGHTS, tensor.shape, dtype))
        self.tape.doing = tensor.name + " scales"
        self.storages += [Storage(self.tape, nbytes, WEIGHTS, (nbytes,), "uint8") for nbytes in sizes[1:]]

    def add(self, name: str, shape: tuple[int, ...], dtype: str, trained: bool) -> Value:
        self.tape.doing = name
        if name in self.loaded:
            value = Value(self.loaded.pop(name)[0], shape, dtype)
        else:
            value = self.tape.new(shape, dtype, bucket=WEIGHTS)
        if trained:
            value.source = Leaf()
            if self.plan.precision == "bf16-master-grad32":
                value.gradient_dtype = "float32"
            self.trained.append(value)
        self.weights[name] = value
        return value

    def scales(self, rank: int) -> bool:
        """Whether an adapter's factor s is another number than 1: alpha is peft's default, 8."""
        if self.plan.variant != "rslora":
            return self.plan.rank != 8
        return (8 * rank // self.plan.rank) ** 2 != rank  # experts' gate and up have twice the rank, and twice alpha

    def frozen_bytes(self) -> int:
        """Bytes of weights that take no gradient."""
        values = {value.storage: value.nbytes for value in self.weights.values() if value.source is None}
        return sum(values.values()) + sum(storage.record.nbytes for storage in self.storages)

    def __getitem__(self, name: str) -> Value:
        return self.weights[name]

    def get(self, name: str) -> Value | None:
        return self.weights.get(name)

    def __call__(self, x: Value, name: str) -> Value:
        """The layer called ``name``, on x: (..., n_in) to (..., n_out)."""
        base = self.plain
        if name in self.quantized:
            base = self._eight_bit if self.eight_bit else self._four_bit
        if name + ".A" not in self.weights:
            return base(x, name)
        return self.adapted(self, x, base(x, name), name)  # no name here keeps the base's result alive

    def plain(self, x: Value, name: str) -> Value:
        bias, weight = self.weights.get(name + ".bias"), self.weights[name]
        if x.dtype != weight.dtype and self.tape.autocast is None:
            text = f"torch multiplies no {x.dtype} with a {weight.dtype} {name}: allowed here: fp32, or autocast"
            raise ValueError(f"adapter_dtype is {self.plan.adapter_dtype!r}; {text}")
        product = self.products.get(name, ops.linear)
        return product(x, weight, bias)

    # ------------------------------------------------------------ 4 bits

    def base_weight(self, name: str) -> Value:
        """The frozen weight (n_out, n_in): the parameter, or a copy in the precision it had before its 4 bits."""
        if name in self.quantized:
            return self.dequantized(name, self.base_dtype)
        turned = self.products.get(name) is ops.conv1d
        return views.transposed(self.weights[name], 0, 1) if turned else self.weights[name]

    def dequantized(self, name: str, dtype: str) -> Value:
        """A 4-bit weight made whole. bitsandbytes gives it the precision it had, and casts that where need be."""
        tape, shape = self.tape, self.quantized[name]
        tape.doing = "dequantize"
        numel = prod(shape)
        tape.work.decoded += numel
        scales = tape.new((-(-numel // BLOCK),), "float32") if self.plan.double_quantization else None
        if self.own:
            weight, whole = tape.new(shape, dtype), numel // BLOCK * BLOCK
            pairs = max(min(whole, OWN_CHUNK), numel - whole + 1) // 2  # a short last block is a chunk of its own
            sizes = (OWN_TABLES, 4 * pairs, 8 * pairs)  # the tables, then indices and float32 weights of a chunk
            scratch = [tape.new((nbytes,), "uint8") for nbytes in sizes]  # noqa: F841  lives until this returns
            return weight
        weight = tape.new(shape, self.base_dtype)
        del scales
        return ops.cast(weight, dtype)

    def _four_bit(self, x: Value, name: str) -> Value:
        """Linear4bit, or this course's: 16-bit inside, x's precision outside; its backward makes W 16-bit again."""
        tape, half, n_out = self.tape, self.half, self.quantized[name][0]
        inside = ops.cast(x, half)
        n_in, rows = x.shape[-1], prod(x.shape[:-1])
        weight = self.dequantized(name, half) if self.own else None
        whole = not self.own and not tape.remembers and tape.kernels.decodes(half, rows, n_out, n_in)
        decoded = self._decoded(name, half) if whole else []
        shape = inside.shape

        def backward(g):
            weight = self.dequantized(name, half)  # noqa: F841  lives until this returns
            tape.work.gradients(rows, n_in, n_out)
            made = tape.new((rows, n_in), half)
            tape.kernels.product(tape)
            return [views.reshaped(made, shape)]

        tape.doing = "linear, 4 bits"
        out = tape.made("linear", ((*shape[:-1], n_out), half, None))
        del weight, decoded
        out = tape.record("linear, 4 bits", (inside,), out, (), backward)
        if (whole or self.own) and not tape.remembers:
            tape.kernels.product(tape, biased=name + ".bias" in self.weights)
        tape.multiplied(rows, n_in, n_out)
        if self.own:
            del inside
        return ops.cast(out, x.dtype)

    def _decoded(self, name: str, dtype: str) -> list[Value]:
        """What bitsandbytes' product on CUDA makes of a 4-bit weight: itself, after its scales and their sum with the
        offset."""
        tape, shape = self.tape, self.quantized[name]
        tape.doing, numel = "dequantize", prod(shape)
        tape.work.decoded += numel
        scales = [tape.new((-(-numel // BLOCK),), "float32") for _ in range(2 * self.plan.double_quantization)]
        return [*scales, tape.new(shape, dtype)]

    # ------------------------------------------------------------ 8 bits

    def _eight_bit(self, x: Value, name: str) -> Value:
        """bitsandbytes' Linear8bitLt as it trains on a CPU: W made whole in x's precision, forward and backward.

        It keeps x as an attribute, not as a saved tensor, so that x lives, booked as temporary, as long as its node:
        until the loss dies, checkpointed or not, and in a second run until that ends. Its bias it casts to x's
        precision, for good.
        """
        tape, dtype, shape = self.tape, x.dtype, x.shape
        n_out, n_in = self.quantized[name]
        bias = self.weights.get(name + ".bias")
        if bias is not None and bias.dtype != dtype:  # an earlier step has cast it
            bias.dtype = dtype
            bias.storage.was(bias.nbytes, dtype)

        def whole() -> Value:
            tape.doing = "dequantize"
            tape.work.decoded += n_out * n_in
            weight = tape.new((n_out, n_in), dtype)
            tape.new((n_out, 1), "float32")  # the scales over 127
            return weight

        weight = whole()
        out = ops.linear(ops.lowered_unrecorded(x), weight, bias)
        del weight

        def backward(g, held=x):
            flat = views.contiguous(views.reshaped(g, (prod(shape[:-1]), n_out)))
            weight = whole()  # noqa: F841  lives until this returns
            flat = ops.cast(flat, dtype)
            tape.work.gradients(flat.shape[0], n_in, n_out)
            return [views.reshaped(tape.new((prod(shape[:-1]), n_in), dtype), shape)]

        if x.source is not None and not tape.running_again:
            tape.contexts.append(x)
        return tape.record("linear, 8 bits", (x,), out, (), backward)
