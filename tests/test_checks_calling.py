"""How graded cells call an answer: silenced, watched, and with the book closed."""

from __future__ import annotations

import re
import signal
import statistics
import sys
import time
import warnings

import pytest
import torch

import minigpt.checks.training  # noqa: F401  (it closes minigpt.train)
from minigpt import checks
from minigpt.checks import calling
from minigpt.checks.counting import parameters, saved, static
from minigpt.memory import Architecture, Ledger, TrainingPlan, predict
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT
from minigpt.train import TrainPlan, train
from tests.judged import TINY, Same, refuses, swallow
from tools import ROOT


def test_call_silences_what_a_right_answer_says(capfd, recwarn):
    def answer(n):
        print("working")
        print("working", file=sys.stderr)
        warnings.warn("working", stacklevel=1)
        return n + 1

    assert checks.call(answer, 3) == 4
    assert capfd.readouterr() == ("", "") and not recwarn.list


@pytest.mark.parametrize("on", [True, False])
def test_gradients_that_an_answer_switches_come_back(on):
    def answer(fails=False):
        torch.set_grad_enabled(not on)
        return 1 / 0 if fails else 1

    with torch.set_grad_enabled(on):
        with refuses("leaves-gradients", "enable_grad" if not on else "no_grad"):
            checks.call(answer)
        with refuses("raises-zerodivisionerror"):
            checks.call(answer, True)
        assert torch.is_grad_enabled() == on


def raising(error):
    def answer(n):
        raise error

    return answer


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda: torch.ones(2, 3, dtype=torch.bfloat16) @ torch.ones(3, 2),
         r"a bfloat16 tensor meets a float32 one in a product; cast one of them, as x\.float\(\)"),
        (lambda: torch.ones(2, 3) @ torch.ones(2, 3), "a product of 2x3 and 2x3, whose inner two sizes differ"),
        (lambda: torch.nn.Linear(2, 3).weights, "a plain nn.Linear has no weights; it knows in_features"),
        (lambda: Ledger(1).totals, "the 'Ledger' object has no totals; is it set before"),
        (lambda: undefined, "there is no undefined; has the cell been run that makes it"),  # noqa: F821
        (lambda: math.pi, "math is not there yet: import math"),  # noqa: F821
        (lambda: torch.ones(2).sum().backward(), "what is to go backward has no graph"),
        (lambda: torch.ones(2) + torch.ones(3), "a tensor of 2 meets one of 3, element by element"),
        (lambda: max([]), "there is nothing here to choose from"),
        (lambda: statistics.mean([]), r"StatisticsError: mean requires .*\n    line \d+ .*statistics.mean\("),
    ],
)  # fmt: skip
def test_an_error_says_what_it_means_and_then_the_answers_own_line(answer, says):
    with pytest.raises(checks.Wrong, match=says) as caught:
        checks.call(answer)
    said, line = str(caught.value).split("\n")
    assert line.startswith("    line ") and "lambda" in line and "calling.py" not in str(caught.value)


def test_what_is_not_written_is_named_even_where_another_function_calls_it():
    def inner():
        raise NotImplementedError

    def answer():
        return inner()

    with refuses("not-written", "^inner is not written yet$"):
        checks.call(answer)
    with refuses("not-written", "^inner is not written yet$"):
        checks.call(inner)


counter = iter(range(100))


@pytest.mark.parametrize(
    "answer, id, says",
    [
        (raising(NotImplementedError()), "not-written", "answer is not written yet"),
        (
            raising(KeyError("head_dim")),
            "raises-keyerror",
            r"answer fails with KeyError: there is no key .head_dim.\n    line \d+ of the answer.s cell: raise error$",
        ),
        (raising(AssertionError("mine")), "raises-assertionerror", "answer fails with AssertionError: mine"),
        (raising(SystemExit(0)), "ends-program", "ends the program"),
        (lambda n: None, "returns-nothing", "> returns nothing: end it in a return$"),
        (lambda n: print(n), "returns-nothing", "prints and returns nothing; print only shows: end it in a return$"),
        (lambda n: n.append(1) or 3, "changes-arguments", "> changes n; it must leave its arguments as they are$"),
        (lambda n: n.__setitem__(0, Same(4)) or 3, "changes-arguments", "changes n;"),
        (90_000, "no-function", "^the answer is 90,000; a function is asked for"),
        (lambda: 3, "raises-typeerror", r"fails with TypeError: .*takes 0 positional arguments but 1 was given"),
        (raising(KeyboardInterrupt()), "does-not-end", r"^answer was stopped while it ran; .*\n    line \d+ of"),
        (raising(GeneratorExit()), "raises-generatorexit", "answer fails with GeneratorExit: it says no more"),
        (raising(RecursionError("maximum recursion depth exceeded")), "raises-recursionerror", "calls itself without"),
        (
            raising(NotImplementedError("Could not run it. Why? See")),
            "raises-notimplementederror",
            "Could not run it\n",
        ),
        (raising(ValueError("x" * 300)), "raises-valueerror", "x{197}[.]{3}\n"),
        (raising(ValueError("One. Two.\nThree.")), "raises-valueerror", "ValueError: One\n"),
        (lambda n: next(counter), "unsteady", "called again with the same arguments"),
        (lambda n: torch.full((2,), float(next(counter))), "unsteady", "called again with the same arguments"),
    ],
)
def test_call_watches_the_answer(answer, id, says):
    with refuses(id, says):
        checks.call(answer, [9007199254740993])


