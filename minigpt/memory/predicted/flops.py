"""flops(model, plan): the arithmetic of a training step beside its memory, in FLOPs of the products of matrices.

By hand, for N tokens in sequences of T, a block with P weights in its matrices and H heads that are D wide, C the
width and V the vocabulary:

    forward of a block     2 N P + 4 N T H D          a linear layer is 2 FLOPs per token and weight; scores and values
    forward of the head    2 N C V
    forward of experts     2 N k P_e + 2 N E C        the k of E experts that a token takes, of P_e weights each; router
    backward               twice the forward for linears (the input's gradient, the weight's), 2.5 times for attention

A frozen weight has no gradient of its own, so with adapters backward costs a base as much as forward does, not twice.
A head whose logits are never all there (loss "trl") makes them again in backward, which counts as backward's.
Checkpointing adds forward work: all of every block, less what comes after the last tensor that the block saves, where
the second run stops. In MiniGPT and llama that leaves out the block's last matrix. It is a third of the step at most,
and half of it with a frozen base.

    policy           run again
    full, offload    every block, less its end
    reentrant        every block to its end, for it does not know what is needed
    every            one block in every_n_layers, less its end
    sqrt             every block, less the end of each segment's last one
    selective        no product at all: what is cheap in FLOPs, and not always in time

A mixture computes with k experts per token, however tokens spread over them, and holds all E: few FLOPs per byte. peft
adds adapters of experts to all of the experts' matrices, whole, so their price does not depend on the tokens.

``flops`` reads all that off the tape on which ``predict`` runs the step, and ``priced`` gives both from one run.
``block_flops`` and ``head_flops`` are the formulas; tests hold both, and torch's FlopCounterMode, together.

Left out: all that is not a product (norms, softmax, activation functions), and the optimizer's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.families.experts import Experts
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.run import run


@dataclass(frozen=True)
class Flops:
    """FLOPs of one step: of the forward passes, of what checkpointing runs again, and of the gradients.

    ``decoded``: how many times a weight of 4 or 8 bits was made whole, over all weights and passes. ``moved``: bytes of
    blocks' inputs that checkpointing "offload" sent to the CPU's memory, and took back.
    """

    forward: int
    again: int
    backward: int
    decoded: int
    moved: int

    @property
    def total(self) -> int:
        return self.without + self.again

    @property
    def without(self) -> int:
        """The same step without checkpointing."""
        return self.forward + self.backward

    @property
    def extra(self) -> float:
        """What checkpointing adds, as a share of the step without it."""
        return self.again / self.without


def flops(model, plan: TrainingPlan) -> Flops:
    """The FLOPs of one training step of ``model`` under ``plan``, all of its ``accumulation`` passes.

    Raises ValueError as ``predict`` does.
    """
    return priced(model, plan)[1]


def priced(model, plan: TrainingPlan) -> tuple[StepMemory, Flops]:
    """``predict(model, plan)`` and ``flops(model, plan)``, from one run of the step."""
    return run(model, plan, lambda tape, frozen: (tape.result(frozen), Flops(**vars(tape.work))))


def block_flops(model, plan: TrainingPlan, layer: int = 0) -> int:
    """The forward of one block, over one pass: by the formula. An adapter adds 2 N r (n_in + n_out).

    Raises ValueError for adapters on experts or routers, which are added to the weights and not applied to the tokens.
    """
    architecture = Architecture.of(model)
    targets, weights = plan.target_names(architecture), 0
    for tensor in architecture.block_tensors(layer):
        if tensor.kind not in ("linear", "experts", "router", "gate"):
            continue
        rank = architecture.adapter_rank(tensor, plan, targets)
        if rank and tensor.kind in ("experts", "router"):
            raise ValueError(f"targets is {plan.targets!r}; {tensor.name} has an adapter that no formula here covers")
        if isinstance(architecture, Experts) and tensor.kind == "experts":
            weights += architecture.top_k * prod(tensor.shape[1:])
        else:
            weights += prod(tensor.shape) + rank * sum(tensor.shape)
    scores = 4 * plan.tokens * plan.seq_len * architecture.n_head * architecture.head_dim
    return 2 * plan.tokens * weights + scores


def head_flops(model, plan: TrainingPlan) -> int:
    """The forward of the output head, over one pass."""
    architecture = Architecture.of(model)
    return 2 * plan.tokens * architecture.n_embd * architecture.vocab_size
