"""What crosses the bus in a step whose optimizer or parameters live in the host's memory, and how busy the card stays.

Bytes per parameter that a rank holds, in one step of one pass, read in torch 2.13 (``all_gather_inputs``,
``foreach_reduce``), DeepSpeed 0.19.8 (``stage_1_and_2.py``, ``stage3.py``), bitsandbytes 0.50 (``get_state_buffer``):

    recipe                                      forward  backward                             step             sum
    the ZeRO-Offload paper (arXiv 2101.06840)            2 down                               2 up               4
    DeepSpeed, stages 1 and 2, "optimizer"               4 down: float32 before it leaves     2 up               6
    DeepSpeed, stage 3, "optimizer"                      2 down, 2 up again, 4 down           2 up              10
    DeepSpeed, stage 3, "parameters"            2 up     2 up; 2 down, 2 up again, 4 down                       12
    FSDP2, "parameters", bfloat16               2 up     2 up, 2 down                                            6
    FSDP2, "parameters", float32                4 up     4 up, 4 down: cast on the card                         12
    paged AdamW, 32 bits, all evicted                                                         8 up, 8 down      16

"10 bytes per parameter" is right for one of them. A rank of W holds n / W parameters, and each card has a bus of its
own. Accumulation repeats what stands under forward and backward, but for DeepSpeed's float32 gradients.

Time: products at a share ``mfu`` of the card's best speed, transfers at the bus's, both directions at once. A phase
hides what its products take; the step has none, so all of its transfers show, and so does the update by the CPU, which
goes through the host's memory at ``host`` bytes per second:

    exposed = max(0, transfer - compute) of forward and of backward + the step's        utilisation = compute / all

Products are 6 n FLOPs per token: n falls out. With b bytes per parameter, all hidden behind products as far as they
last, a share u is reached at

    tokens of a rank = u x b x mfu x speed / (6 x W x bus)

Left out: a bus or a host's memory that cards share; that a bus reaches about 0.8 of its best; collectives between
cards; parameters that DeepSpeed never parts with (under 100,000 elements); what alignment adds; NVMe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, NamedTuple

from minigpt.memory.collector import at_rest
from minigpt.memory.engine.tape import ITEMSIZE
from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.policies import computes_in
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.sharded.shards import most_rows
from minigpt.memory.predicted.start import start
from minigpt.memory.ranks import OF_RANKS
from minigpt.values import check_shares, is_number

MFU = 0.5  # of the card's best speed; published for FSDP2 on A100: 0.57 and 0.58 (torchtitan, PyTorch's blog)
UPDATE = 4 + 3  # numbers that AdamW reads (weight, gradient, both moments) and writes, per parameter
PAGED_FROM = 100_000  # elements: bitsandbytes keeps a smaller tensor's state on the card
PHASES = ("forward", "backward", "step")
POLICY = {"bf16": "bfloat16", "fp16": "float16"}  # what FSDP2 makes of float32 weights before it gathers them
ALONE: dict[str, Any] = {f.name: f.default for f in fields(TrainingPlan) if f.name in OF_RANKS}  # one rank, all of it


class Crossing(NamedTuple):
    """Bytes that one rank's bus carries in one step: what they are, in which phase, and which way."""

    what: str
    phase: str  # of PHASES
    up: bool  # to the card; otherwise to the host
    nbytes: int


class Shard(NamedTuple):
    """What one rank holds of the model: numbers and bytes, of all weights, of the blocks', and of what is trained."""

    numel: int
    nbytes: int
    blocks: int
    trained: int
    trained_nbytes: int


@dataclass(frozen=True)
class Utilisation:
    """Seconds of one step: the card's products in each phase, and what the bus and the host's update add to them."""

    forward: float
    backward: float
    exposed: float

    @property
    def compute(self) -> float:
        return self.forward + self.backward

    @property
    def share(self) -> float:
        """The part of the step in which the card computes."""
        return self.compute / (self.compute + self.exposed)


