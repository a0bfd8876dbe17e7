"""The checks of lab 04: their own arithmetic against torch and bitsandbytes, and the book that they close.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

import importlib
import logging
import warnings

import pytest
import torch

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes.functional as bnb

from minigpt import optim  # noqa: E402
from minigpt.checks import Wrong  # noqa: E402
from minigpt.checks.four_bits import quantizing  # noqa: E402
from minigpt.checks.optimizers import adam, blocks, eight_bit, maps, moments, storage  # noqa: E402
from minigpt.checks.optimizers.adam import Step  # noqa: E402
from minigpt.checks.optimizers.asking import ask  # noqa: E402
from minigpt.checks.optimizers.blocks import State  # noqa: E402
from minigpt.checks.optimizers.eight_bit import Case  # noqa: E402
from minigpt.memory import TrainingPlan, predict  # noqa: E402
from minigpt.model import GPTConfig  # noqa: E402
from minigpt.optim import blockwise  # noqa: E402
from tests.judged import refuses  # noqa: E402

STEPS = [Step(1), Step(7), Step(3, decay=0.6), Step(30, lr=0.3, eps=1e-3, seed=2), Step(2, shape=(40,), seed=1)]
STATES = [State("signed", (37, 50)), State("unsigned", (24, 128)), State("unsigned", (5000,), seed=1),
          State("signed", (33, 70), block=64, seed=2)]  # fmt: skip
SMALL = GPTConfig(n_layer=2, n_embd=72, n_head=6, context=40, vocab_size=90)


# ---------------------------------------------------------------- the truth


def stepped(weight, grad, m, v, t, lr, betas, eps, decay):
    """Written otherwise than the lab's own answer."""
    m, v = torch.lerp(m, grad, 1 - betas[0]), torch.lerp(v, grad**2, 1 - betas[1])
    below = (v / (1 - betas[1] ** t)).sqrt() + eps
    return weight * (1 - lr * decay) - lr * (m / (1 - betas[0] ** t)) / below, m, v


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_right_step_passes_and_the_package_has_the_same(step):
    adam.moments(stepped, step)
    adam.moved(stepped, step)
    weight, grad, m, v = step.tensors()
    ours = optim.adam_step(weight, grad, m, v, step.t, lr=step.lr, betas=step.betas, eps=step.eps,
                           weight_decay=step.decay)  # fmt: skip
    for name, truth in adam.by_torch(step).items():
        torch.testing.assert_close(getattr(ours, name), truth)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_no_mistake_of_a_step_gives_what_is_right(step):
    right = adam.by_torch(step)
    mistakes = {"weight": adam._weight_mistakes(step), **adam._moment_mistakes(step)}
    alike = {
        (name, id) for name, table in mistakes.items() for id, (_, value) in table.items()
        if torch.allclose(value, right[name], rtol=1e-4, atol=1e-5)
    }  # fmt: skip
    first = {("weight", "no-power"), ("weight", "gradient-for-m")} if step.t == 1 else set()  # there beta^t is beta
    coupled = set() if step.decay else {("m", "coupled-decay"), ("v", "coupled-decay")}
    assert alike == first | coupled


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_by_hand_is_bitsandbytes(signed):
    right = maps.MAPS["signed" if signed else "unsigned"]
    assert right.equal(blockwise.dynamic_map(signed))
    torch.testing.assert_close(maps.built(signed), right.double(), rtol=1e-6, atol=0)
    maps.dynamic(built_by_width, signed)
    for id, (_, wrong) in maps._map_mistakes(signed).items():
        assert wrong.shape != right.shape or not torch.allclose(wrong.float(), right, rtol=1e-4, atol=0), id


def built_by_width(signed):
    values = [0.0, 1.0]
    for k in range(7):
        parts = 2**k if signed else 2 ** (k + 1)
        above = [(0.1 + 0.9 * (i + 0.5) / parts) * 10.0 ** (k - 6) for i in range(parts)]
        values += above + [-x for x in above] * signed
    return torch.tensor(sorted(values))


