"""step_seconds(model, plan, card, mfu): how long a training step takes, and how many tokens per second go through it.

    products    FLOPs / (mfu x speed)              at the card's speed in the format that they are computed in
                or weights read / bandwidth        whichever is longer: with few tokens the reading is
    decoding    bytes of weights made whole from 4 bits / bandwidth, each time that they are (``traffic``)
    update      bytes that the optimizer reads and writes / bandwidth
    bus         2 x bytes that checkpointing "offload" moves / bus: beside the rest, so it counts where it is longer

FLOPs are the step's own (``flops``), with all that checkpointing runs again. ``mfu`` is the share of the card's peak at
which they run, and it is *stated, not predicted*: no shape gives it. Without checkpointing it is what is published as
MFU (model FLOPs utilization: PaLM, arXiv 2204.02311, appendix B), with it what others call HFU. ``Seconds.mfu`` is
PaLM's, which does not count what is run again.

Products of float32 numbers go at the card's speed without tensor cores, torch's default. Such are a float32 adapter's,
and after peft's ``prepare_model_for_kbit_training`` attention's and the head's, too, unless autocast is on. Fused
attention without padding skips what causality masks: half of its FLOPs, which MFU counts all the same.

Left out: what is not a product, the time to launch a kernel (which decides where passes are small), loading data,
evaluation, communication between cards; sliding windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS, find_gpu
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.policies import computes_in
from minigpt.memory.predicted.flops import Flops, flops, head_flops
from minigpt.memory.predicted.static import predict_static
from minigpt.memory.predicted.traffic import dequantizing
from minigpt.values import is_number

MFU = 0.5  # in the middle of what is published for long sequences: tools.speeds holds it to every row at hand


@dataclass(frozen=True)
class Seconds:
    """Seconds of one step on a ``card``, by their cause. ``tokens`` go through it; ``peak``: its FLOPs per second."""

    products: float
    decoding: float
    update: float
    bus: float
    tokens: int
    work: Flops
    peak: float
    card: str

    @property
    def total(self) -> float:
        return max(self.products + self.decoding + self.update, self.bus)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.total

    @property
    def mfu(self) -> float:
        """PaLM's MFU of the whole step, as a share of the peak: what checkpointing runs again does not count."""
        return self.work.without / self.total / self.peak


def step_seconds(model, plan: TrainingPlan, card: str | None = None, mfu: float = MFU) -> Seconds:
    """One step of ``model`` under ``plan``, all of its ``accumulation`` passes, on ``card``, or the plan's.

    Raises ValueError without a card, for an ``mfu`` that is not above 0 and at most 1, and as ``predict`` does.
    """
    card = card or plan.card
    if card is None:
        raise ValueError(f"card is None; allowed: {', '.join(GPUS)}")
    if not is_number(mfu) or not 0 < mfu <= 1:
        raise ValueError(f"mfu is {mfu!r}; it must be above 0 and at most 1")
    plan = replace(plan, card=find_gpu(card))
    gpu, architecture = GPUS[str(plan.card)], Architecture.of(model)
    asked = plan.card if plan.method == "qlora" else None  # whose kernels decode; other FLOPs are no card's
    once = flops(architecture, replace(plan, accumulation=1, card=asked))
    work = Flops(**{name: plan.accumulation * count for name, count in vars(once).items()})
    speed = gpu.speed(computes_in(plan))
    single, scores = float32_flops(architecture, plan, work), _scores(architecture, plan, work)
    skipped = scores // 2 if plan.attention == "sdpa" and plan.sequences != "padded" else 0
    slow = single - (skipped if _prepared(plan) else 0)
    computing = ((work.total - skipped - slow) / speed + slow / gpu.single) / mfu
    itemsize = 4 if computes_in(plan) == "float32" else 2
    passes = plan.accumulation * (1 + round(work.total / work.forward - 1))
    reading = passes * itemsize * architecture.parameters / gpu.bandwidth
    scales = dequantizing(64 * 256, 1, itemsize, plan.double_quantization).nbytes / (64 * 256)
    rest = predict_static(architecture, plan)
    return Seconds(
        products=max(computing, reading), decoding=work.decoded * scales / gpu.bandwidth,
        update=(2 * rest.optimizer + 3 * rest.gradients) / gpu.bandwidth,  # weights have a gradient's size
        bus=2 * work.moved / gpu.bus, tokens=plan.accumulation * plan.tokens, work=work, peak=speed,
        card=str(plan.card),
    )  # fmt: skip


def float32_flops(model, plan: TrainingPlan, work: Flops) -> int:
    """Of ``work``, the FLOPs of a step with adapters, those in float32 where the other products are in 16 bits.

    0 where all are in one format: full fine-tuning, autocast, adapters in the base's own. Not counted: experts'.
    """
    if plan.method == "full" or plan.autocast_dtype or computes_in(plan) == "float32":
        return 0
    architecture, targets, adapters = Architecture.of(model), plan.target_names(Architecture.of(model)), 0
    for tensor in architecture.tensors():
        if tensor.kind in ("linear", "gate", "head"):
            adapters += architecture.adapter_rank(tensor, plan, targets) * sum(tensor.shape)
    adapters *= 2 * plan.accumulation * plan.tokens
    if not _prepared(plan):
        return int((3 + _again(architecture, plan, work)) * adapters) if plan.adapter_dtype == "fp32" else 0
    head = (3 if plan.loss == "trl" else 2) * plan.accumulation * head_flops(architecture, plan)  # trl: logits again
    return int((3 + _again(architecture, plan, work)) * adapters) + head + _scores(architecture, plan, work)


def _prepared(plan: TrainingPlan) -> bool:
    """Whether the residual stream is float32 beside matrices of 4 bits that are multiplied in 16."""
    return plan.method == "qlora" and plan.kbit_preparation and not plan.autocast_dtype


def _scores(architecture: Architecture, plan: TrainingPlan, work: Flops) -> int:
    """FLOPs of all attention: two products forward, five backward with the fused kernel (four without), two again."""
    forward = 4 * plan.accumulation * plan.tokens * plan.seq_len * architecture.n_head * architecture.head_dim
    times = 1 + (2.5 if plan.attention == "sdpa" else 2) + _again(architecture, plan, work)
    return int(forward * architecture.n_layer * times)


def _again(architecture: Architecture, plan: TrainingPlan, work: Flops) -> float:
    """The share of the blocks' forward that checkpointing runs again."""
    return work.again / (work.forward - plan.accumulation * head_flops(architecture, plan))
