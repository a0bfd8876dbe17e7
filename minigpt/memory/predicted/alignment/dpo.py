"""predict_dpo(model, plan): a step of direct preference optimization, by arithmetic.

Twice ``plan.batch`` sequences go forward with gradients, and once more, without, through the reference:

    MiniGPT (``minigpt.alignment.dpo``)   the reference first; log-probabilities from all logits
    others (trl 1.15's DPOTrainer)        the policy first, so that the reference runs on top of all that was saved;
                                          log-probabilities by tiles of 4,096 tokens and 32,768 words, of answers alone

Both follow the code line by line, as ``families`` do, since a name that is still bound keeps its storage alive. trl's
sums for its log are made between forward and backward and are gone again; they are small, and left out.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from minigpt.memory.buckets import StepMemory
from minigpt.memory.collector import at_rest
from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.pointwise import unary
from minigpt.memory.engine.tape import WEIGHTS, Storage, Value
from minigpt.memory.families.losses import log_probabilities, pick, scatter, summed
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.start import Start, start
from minigpt.memory.preferences import check_dpo

OUTPUTS = ("entropy", "mean_logits", "is_top1")  # what DPOTrainer asks of the policy, for its log; of a copy, nothing
ADAPTER = (".A", ".B")  # what an adapter adds to a matrix's name


@at_rest()
def predict_dpo(model, plan: TrainingPlan, *, reference: str = "copy", prompt: int = 1) -> StepMemory:
    """The memory of a step on ``plan.batch`` pairs of ``plan.seq_len`` tokens, ``prompt`` of which are the prompt's.

    ``reference``: "copy", a frozen set of weights; "adapter", the policy's own without its adapters; "precomputed".
    For MiniGPT the plan's loss is "model", for others "trl". Raises ValueError for what is not covered.
    """
    check_dpo(model, plan, reference, prompt)
    began = start(model, plan)
    tape, layers = began.tape, began.layers
    frozen, before = began.frozen(), tape.live
    other = _reference(began, plan, reference)
    frozen += tape.live - before
    step = _minigpt if began.architecture.family == "minigpt" else _trl
    kept = step(began, plan, other, prompt)
    tape.phase, tape.block = "step", ""
    began.optimizer.update(layers.trained)
    result = tape.result(frozen)
    del tape.keep  # its own method: a cycle
    del kept, other, began, layers
    return result


def _reference(began: Start, plan: TrainingPlan, reference: str) -> Layers | None:
    """The weights that the reference reads: its own, or the policy's without their adapters."""
    if reference == "precomputed":
        return None
    if reference == "copy":
        began.buffers.extend(Storage(began.tape, nbytes, WEIGHTS) for nbytes in began.architecture.buffers())
        other = Layers(began.tape, began.architecture, plan)
        other.trained = []
        return other
    bare = copy.copy(began.layers)
    bare.weights = {name: value for name, value in bare.weights.items() if not name.endswith(ADAPTER)}
    return bare


def _unrecorded(began: Start, layers: Layers, run):
    """``run(layers)`` under torch.no_grad, without checkpoints."""
    tape, before = began.tape, layers.plan
    layers.plan, tape.records_nothing = replace(before, checkpointing="none"), True
    made = run(layers)
    layers.plan, tape.records_nothing = before, False
    return made


# ------------------------------------------------------------ by hand


def _minigpt(began: Start, plan: TrainingPlan, reference: Layers | None, prompt: int):
    """minigpt.alignment.dpo.dpo_step."""
    architecture: Any = began.architecture
    tape = began.tape
    shape = 2 * plan.batch, plan.seq_len
    tape.doing = "batch"
    pairs = [tape.new(shape, "int64") for _ in range(2)]
    wanted = None
    if reference is None:
        wanted = tape.new(shape[:1], "float32")

    def log_probs(layers: Layers) -> Value:
        tokens, targets = pairs
        tape.autocast = plan.autocast_dtype
        logits = layers(architecture.hidden(layers, tokens), "head")
        losses = _token_losses(layers, logits, targets)
        del logits
        return ops.scale(_sum_of_rows(views.view(losses, *shape)))

    tape.phase = "forward"
    if reference is not None:
        wanted = _unrecorded(began, reference, log_probs)
    assert wanted is not None
    policy = log_probs(began.layers)
    tape.block = "head"
    loss = _dpo_loss(policy, wanted)
    del policy
    tape.phase = "backward"
    tape.backward(loss)
    return loss, wanted, pairs


def _dpo_loss(policy: Value, reference: Value) -> Value:
    difference = ops.subtract(policy, reference)
    half = difference.shape[0] // 2
    chosen, rejected = views.split(difference, [half, half], 0)
    del difference
    return ops.mean_of_all(ops.scale(_log_sigmoid(ops.scale(ops.subtract(chosen, rejected)))))


