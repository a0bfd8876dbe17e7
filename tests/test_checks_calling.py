"""How graded cells call an answer: silenced, watched, and with the book closed."""

from __future__ import annotations

import re
import statistics
import sys
import warnings

import pytest
import torch

import minigpt.checks.training  # noqa: F401  (it closes minigpt.train)
from minigpt import checks
from minigpt.checks.counting import parameters, saved, static
from minigpt.memory import Architecture, Ledger, TrainingPlan, predict
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT
from minigpt.train import TrainPlan, train
from tests.judged import TINY, Same, refuses
from tools import ROOT


def test_call_silences_what_a_right_answer_says(capfd, recwarn):
    def answer(n):
        print("working")
        print("working", file=sys.stderr)
        warnings.warn("working", stacklevel=1)
        return n + 1

    assert checks.call(answer, 3) == 4
    assert capfd.readouterr() == ("", "") and not recwarn.list


def raising(error):
    def answer(n):
        raise error

    return answer


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda: torch.ones(2, 3, dtype=torch.bfloat16) @ torch.ones(3, 2),
         r"a bfloat16 tensor meets a float32 one in a product; cast one of them, as x\.float\(\)"),
        (lambda: torch.ones(2, 3) @ torch.ones(2, 3), "2x3 times 2x3: the inner two sizes differ"),
        (lambda: torch.nn.Linear(2, 3).weights, "a plain nn.Linear has no weights; it knows in_features"),
        (lambda: Ledger(1).totals, "nothing has set totals before it is asked for"),
        (lambda: undefined, "no cell that was run gives undefined a value"),  # noqa: F821
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
        (lambda n: None, "returns-nothing", "returns nothing"),
        (lambda n: n.append(1) or 3, "changes-arguments", "changes its arguments"),
        (lambda n: n.__setitem__(0, Same(4)) or 3, "changes-arguments", "changes its arguments"),
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


def swallow(function):
    def answer(*args):
        try:
            return function(*args)
        except AssertionError:
            return 7

    return answer


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


def test_a_module_says_itself_that_it_knows_truths():
    """Every module of a subject that compares is closed, and the engine is not: it runs while answers do."""
    engine = {"__init__", "calling", "closing", "comparing", "naming", "verdict"}
    open_to_answers = {"minigpt.checks.four_bits.asking",  # asks them
                       "minigpt.checks.qlora.assembling", "minigpt.checks.qlora.recipe"}  # fmt: skip
    folder = ROOT / "minigpt" / "checks"
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        closed = bool(re.search(r"^knows\(__name__", path.read_text(), re.MULTILINE))
        assert closed == (path.stem not in engine and module not in open_to_answers), module