def traffic(model, plan: TrainingPlan) -> tuple[Crossing, ...]:
    """What crosses rank 0's bus in a step, in order. None without ``shard_offload``.

    Raises ValueError, naming the field, for a recipe that no library has.
    """
    if plan.shard_offload == "none":
        return ()
    if plan.method == "qlora":
        raise ValueError("method is 'qlora'; what a 4-bit base moves over the bus is not followed: allowed: full, lora")
    shard, times = shard_of(model, plan), plan.accumulation
    if plan.sharding != "fsdp2":
        if plan.regime.weights == 2 and not plan.regime.master:
            text = "DeepSpeed always updates a float32 copy: allowed fp32, bf16-autocast, bf16-master and the like"
            raise ValueError(f"precision is {plan.precision!r} with sharding {plan.sharding!r}; {text}")
        return tuple(_deepspeed(plan, shard, times))
    again = [Crossing("parameters again", "backward", True, times * shard.blocks)]
    return (
        Crossing("parameters", "forward", True, times * shard.nbytes),
        *(again if plan.reshard_after_forward else []),
        Crossing("gradients", "backward", False, times * shard.trained_nbytes),
    )


def _deepspeed(plan: TrainingPlan, shard: Shard, times: int) -> Iterable[Crossing]:
    """Gradients cross as they are accumulated, in the weights' format, and once more, in float32, for the update."""
    if plan.shard_offload == "parameters":
        yield Crossing("parameters", "forward", True, times * shard.nbytes)
        yield Crossing("parameters again", "backward", True, times * shard.nbytes)
    kept = 4 if plan.regime.gradients == 4 else plan.regime.weights
    down, back = (times, times) if plan.sharding == "zero3" else (times, times - 1) if times > 1 else (0, 0)
    if plan.sharding != "zero3" and kept > plan.regime.weights:
        down = back = 0  # summed on the card
    for what, up, count in (("gradients", False, down), ("gradients again", True, back)):
        if count:
            yield Crossing(what, "backward", up, count * kept * shard.trained)
    yield Crossing("gradients in float32", "backward", False, 4 * shard.trained)
    if plan.shard_offload == "optimizer":
        yield Crossing("updated parameters", "step", True, shard.trained_nbytes)


def shard_of(model, plan: TrainingPlan) -> Shard:
    """Rank 0's part: of each tensor as many rows as ``torch.chunk`` gives it, as FSDP2 does; of the rest, n / W."""
    architecture = Architecture.of(model)
    whole = replace(plan, card=None, **ALONE)
    with at_rest():
        began = start(architecture, whole)
        names = {value: name for name, value in reversed(began.layers.weights.items())}  # of a tied head, the first
        weights = {name: (value.shape, ITEMSIZE[value.dtype]) for value, name in names.items()}
        trained = {names[value] for value in began.layers.trained}
    del began.tape.keep  # its own method: a cycle
    parameters = {tensor.name for tensor in architecture.tensors()} | trained

    def size(names: Iterable[str], bytes_too: bool) -> int:
        return sum(_rows(shape, plan) * (itemsize if bytes_too else 1)
                   for name, (shape, itemsize) in weights.items() if name in names)  # fmt: skip

    blocks = {name for name in parameters if name.startswith("blocks.")}
    return Shard(size(parameters, False), size(parameters, True), size(blocks, True), size(trained, False),
                 size(trained, True))  # fmt: skip


