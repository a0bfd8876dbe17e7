"""A linear layer under each method: trained as it is, frozen with an adapter, frozen in 4 bits with one.

    full    y = x W^T                            saves x and W (a parameter, so no bytes)
    lora    y = x W^T + s (x32 A^T) B^T          saves x32 and x32 A^T; x itself no more, since W is frozen
    qlora   the same, W stored in 4 bits         W is made 16-bit again for each product, and thrown away

peft keeps adapters in float32 on a 16-bit base (``autocast_adapter_dtype``), so x32 is a copy of the input
that each adapted layer makes for itself: q, k and v save three copies of one tensor. The order of the casts
is peft 0.21's ``lora.Linear`` and ``lora.bnb.Linear4bit``. rsLoRA is LoRA with another s; DoRA is in ``adapters``.

A 4-bit layer under autocast is followed as it runs on a CPU. On a GPU peft leaves its input as it is, because what it
asks torch is whether CUDA's autocast is on.
"""

from __future__ import annotations

from minigpt.memory.engine import adapters, ops
from minigpt.memory.engine.tape import WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.plan import TrainingPlan

BLOCK, NESTED_BLOCK = 64, 256  # weights that share a scale; scales that share a scale
FOUR_BIT_COMPUTE = 2  # bytes of what 4-bit weights are computed in: bnb_4bit_compute_dtype=torch.bfloat16
OWN_TABLES = (16 + 512) * 4  # bytes: the tables that minigpt.nf4 makes to decode with
OWN_CHUNK = 2**17 // BLOCK * BLOCK  # weights that it decodes at a time on a CPU
TABLE, NESTED_TABLE = 16 * 4, 256 * 4  # bytes: bitsandbytes keeps a copy of both tables with every tensor


