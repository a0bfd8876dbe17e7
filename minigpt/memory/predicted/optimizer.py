"""What an optimizer keeps from step to step, and what its update makes on the way.

    adamw           two moments in the weight's dtype and a float32 step count per tensor; regimes with a float32 update
                    have minigpt.optim's own: float32 moments, a master copy, a second gradient
    kahan_adamw     two moments and what rounding took away, in the weight's dtype
    adamw8bit       bitsandbytes: two moments, each one byte per element plus one float32 scale per 256, and a table
                    for each; float32 under 4,096 elements. "paged" is the same bytes: on a CPU nothing is paged
    lion            one moment; sgd_momentum: one; sgd: none
    adafactor       transformers', which has a file of its own
    galore          minigpt.optim's, which has one, too

Left out: where a GPU's driver keeps what is paged.
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, ITEMSIZE, OPTIMIZER, Storage, Tape, Value
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted import adafactor, galore

STEP_COUNT = 4  # bytes: torch's AdamW keeps the step as a float32 for each tensor: on the CPU, unless it is fused
LEAST_8BIT, BLOCK_8BIT, TABLE_8BIT = 4096, 256, 1024  # elements; elements; bytes


class Optimizer:
    """The plan's optimizer over the trained values: ``state`` makes what it keeps, ``update`` does one step."""

    def __init__(self, tape: Tape, layers: Layers, plan: TrainingPlan) -> None:
        self.tape, self.layers, self.plan = tape, layers, plan
        self.kept: dict[Value, list[Storage]] = {}
        self.tables: dict[Value | None, list[Storage]] = {}  # by the tensor, where each has an optimizer of its own
        self.projected = self._projected() if plan.optimizer == "galore" else {}
        if "8bit" in plan.optimizer and not tape.cuda:  # the tables are made with the optimizer, on the CPU
            for value in layers.trained:
                self._tables(value)

    def state(self, values: list[Value]) -> None:
        """Make what is kept for ``values``, unless it is there."""
        for value in values:
            if value not in self.kept:
                self.tape.doing = f"{self.plan.optimizer} state"
                self.kept[value] = self._state_of(value)

    def update(self, values: list[Value]) -> None:
        """One step of ``values``; state that is not there yet is born in it."""
        self.tape.doing = self.plan.optimizer
        kind, loop = self.plan.optimizer, self.plan.optimizer_loop
        if kind == "adamw" and not self.plan.regime.float32_update:
            self.state(values)  # of all tensors first
            if loop == "foreach":
                self._roots_at_once(values)
            elif loop == "single":
                self._roots_one_by_one(values)
        elif kind == "adafactor":
            adafactor.update(self.tape, values, self.kept, self.plan.step == "resumed")
        elif kind == "galore":
            for value in sorted(values, key=lambda value: value not in self.projected):  # a group, then the other
                rank = self.projected.get(value, 0)
                galore.update(self.tape, value, rank, self.kept, self.plan.step in ("first", "refresh"))
        else:
            for value in values:  # each tensor's state, then its update
                self.state([value])
                self._one(value)

    # ------------------------------------------------------------ state

    def _state_of(self, value: Value) -> list[Storage]:
        kind = self.plan.optimizer.removeprefix("paged_")
        if "8bit" in kind:
            return self._eight_bit(value)
        if kind == "adafactor":
            return adafactor.state(self.tape, value, self.plan.step == "resumed")
        if kind == "galore":
            return galore.state(self.tape, value, self.projected.get(value, 0))
        own = ITEMSIZE[value.dtype] * value.numel
        if kind == "adamw" and self.plan.optimizer == "adamw":
            return self._adamw(value)
        single = 4 * value.numel  # bitsandbytes' state in 32 bits
        sizes = {"adamw": [single] * 2, "lion": [single], "sgd": [], "sgd_momentum": [own], "kahan_adamw": [own] * 3}
        return self._made(sizes[kind])

    def _made(self, sizes: list[int]) -> list[Storage]:
        return [Storage(self.tape, nbytes, OPTIMIZER) for nbytes in sizes]

    def _adamw(self, value: Value) -> list[Storage]:
        regime, numel = self.plan.regime, value.numel
        kept = self._made([self._moment(value)] * 2)
        if not regime.float32_update:
            on_gpu = self.tape.cuda and self.plan.optimizer_loop != "fused"
            return kept if on_gpu else kept + self._made([STEP_COUNT])
        kept += self._made([numel * regime.master] if regime.master else [])
        if regime.gradients > 4:
            kept.append(Storage(self.tape, numel * 4, GRADIENTS))
        return kept

    def _moment(self, value: Value) -> int:
        """Bytes of one moment: in the weight's precision, unless the update is made in float32."""
        return value.numel * (4 if self.plan.regime.float32_update else ITEMSIZE[value.dtype])

    def _eight_bit(self, value: Value) -> list[Storage]:
        self._tables(value)
        if value.numel < LEAST_8BIT:
            return self._made([4 * value.numel] * self._moments)
        return self._made([value.numel, 4 * -(-value.numel // BLOCK_8BIT)] * self._moments)

    def _tables(self, value: Value) -> None:
        """What the codes of ``value`` are read with: one for each moment, shared by all that an optimizer updates."""
        owner = value if self.plan.optimizer_in_backward else None
        if value.numel >= LEAST_8BIT and owner not in self.tables:
            self.tables[owner] = self._made([TABLE_8BIT] * self._moments)

    def _projected(self) -> dict[Value, int]:
        """GaLore's rank of each matrix that is projected."""
        architecture, names = self.layers.architecture, self.plan.projected_names(self.layers.architecture)
        tensors = [tensor for tensor in architecture.tensors() if tensor.name.startswith("blocks.")]
        if any(tensor.kind == "experts" for tensor in tensors):
            raise ValueError("optimizer is 'galore', which projects matrices; a mixture's experts are not covered")
        chosen = [tensor.name for tensor in tensors if tensor.kind == "linear" and tensor.name.split(".")[-1] in names]
        return {self.layers[name]: self.plan.rank for name in chosen}

    @property
    def _moments(self) -> int:
        """How many moments an 8-bit optimizer has: Lion one, AdamW two."""
        return 1 if "lion" in self.plan.optimizer else 2

    # ------------------------------------------------------------ the update

    def _roots_at_once(self, values: list[Value]) -> None:
        """foreach: the square roots of all tensors' v at once."""
        roots = [Storage(self.tape, self._moment(value)) for value in values]
        del roots

    def _roots_one_by_one(self, values: list[Value]) -> None:
        """A loop: the root, then the root scaled; the last tensor's is bound until the next one's is there."""
        bound = None
        for value in values:
            root = Storage(self.tape, self._moment(value))
            scaled = Storage(self.tape, self._moment(value))
            del root
            bound = scaled
            del scaled
        del bound

    def _one(self, value: Value) -> None:
        """One tensor's update, whose temporaries die with it."""
        kind, regime = self.plan.optimizer, self.plan.regime
        if kind == "kahan_adamw":
            Storage(self.tape, self._moment(value))  # the root, scaled in place
        elif kind == "adamw":  # minigpt.optim.MasterAdamW: what needs a cast, the root, the root scaled
            casts = (regime.gradients == 2) + (not regime.master)
            made = [Storage(self.tape, self._moment(value)) for _ in range(2 + casts)]
            del made


def hook(optimizer: Optimizer) -> Callable:
    """What runs when a leaf has its gradient, with ``optimizer_in_backward``: the update, and the gradient dies."""
    owners = {value.source: value for value in optimizer.layers.trained}

    def run(leaf) -> None:
        if leaf in owners:
            doing = optimizer.tape.doing
            optimizer.update([owners[leaf]])
            leaf.gradient = None
            optimizer.tape.doing = doing

    return run