def _rows(shape: tuple[int, ...], plan: TrainingPlan) -> int:
    """Numbers of one tensor that rank 0 holds."""
    if plan.sharding == "fsdp2":
        return most_rows(shape, plan.ranks) * prod(shape[1:])
    return -(-prod(shape) // plan.ranks)


def paged(model, plan: TrainingPlan) -> tuple[Crossing, ...]:
    """What a paged optimizer of bitsandbytes moves at most: its state leaves the card and comes back for the update.

    Where the card has room for it, nothing moves. Raises ValueError for an optimizer that is not paged.
    """
    if not plan.optimizer.startswith("paged_"):
        raise ValueError(f"optimizer is {plan.optimizer!r}; allowed: paged_adamw, paged_adamw8bit, paged_lion, ...")
    with at_rest():
        began = start(model, replace(plan, card=None, **ALONE))
        large = [value for value in began.layers.trained if value.numel >= PAGED_FROM]
    del began.tape.keep
    moments, eight_bit = 1 if "lion" in plan.optimizer else 2, "8bit" in plan.optimizer
    state = moments * sum(value.numel * (1 if eight_bit else 4) for value in large)
    return tuple(Crossing("optimizer's state", "step", up, state) for up in (True, False))


def utilisation(
    model, plan: TrainingPlan, mfu: float = MFU, bus: float | None = None, host: float | None = None
) -> Utilisation:
    """How long a step of ``plan`` takes on its card, and how much of it the card computes.

    ``bus``: bytes per second one way, by default the card's best. ``host``: bytes per second of the host's memory, for
    the update by the CPU; None leaves that out. Raises ValueError for a plan without a card.
    """
    return _timed(model, plan, mfu, bus, host)(_work(model, plan, plan.batch))


def least_batch(
    model, plan: TrainingPlan, share: float, mfu: float = MFU, bus: float | None = None, host: float | None = None
) -> int:
    """The smallest batch, at the plan's length, with which the card computes for at least ``share`` of the step.

    FLOPs are counted once: they grow with the batch. Raises ValueError for a share that is not under 1, or not reached.
    """
    check_shares(share=share)
    if share == 1:
        raise ValueError("share is 1; a step with transfers never reaches it: it must be less than 1")
    timed, one = _timed(model, plan, mfu, bus, host), _work(model, plan, 1)
    batches = range(1, 2**40)
    found = bisect_left(batches, share, key=lambda batch: timed([batch * flop for flop in one]).share)
    if found == len(batches):
        raise ValueError(f"share is {share!r}; no batch under {2**40:,} reaches it with this bus and host")
    return batches[found]


def _work(model, plan: TrainingPlan, batch: int) -> list[int]:
    """FLOPs of the forward passes, and of what backward does and runs again."""
    work = flops(model, replace(plan, batch=batch, **ALONE))
    return [work.forward, work.backward + work.again]


def _timed(
    model, plan: TrainingPlan, mfu: float, bus: float | None, host: float | None
) -> Callable[[list[int]], Utilisation]:
    """What makes seconds of the FLOPs of forward and backward."""
    if plan.card is None:
        raise ValueError(f"card is None; time needs one: allowed: {', '.join(GPUS)}")
    check_shares(mfu=mfu)
    for name, value in dict(mfu=mfu, bus=bus, host=host).items():
        if value is not None and (not is_number(value) or not value > 0):
            raise ValueError(f"{name} is {value!r}; it must be greater than 0")
    crossings, gpu = traffic(model, plan), GPUS[plan.card]
    rate = mfu * gpu.speed(POLICY.get(plan.param_dtype) or computes_in(plan))
    transfers = [_fuller(crossings, phase) / (bus or gpu.bus) for phase in PHASES]
    update = _updated(model, plan) / host if host and crossings else 0.0

    def timed(work: list[int]) -> Utilisation:
        forward, backward = (flop / rate for flop in work)
        hidden = zip(transfers, (forward, backward, 0.0))
        return Utilisation(forward, backward, sum(max(0.0, moved - compute) for moved, compute in hidden) + update)

    return timed


def _fuller(crossings: Iterable[Crossing], phase: str) -> int:
    """Bytes of a phase in the direction that has more of them."""
    return max(sum(c.nbytes for c in crossings if c.phase == phase and c.up == up) for up in (True, False))


def _updated(model, plan: TrainingPlan) -> int:
    """Bytes that the CPU's update reads and writes: DeepSpeed's in float32, FSDP2's in the weights' own format."""
    shard = shard_of(model, plan)
    return UPDATE * (shard.trained_nbytes if plan.sharding == "fsdp2" else 4 * shard.trained)