def quantized_bytes(numel: int, double: bool, tables: bool = True) -> list[int]:
    """The storages of one 4-bit tensor: packed weights, scales, tables. 4.5 bits a weight, or 4.127 nested."""
    blocks = -(-numel // BLOCK)
    if not double:
        return [(numel + 1) // 2, 4 * blocks] + [TABLE] * tables
    return [(numel + 1) // 2, blocks, 4 * -(-blocks // NESTED_BLOCK), 4] + [TABLE, NESTED_TABLE] * tables


class Linears:
    """The weights of a model under a plan, and ``linear(x, name, n_out)`` on them.

    ``weights``: Values by name. ``trained``: (numel, itemsize) of every tensor that takes a gradient.
    """

    def __init__(self, tape: Tape, architecture: Architecture, plan: TrainingPlan) -> None:
        self.tape, self.plan = tape, plan
        regime = plan.regime
        self.compute = 2 if regime.autocast else regime.weights  # bytes of a matrix product's element
        self.weights: dict[str, Value] = {}
        self.quantized: dict[str, int] = {}  # numel, by name
        self.trained: list[tuple[int, int]] = []
        self.cached_casts: dict[str, Value] = {}
        self.storages: list[Storage] = []
        frozen = plan.method != "full"
        self.gpt2 = architecture.family == "gpt2"
        self.own = architecture.family == "minigpt"  # this course's layers, not peft's and bitsandbytes'
        dora_layer = adapters.own_layer if self.own else adapters.peft_layer
        self.adapted = dora_layer if plan.variant == "dora" else Linears._lora
        targets = plan.target_names(architecture)
        for tensor in architecture.tensors():
            if plan.method == "qlora" and tensor.kind == "linear":
                tables = not self.own  # this course's NF4Linear shares them
                sizes = quantized_bytes(tensor.numel, plan.double_quantization, tables)
                self.storages += [Storage(tape, nbytes, WEIGHTS) for nbytes in sizes]
                self.quantized[tensor.name] = tensor.numel
            else:
                itemsize = 4 if plan.method == "qlora" and plan.kbit_preparation else regime.weights
                if tensor.name.removesuffix(".bias") in self.quantized:
                    itemsize = FOUR_BIT_COMPUTE  # Linear4bit casts its bias to what it computes in, and keeps that
                self._add(tensor.name, tensor.numel, itemsize, trained=not frozen)
            if frozen and tensor.name.rsplit(".", 1)[-1] in targets and tensor.kind == "linear":
                n_out, n_in = tensor.shape
                itemsize = plan.adapter_itemsize
                self._add(tensor.name + ".A", plan.rank * n_in, itemsize, trained=True)
                self._add(tensor.name + ".B", plan.rank * n_out, itemsize, trained=True)
                if plan.variant == "dora":
                    self._add(tensor.name + ".magnitude", n_out, itemsize, trained=True)

    def _add(self, name: str, numel: int, itemsize: int, trained: bool) -> None:
        gradient = 0
        if trained:
            # What .grad takes: the optimizer makes the float32 copy of "16+32" itself.
            gradient = itemsize if self.plan.method != "full" else self.plan.regime.gradients
            gradient -= 4 * (gradient > 4)
            self.trained.append((numel, itemsize))
        storage = Storage(self.tape, numel * itemsize, WEIGHTS)
        self.weights[name] = Value(storage, numel, itemsize, Leaf(numel * gradient) if gradient else None)

    def frozen_bytes(self) -> int:
        """Bytes of weights that take no gradient."""
        values = [value.nbytes for value in self.weights.values() if value.source is None]
        return sum(values) + sum(storage.nbytes for storage in self.storages)

    def __call__(self, x: Value, name: str, n_out: int) -> Value:
        """The layer called ``name``, on x: (rows, n_in) to (rows, n_out)."""
        base = self._four_bit if name in self.quantized else self._plain
        if name + ".A" not in self.weights:
            return base(x, name, n_out)
        return self.adapted(self, x, base(x, name, n_out), name, n_out)  # no name here keeps the base's result alive

    def _plain(self, x: Value, name: str, n_out: int) -> Value:
        """Under autocast, on 16-bit copies of weight and input."""
        weight, bias = self.cast_weight(name), self.weights.get(name + ".bias")
        if bias is not None:
            bias = self.cast_weight(name + ".bias")
        transposed = not (self.gpt2 and bias is not None)  # its Conv1D: every layer but the head
        return ops.linear(self.tape, ops.cast(self.tape, x, self.compute_of(x)), weight, n_out, bias, transposed)

    def compute_of(self, x: Value) -> int:
        """Autocast's precision, or x's own."""
        return self.compute if self.plan.regime.autocast else x.itemsize

    def cast_weight(self, name: str) -> Value:
        weight = self.weights[name]
        if not self.plan.regime.autocast or weight.itemsize == self.compute:
            return weight
        if weight.source is None:  # autocast caches the casts of trained weights only
            return ops.cast(self.tape, weight, self.compute)
        if name not in self.cached_casts:
            self.cached_casts[name] = ops.cast(self.tape, weight, self.compute)
        return self.cached_casts[name]

    def _lora(self, x: Value, result: Value, name: str, n_out: int) -> Value:
        tape, itemsize = self.tape, result.itemsize
        if cloned := name in self.quantized and not self.own:
            result = ops.copy(tape, result, gradient_copied=False)  # peft clones, against in-place surprises
        x = ops.cast(tape, x, self.plan.adapter_itemsize)
        update = ops.scale(tape, self.update(x, name, n_out))
        if cloned:
            update = ops.cast(tape, update, itemsize)
            return ops.add(tape, result, update)
        result = ops.add(tape, result, update)
        del update
        return ops.cast(tape, result, itemsize)

    def update(self, x: Value, name: str, n_out: int) -> Value:
        """(x A^T) B^T, not yet scaled."""
        return self._plain(self._plain(x, name + ".A", self.plan.rank), name + ".B", n_out)

    def base_weight(self, name: str) -> Value:
        """The frozen weight: the parameter, or a copy in the precision it had before its 4 bits."""
        return self._dequantized(name, self.plan.regime.weights) if name in self.quantized else self.weights[name]

    def _dequantized(self, name: str, itemsize: int) -> Value:
        """A 4-bit weight made whole. bitsandbytes gives it the precision it had, and casts that where need be."""
        tape, numel = self.tape, self.quantized[name]
        scales = tape.new(4 * -(-numel // BLOCK)) if self.plan.double_quantization else None
        if self.own:
            weight, chunk = tape.constant(numel, itemsize), min(numel, OWN_CHUNK)
            scratch = [tape.new(n) for n in (OWN_TABLES, 2 * chunk, 4 * chunk)]  # noqa: F841  indices, float32 weights
            return weight
        weight = tape.constant(numel, self.plan.regime.weights)
        del scales
        return ops.cast(tape, weight, itemsize)

    def _four_bit(self, x: Value, name: str, n_out: int) -> Value:
        """Linear4bit, or this course's: 16-bit inside, x's precision outside; its backward makes W 16-bit again."""
        tape, n = self.tape, x.numel * n_out // self.quantized[name] * n_out
        inside = ops.cast(tape, x, FOUR_BIT_COMPUTE)
        # bitsandbytes' CPU kernel needs no whole W; on CUDA it makes one, as the readings of a T4 show.
        weight = self._dequantized(name, FOUR_BIT_COMPUTE) if self.own or tape.cuda else None
        out = Value(tape.new(n * FOUR_BIT_COMPUTE), n, FOUR_BIT_COMPUTE)
        del weight

        def backward(edges, gradient):
            weight = self._dequantized(name, FOUR_BIT_COMPUTE)  # noqa: F841  lives until this returns
            made = tape.fresh(edges)
            if made[0] is not None:
                made[0].viewed = True
            return made

        tape.record("linear, 4 bits", [inside], out, (), backward)
        if self.own:
            del inside
        return ops.cast(tape, out, x.itemsize)