def test_call_accepts_steady_answers_of_many_kinds():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    for value in (3, 2**70, "x", (1, [2.5]), {"a": torch.ones(2)}, float("nan"), Ledger(1), object, odd):
        assert checks.same(checks.call(lambda value=value: value), value)
    assert not checks.same(odd, torch.tensor([1.0, float("inf"), 1.0])) and not checks.same(odd, -odd)
    assert checks.call(lambda: None, none_ok=True) is None
    with refuses("unsteady"):
        checks.call(lambda: 2**60 + next(counter))  # equal as floats


def test_an_answer_that_does_not_end_is_stopped_at_its_line(monkeypatch):
    monkeypatch.setattr(calling, "SECONDS", 0.2)

    def answer():
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    with refuses("does-not-end", r"^answer had not ended after 0.2 seconds; .*\n    line \d+ of the answer's cell: "):
        checks.call(answer)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0) and checks.call(lambda: 3) == 3


def test_objects_that_nobody_can_compare_are_not_called_unsteady():
    assert checks.call(lambda: (n for n in range(3))) is not None
    with refuses("wrong-type", "is of type generator; a whole number"):
        checks.integer(checks.call(lambda: (n for n in range(3))), 3, "n")


@pytest.mark.parametrize("odd, kind", [(torch.ones(2, device="meta"), "meta"), (torch.ones(2).to_sparse(), "sparse"),
                                       (torch.ones(2) * 1j, "complex")])  # fmt: skip
def test_a_tensor_without_plain_numbers_is_refused(odd, kind):
    with refuses("odd-tensor", f"a {kind} tensor is given"):
        checks.call(lambda: odd)
    with refuses("odd-tensor", f"^w: a {kind} tensor is given"):
        checks.close(odd, torch.ones(2), "w")


def disguise(function):
    def answer(*args):
        try:
            return function(*args)
        except AssertionError:
            raise KeyError("it was not me") from None

    return answer


ASKING = {
    "predict": lambda: predict(TINY, TrainingPlan(seq_len=4)),
    "measure": lambda: measure(TINY, TrainingPlan(seq_len=4)),
    "a truth": lambda: parameters.measured(TINY),
    "a slip": lambda: static.float32_slips(TINY),
    "what a cache knows": lambda: saved.saved(TINY, 1, 4),
    "parameters": lambda: Architecture.of(TINY).parameters,
    "tensors": lambda: Architecture.of(TINY).tensors(),
    "block_tensors": lambda: Architecture.of("llama-7b").block_tensors(),
    "PRECISIONS": lambda: PRECISIONS["bf16"].weights,
    "train": lambda: train(GPT(TINY), [next_batch()], TrainPlan(steps=1, lr=0.1), progress=False),
    "a model": lambda: GPT(TINY),
}


def next_batch():
    return torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)


@pytest.mark.parametrize("what", ASKING)
def test_the_book_is_closed_by_hand_and_open_again_after(what):
    assert ASKING[what]() is not None  # where it is allowed, it works, and what it gave may be remembered
    id = "asks-model" if what in ("a model", "train") else "asks-course"
    for answer in (ASKING[what], swallow(ASKING[what]), disguise(ASKING[what])):
        with refuses(id, "the answer asks (the course's|a model).* write the arithmetic yourself"):
            checks.by_hand(answer)
    assert ASKING[what]() is not None


def test_a_step_may_build_and_may_not_ask():
    model = GPT(TINY)
    assert checks.by_hand(lambda: torch.nn.Linear(2, 3), building=True, twice=False).out_features == 3
    with refuses("asks-course"):
        checks.by_hand(lambda: train(model, [next_batch()], TrainPlan(steps=1, lr=0.1)), building=True)


def test_the_closed_book_leaves_plain_arithmetic_alone():
    def answer(config):
        return torch.tensor(2 * config.n_embd), StepMemory(Ledger(1), Ledger(1), "step")

    assert checks.by_hand(answer, TINY)[0] == 24


SERVED = ("asking", "recorded", "running")  # the requests that an answer serves; what judges it is closed


def test_a_module_says_itself_that_it_knows_truths():
    """Every module of a subject that compares is closed, and the engine is not: it runs while answers do."""
    open_to_answers = {"minigpt.checks.four_bits.asking", "minigpt.checks.four_bits.earlier",  # they ask
                       "minigpt.checks.activations.asking",
                       *(f"minigpt.checks.capstone.{name}" for name in ("situation", "small", "targets")),  # the lab's
                       "minigpt.checks.qlora.assembling", "minigpt.checks.qlora.recipe",
                       *(f"minigpt.checks.allocating.{name}" for name in SERVED),
                       *(f"minigpt.checks.sharding.{name}" for name in ("asking", "running"))}  # fmt: skip
    folder = ROOT / "minigpt" / "checks"
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        closed = bool(re.search(r"^knows\(__name__", path.read_text(), re.MULTILINE))
        subject = path.parent not in (folder, folder / "probes") and path.stem != "__init__"
        subject = subject or path in (folder / "runs.py", folder / "training.py")
        assert closed == (subject and module not in open_to_answers), module