def _token_losses(layers: Layers, logits: Value, targets: Value) -> Value:
    """model.cross_entropy(reduction="none"): log-softmax, then a loss for each token."""
    tape, words = layers.tape, logits.shape[-1]
    wide = ops.cast(logits, "float32")
    flat, labels = views.view(wide, -1, words), views.view(targets, -1)
    log_probs = unary("log_softmax", flat, saves_output=True)
    tape.doing = "nll_loss"
    weight = tape.new((), "float32")
    whole = log_probs.shape
    saves = [log_probs.storage, labels.storage, weight.storage]
    return tape.record(
        "nll_loss", (log_probs,), (whole[:1], "float32", None), saves, lambda g: [tape.new(whole, g.dtype)]
    )


def _sum_of_rows(x: Value) -> Value:
    """x.sum(1). Its gradient is seen many times, and not copied."""
    shape = x.shape

    def backward(g):
        return [views.expanded(views.reshaped(g, (shape[0], 1)), shape)]

    return x.storage.tape.record("sum", (x,), (shape[:1], x.dtype, None), (), backward)


def _log_sigmoid(x: Value) -> Value:
    """F.logsigmoid saves its input, and on a CPU a buffer like it."""
    tape, shape, dtype = x.storage.tape, x.shape, x.dtype
    tape.doing = "logsigmoid"
    buffer = tape.new(shape, dtype)
    return tape.record(
        "logsigmoid", (x,), (shape, dtype, None), [x.storage, buffer.storage], lambda g: [tape.new(shape, g.dtype)]
    )


# ------------------------------------------------------------ trl


def _trl(began: Start, plan: TrainingPlan, reference: Layers | None, prompt: int):
    """DPOTrainer.compute_loss, with the model's forward that add_fused_lm_head gives it."""
    tape = began.tape
    shape = 2 * plan.batch, plan.seq_len
    tape.doing = "batch"
    inputs = [tape.new(shape, "int64") for _ in range(3)]  # input_ids, attention_mask, completion_mask
    if reference is None:
        inputs += [tape.new((plan.batch,), "float32") for _ in range(2)]
    loss = _compute_loss(began, plan, reference, inputs, prompt)
    tape.phase = "backward"
    tape.backward(loss)
    return loss, inputs


def _compute_loss(
    began: Start, plan: TrainingPlan, reference: Layers | None, inputs: list[Value], prompt: int
) -> Value:
    tape = began.tape
    tape.phase, tape.doing = "forward", "labels"
    labels = tape.new(inputs[0].shape, "int64")
    outputs = _forward(began, plan, began.layers, inputs[0], labels, prompt)
    logps = _sum_of_rows(outputs[0])
    chosen, rejected = _halves(logps)
    if reference is None:
        ref_chosen, ref_rejected = inputs[3:]
    else:
        ref_outputs = _unrecorded(
            began, reference, lambda layers: _forward(began, plan, layers, inputs[0], labels, prompt)
        )
        ref_chosen, ref_rejected = _halves(_sum_of_rows(views.detach(ref_outputs[0])))
    chosen_ratios, rejected_ratios = ops.subtract(chosen, ref_chosen), ops.subtract(rejected, ref_rejected)
    delta = ops.subtract(chosen_ratios, rejected_ratios)
    per_sequence = ops.scale(_log_sigmoid(ops.scale(delta)))
    return ops.shift(ops.scale(ops.mean_of_all(per_sequence)))  # 0.0 + mean * weight


def _halves(x: Value) -> list[Value]:
    half = x.shape[0] // 2
    return views.split(x, [half, half], 0)


def _forward(
    began: Start, plan: TrainingPlan, layers: Layers, tokens: Value, labels: Value, prompt: int
) -> list[Value]:
    """``_fused_forward``: per-token log-probabilities, and what else it returns; under accelerate's autocast."""
    architecture: Any = began.architecture
    tape = began.tape
    tape.autocast = plan.autocast_dtype
    hidden = architecture.model(layers, tokens)
    tape.block = "head"
    outputs = OUTPUTS if layers.trained else ()
    rows, length = labels.shape
    answers = rows * (length - prompt)
    bound = hidden = views.narrow(hidden, 1, length - 1)
    tape.doing = "labels"
    mask = tape.new((rows, length - 1), "bool")
    picked = pick(hidden, mask, answers)
    counted = tape.new((answers,), "int64")
    per_token, *others = log_probabilities(tape, picked, layers["head"], counted, outputs)
    del picked, counted
    log_probs, *more = (scatter(tape, x, mask) for x in (per_token, *others))
    negative = ops.scale(summed(log_probs))
    count = tape.new((), "int64")
    loss = ops.divide(negative, count)
    del bound
    tape.casts.clear()
    tape.autocast, tape.block = None, ""
    return [log_probs, *more, loss, mask]