@pytest.mark.parametrize("state", STATES, ids=str)
def test_codes_are_the_packages_and_a_division_is_right_as_well(state):
    values, x = maps.MAPS[state.kind], state.tensor()
    codes, absmax = quantizing.rounded(x, values, state.block)
    ours = blockwise.quantize(x, values, state.block)
    assert ours.codes.flatten().equal(codes) and ours.absmax.equal(absmax)
    assert quantizing.rounded(x, values, state.block, divide=True)[0].equal(codes)  # the lab leaves that open
    theirs = bnb.dequantize_blockwise(codes, absmax=absmax, code=values, blocksize=state.block)
    torch.testing.assert_close(blocks.restored(codes, absmax, values, state.block), theirs, rtol=1e-6, atol=0)
    assert len(codes) % state.block or state.shape == (24, 128), "a short last block in every case but one"


@pytest.mark.parametrize("sizes", [[1], [4095], [4096], [5000, 300], [65_536, 4095, 4097]], ids=str)
def test_bytes_of_the_moments_are_bitsandbytes(sizes):
    assert storage.kept(sizes) == moments.moments(sizes)


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "lion", "sgd_momentum"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-autocast"])
def test_what_is_held_between_steps_is_predicted(kind, precision):
    plan = TrainingPlan(batch=1, seq_len=8, optimizer=kind, precision=precision)
    ledger, held = predict(SMALL, plan).ledger, storage.held(SMALL, kind, precision)
    assert held == {bucket: getattr(ledger, bucket) for bucket in held}
    llama = storage.held("llama-7b", kind, precision)
    assert llama["weights"] == llama["gradients"] == (2 if precision == "bf16" else 4) * 6_738_415_616


def test_the_cases_of_the_step_show_what_they_are_for():
    """A step from rounded moments must stand apart from the right one, in the first step too."""
    for case in (Case((50, 100), 1), Case((50, 100), 4), Case((64, 64), 9, seed=4)):
        weight, state = eight_bit._after(case, case.t - 1)
        right, _ = eight_bit._after(case, case.t)
        for id, (_, wrong) in eight_bit._weight_mistakes(case, weight, state).items():
            assert not torch.allclose(wrong, right, rtol=1e-4, atol=1e-5), (case, id)


# ---------------------------------------------------------------- the closed book


P = torch.nn.Parameter(torch.ones(4))
ASKING = {
    "torch's AdamW": lambda: torch.optim.AdamW([P]),
    "torch's function": lambda: importlib.import_module("torch.optim.adamw").adamw([P], [P], [P], [P], [], [P]),
    "the fused kernel": lambda: torch._fused_adamw_([P]),
    "the course's 8-bit AdamW": lambda: optim.AdamW8bit([P]),
    "the course's step": lambda: optim.adam_step(P, P, P, P, 1),
    "the course's quantizer": lambda: blockwise.quantize(P, maps.MAPS["signed"]),
    "the course's map": lambda: blockwise.dynamic_map(),
    "bitsandbytes' map": lambda: bnb.create_dynamic_map(),
    "bitsandbytes' blocks": lambda: bnb.quantize_blockwise(P.detach()),
    "the checks' map": lambda: maps.built(True),
    "the checks' step": lambda: adam.by_torch(Step(1)),
    "the checks' blocks": lambda: blocks.restored(P, P, P),
    "the checks' bytes": lambda: moments.moments([4]),
    "what is held": lambda: storage.held(SMALL, "lion", "fp32"),
}


@pytest.mark.parametrize("what", ASKING)
def test_the_book_is_closed(what):
    storage.held(SMALL, "lion", "fp32")  # remembered, and not told
    with pytest.raises(Wrong, match="for the result; write the arithmetic yourself") as no:
        ask(ASKING[what])
    assert no.value.id in ("asks-optimizer", "asks-course", "asks-bitsandbytes")


def test_and_open_again_after():
    assert ask(lambda: 7) == 7
    assert torch.optim.AdamW([P]) and optim.AdamW8bit([P]) and blockwise.dynamic_map().numel() == 256


def test_what_is_no_step_is_refused():
    with refuses("no-tuple", r"\(weight, m, v\) are asked for"):
        adam.moved(lambda *_: P.detach(), Step(1))
    with refuses("no-pair", r"\(weight, state\) are asked for"):
        eight_bit.steps(lambda weight, *_: weight, Case((8,), 1))
    with refuses("wrong-keys", "the state: it has 'step'"):
        eight_bit.steps(lambda w, *_: (w, {"m": w, "v": w, "step": 1}), Case((8,), 1))
