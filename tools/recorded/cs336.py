"""The programmes of the recordings that run BasicsTransformerLM, each as its author's script runs it."""

from __future__ import annotations

from minigpt.memory import TrainingPlan
from minigpt.memory.engine import ops, views
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import OPTIMIZER, Storage, Value
from minigpt.memory.families.cs336 import CS336, cross_entropy
from minigpt.memory.predicted.optimizer import Optimizer
from tools.recorded.programme import Programme


class Course(Programme):
    """BasicsTransformerLM on a card, its tokens and its targets."""

    def __init__(self, config: dict, batch: int, seq_len: int, autocast: bool, kernels: Kernels) -> None:
        super().__init__(kernels)
        precision = "bf16-autocast" if autocast else "fp32"
        self.plan = TrainingPlan(batch=batch, seq_len=seq_len, attention="eager", precision=precision, step="first")
        self.architecture = CS336.read(config)
        self.layers = Layers(self.tape, self.architecture, self.plan)
        self.tokens = self.tape.new((batch, seq_len), "int64")
        self.targets = self.tape.new((batch, seq_len), "int64")

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

    def __init__(self, run: Course) -> None:
        self.tape, self.values = run.tape, run.layers.trained
        self.state: dict[Value, tuple[Storage, Storage]] = {}

    def kept(self, value: Value, place: int, zeros: list[Storage]) -> Storage:
        """``state.get(name, zeros_like(grad))``: the zeros are made whether they are needed or not."""
        return self.state[value][place] if value in self.state else zeros.pop()

    def step(self) -> None:
        self.tape.phase = "step"
        m = v = None
        for value in self.values:
            nbytes = value.nbytes

            def new(nbytes=nbytes) -> Storage:
                return Storage(self.tape, nbytes)

            decayed = new()
            del decayed
            m = self.kept(value, 0, [new()])
            v = self.kept(value, 1, [new()])
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


def hyperion(run: Course, gradients: bool) -> None:
    """basic_lm_memory_profile.py: forward and loss; the names of a run live into the next."""
    kept: dict[str, Value] = {}

    def step() -> None:
        kept["logits"] = run.forward(gradients)
        kept["loss"] = run.flat_loss(kept["logits"])
        run.leave_autocast()

    run.warm(step, emptied=True)


def forward_only(run: Course, gradients: bool) -> None:
    """LINYUNLinYun's, Wedsonlin's and bolongcheng's: logits that nobody keeps."""

    def step() -> None:
        logits = run.forward(gradients)
        run.leave_autocast()
        del logits

    run.warm(step)


def linyun_step(run: Course) -> None:
    """A whole step with torch's AdamW. Its logits are cast for the loss: so recorded, the script is not there."""
    optimizer = Optimizer(run.tape, run.layers, run.plan)

    def step() -> None:
        run.zero_grad()
        logits = run.forward(True)
        loss = run.flat_loss(logits, upcast=True)
        run.leave_autocast()
        run.backward(loss)
        run.tape.phase = "step"
        optimizer.update(run.layers.trained)
        del logits, loss

    run.warm(step)


def wedson_step(run: Course) -> None:
    """A whole step with the course's loss and AdamW; gradients die before the next begins."""
    optimizer = OwnAdamW(run)

    def step() -> None:
        logits = run.forward(True)
        loss = run.own_loss(logits)
        run.leave_autocast()
        run.backward(loss)
        optimizer.step()
        run.zero_grad()
        del logits, loss

    run.warm(step)
