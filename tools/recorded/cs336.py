"""The programmes of the recordings that run BasicsTransformerLM, each as its author's script runs it."""

from __future__ import annotations

from collections.abc import Callable

from minigpt.memory import TrainingPlan
from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import OPTIMIZER, Storage, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.families.cs336 import cross_entropy
from minigpt.memory.predicted.cuda import CudaKernels
from minigpt.memory.predicted.optimizer import Optimizer

WARM_UPS = 2  # of a script's five: from the second on they are alike


class Programme:
    """A model on a card, and its batch. ``began``: the event with which recording began."""

    def __init__(self, config: dict, batch: int, seq_len: int, autocast: bool, card: CudaKernels) -> None:
        precision = "bf16-autocast" if autocast else "fp32"
        plan = TrainingPlan(batch=batch, seq_len=seq_len, attention="eager", precision=precision, step="first")
        self.plan, self.architecture = plan, Architecture.of(config)
        self.tape = Tape(cuda=True)
        self.tape.kernels = card
        self.layers = Layers(self.tape, self.architecture, plan)
        self.tokens, self.targets = (self.tape.new((batch, seq_len), "int64") for _ in range(2))
        self.began = 0

    def record(self) -> None:
        self.began = len(self.tape.events)

    def run(self, step: Callable[[], None], warm_ups: int = WARM_UPS) -> None:
        for _ in range(warm_ups):
            step()
        self.record()
        step()

    # ------------------------------------------------------------ what a script does

    def forward(self, gradients: bool) -> Value:
        tape = self.tape
        tape.phase, tape.records_nothing, tape.autocast = "forward", not gradients, self.plan.autocast_dtype
        return self.architecture.logits(self.layers, self.tokens)

    def leave_autocast(self) -> None:
        self.tape.casts.clear()
        self.tape.autocast = None

    def flat_loss(self, logits: Value, upcast: bool = False) -> Value:
        """F.cross_entropy(logits.view(-1, V), targets.view(-1)); ``upcast``: of float32 logits."""
        logits = ops.cast(logits, "float32") if upcast else logits
        return ops.cross_entropy(views.view(logits, -1, logits.shape[-1]), views.view(self.targets, -1))

    def own_loss(self, logits: Value) -> Value:
        return cross_entropy(logits, self.targets)

    def backward(self, loss: Value) -> None:
        self.tape.phase = "backward"
        self.tape.backward(loss)

    def zero_grad(self) -> None:
        for value in self.layers.trained:
            value.source.gradient = None


class OwnAdamW:
    """The course's AdamW: a tensor after the other, both moments made anew."""

    def __init__(self, programme: Programme) -> None:
        self.tape, self.values = programme.tape, programme.layers.trained
        self.state: dict[Value, tuple[Storage, Storage]] = {}

    def step(self) -> None:
        self.tape.phase = "step"
        m = v = None
        for value in self.values:
            nbytes = value.nbytes

            def new(nbytes=nbytes) -> Storage:
                return Storage(self.tape, nbytes)

            decayed = new()
            del decayed
            zeros = new()
            m, zeros = self.state.get(value, (zeros, zeros))[0], None
            zeros = new()
            v, zeros = self.state.get(value, (zeros, zeros))[1], None
            a, b = new(), new()
            next_m = Storage(self.tape, nbytes, OPTIMIZER)
            del a, b
            a, b = new(), new()
            b, square = new(), b
            del square
            next_v = Storage(self.tape, nbytes, OPTIMIZER)
            del a, b
            step, root = new(), new()
            divisor = new()
            del root
            update = new()
            del step, divisor, update
            self.state[value] = next_m, next_v
            del next_m, next_v
        del m, v


# ------------------------------------------------------------ the scripts


def forward_only(programme: Programme, gradients: bool = False) -> None:
    def step() -> None:
        logits = programme.forward(gradients)
        programme.leave_autocast()
        del logits

    programme.run(step)


def forward_and_loss(programme: Programme, gradients: bool = False) -> None:
    """Hyperion-shuo's: the names of the last run live into the next."""
    kept: dict[str, Value] = {}

    def step() -> None:
        kept["logits"] = programme.forward(gradients)
        kept["loss"] = programme.flat_loss(kept["logits"])
        programme.leave_autocast()

    programme.run(step)


def full_step(programme: Programme) -> None:
    """LINYUNLinYun's: torch's AdamW. Its logits are cast for the loss, by the recording; the script is not stored."""
    optimizer = Optimizer(programme.tape, programme.layers, programme.plan)

    def step() -> None:
        programme.zero_grad()
        logits = programme.forward(True)
        loss = programme.flat_loss(logits, upcast=True)
        programme.leave_autocast()
        programme.backward(loss)
        programme.tape.phase = "step"
        optimizer.update(programme.layers.trained)
        del logits, loss

    programme.run(step)


def own_step(programme: Programme) -> None:
    """Wedsonlin's: the course's loss and AdamW."""
    optimizer = OwnAdamW(programme)

    def step() -> None:
        logits = programme.forward(True)
        loss = programme.own_loss(logits)
        programme.leave_autocast()
        programme.backward(loss)
        optimizer.step()
        programme.zero_grad()
        del logits, loss

    programme.run(step)
