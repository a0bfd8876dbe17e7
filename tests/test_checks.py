"""What graded cells call: right answers pass whatever their type, wrong ones are named, hostile ones get nothing."""

import math
import sys
import warnings

import numpy as np
import pytest
import torch

from minigpt import checks
from minigpt.memory import Architecture, Ledger, TrainingPlan, predict
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT, GPTConfig

TINY = GPTConfig(n_layer=2, n_embd=12, n_head=2, context=7, vocab_size=31)


def refuses(says: str):
    return pytest.raises(AssertionError, match=says)


class Same(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 10

    __hash__ = int.__hash__


class SameFloat(float):
    def __eq__(self, other):
        return True

    def __float__(self):
        return 10.0

    __hash__ = float.__hash__


# ---------------------------------------------------------------- whole numbers


@pytest.mark.parametrize("right", [10, np.int64(10), np.uint8(10), torch.tensor(10), torch.tensor(10).short()])
def test_integers_of_every_kind_pass(right):
    checks.integer(right, 10, "ten")


@pytest.mark.parametrize(
    "wrong, says",
    [
        (11, "1 too many"),
        (10.0, r"10\.0 is a float; .*divide with //"),
        (9.5, "is a float"),
        (True, "truth value"),
        (np.bool_(True), "truth value"),
        (torch.tensor(True), "truth value"),
        (float("nan"), "nan is not a number of anything"),
        (torch.tensor(float("nan")), "nan is not a number of anything"),
        (float("inf"), "inf is not a number of anything"),
        ("10", "of type str"),
        ([10], "of type list"),
        (None, "of type NoneType"),
        (torch.tensor([10, 10]), "of type Tensor"),
        (Same(3), "7 too few"),
        (SameFloat(3.0), r"3\.0 is a float"),
    ],
)
def test_what_is_not_the_whole_number_is_refused(wrong, says):
    with refuses(says):
        checks.integer(wrong, 10, "ten")


# ---------------------------------------------------------------- naming the mistake


@pytest.mark.parametrize(
    "got, says",
    [
        (round(10**9 * 2**30 / 10**9), r"off by exactly 1\.0737: GiB where GB"),
        (round(10**9 * 10**9 / 2**30), r"off by exactly 1\.0737: GB where GiB"),
        (8 * 10**9, "those are bits"),
        (10**9 // 8, "an eighth"),
        (2 * 10**9, "twice too much"),
        (10**9 // 2, "half"),
        (4 * 10**9, "4 times too much"),
        (10**9 // 4, "a quarter"),
        (0, "nothing is counted"),
        (10**9 + 7, "^bytes: 7 too many"),
    ],
)
def test_ratios_of_bytes_are_named(got, says):
    with refuses(says):
        checks.integer(got, 10**9, "bytes", unit="bytes")


@pytest.mark.parametrize("got, unit", [(13.48, "GB"), (12.55, "GiB"), (13476.8, "MB"), (12852.5, "MiB")])
def test_large_units_are_named(got, unit):
    with refuses(f"is in {unit}; whole bytes"):
        checks.integer(got, 13_476_831_232, "weights", unit="bytes")


def test_ratios_of_counts_that_are_no_bytes_are_not_called_bits():
    with refuses("^count: 70 too many"):
        checks.integer(80, 10, "count")


def test_one_slip_or_two_are_named_and_a_listed_value_first():
    slips = {"the head is missing": -100, "a norm is missing": -7, "nothing at all": 0}
    assert checks.diagnose(900, 1000, slips=slips).startswith("the head is missing (")
    assert checks.diagnose(893, 1000, slips=slips).startswith("the head is missing, and a norm is missing (")
    assert checks.diagnose(900, 1000, {900: "a listed value"}, slips).startswith("a listed value")
    assert checks.diagnose(901, 1000, slips=slips).startswith("99 too few (yours 901, right 1,000)")


@pytest.mark.parametrize("model", [TINY, "llama-3-8b", "llama-7b", "qwen2.5-0.5b", "qwen3-8b"])
def test_slips_are_differences_from_the_right_count(model):
    a = Architecture.of(model)
    slips = checks.parameter_slips(model)
    head = a.vocab_size * a.n_embd
    twice, missing = "the tied head is counted twice", "the head is missing"
    found = next(value for name, value in slips.items() if name.startswith(twice if a.tied else missing))
    assert found == (head if a.tied else -head)
    grouped = [name for name in slips if name.startswith("k_proj and v_proj are counted as wide as q_proj")]
    assert bool(grouped) == (a.n_kv_head != a.n_head)
    if grouped:
        wide = 2 * a.n_layer * (a.n_embd + a.qkv_bias) * a.head_dim * (a.n_head - a.n_kv_head)
        assert slips[grouped[0]] == wide


def test_no_two_slips_of_a_lab_case_hide_each_other():
    config = dict(
        model_type="llama", vocab_size=500, hidden_size=72, intermediate_size=130, num_hidden_layers=3,
        num_attention_heads=9, num_key_value_heads=3, head_dim=10, tie_word_embeddings=False,
    )  # fmt: skip
    values = [value for value in checks.parameter_slips(config).values() if value]
    assert len(set(values)) == len(values)


def test_measured_is_the_meters_reading_of_both_families():
    count = sum(parameter.numel() for parameter in GPT(TINY).parameters())
    assert checks.measured(TINY).trainable == 4 * count
    assert checks.measured(TINY, "bf16").trainable == 2 * count
    assert checks.measured(TINY) is checks.measured(GPTConfig(**TINY.__dict__))  # measured once


# ---------------------------------------------------------------- ledgers

TRUTH = {"weights": 400, "gradients": 410, "optimizer": 820}


@pytest.mark.parametrize(
    "right",
    [
        dict(TRUTH),
        {key: np.int64(value) for key, value in reversed(TRUTH.items())},
        {key: torch.tensor(value) for key, value in TRUTH.items()},
        Ledger(**TRUTH),
    ],
)
def test_ledgers_of_every_kind_pass(right):
    checks.buckets(right, TRUTH, "step")


@pytest.mark.parametrize(
    "wrong, says",
    [
        (1630, "of type int; a dict of bytes"),
        ({**TRUTH, "adam": 1}, "it has 'adam'; the buckets are weights, gradients, optimizer"),
        ({"weights": 400}, "it lacks gradients, optimizer;"),
        ({**TRUTH, "weights": 1630}, "step, weights: that is the total; the bucket asked for is weights"),
        ({**TRUTH, "weights": 820}, "step, weights: that is the figure of optimizer"),
        ({**TRUTH, "optimizer": 420, "weights": 800}, "The total is right: the bytes are in the wrong buckets"),
        ({**TRUTH, "optimizer": 410}, "optimizer: .*that is the figure of gradients"),
        ({**TRUTH, "gradients": 398}, "gradients: frozen weights have no gradients"),
        ({**TRUTH, "gradients": float("nan")}, "nan is not a number"),
        ({**TRUTH, "gradients": Same(1)}, "gradients: 409 too few"),
        (Ledger(**TRUTH, activations=3), "it has 'activations'"),
    ],
)
def test_each_bucket_is_judged(wrong, says):
    with refuses(says):
        checks.buckets(wrong, TRUTH, "step", wrong={"gradients": {398: "frozen weights have no gradients"}})


def test_all_wrong_buckets_are_named():
    with pytest.raises(AssertionError) as error:
        checks.buckets({"weights": 1, "gradients": 2, "optimizer": 820}, TRUTH, "step")
    assert len(str(error.value).splitlines()) == 2


# ---------------------------------------------------------------- tensors and texts


def test_close_takes_tensors_numbers_and_mappings():
    truth = torch.randn(3, 4, generator=torch.manual_seed(0))
    checks.close(truth * (1 + 1e-6), truth, "g")
    checks.close(np.float64(2.0), 2.0, "loss")
    checks.close(torch.tensor(2.0, requires_grad=True), 2, "loss")
    checks.close({"a": truth, "b": 2}, {"a": truth}, "gradients")
    checks.close(torch.zeros(0), torch.zeros(0), "empty")


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda t: t * 2, "twice what it should be"),
        (lambda t: -t, "sign is turned round"),
        (lambda t: t * 0, "zero everywhere"),
        (lambda t: t * 4, "4 times"),
        (lambda t: t.T, "transposed"),
        (lambda t: t[:2], r"its shape is \(2, 4\), not \(3, 4\)"),
        (lambda t: t / 3, "divided by the number of micro-batches twice"),
        (lambda t: t * float("nan"), "NaN or infinity"),
        (lambda t: torch.where(t == t[0, 0], float("nan"), t), "NaN or infinity"),
        (lambda t: t + 0.01, "differs by up to 0.01"),
        (lambda t: None, "there is none"),
        (lambda t: "text", "of type str"),
    ],
)
def test_wrong_tensors_are_named(change, says):
    truth = torch.randn(3, 4, generator=torch.manual_seed(0))
    with refuses(says):
        hints = {"divided by the number of micro-batches twice": truth / 3}
        checks.close(change(truth), truth, "g", wrong=hints)


def test_a_tensor_that_equals_everything_and_a_patched_torch_gain_nothing(monkeypatch):
    class Agreeable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return torch.zeros(())  # the difference to anything

    monkeypatch.setattr(torch, "allclose", lambda *args, **kwargs: True)
    monkeypatch.setattr(torch, "equal", lambda *args, **kwargs: True)
    monkeypatch.setattr(torch.testing, "assert_close", lambda *args, **kwargs: None)
    monkeypatch.setattr(math, "isclose", lambda *args, **kwargs: True)
    for wrong in (torch.ones(2).as_subclass(Agreeable), torch.ones(2), 5.0):
        with refuses("g: "):
            checks.close(wrong, torch.full((2,), 3.0) if isinstance(wrong, torch.Tensor) else 3.0, "g")


def test_the_dtype_is_judged_where_it_is_asked_for():
    with refuses("dtype is torch.float32; torch.bfloat16 is asked for"):
        checks.close(torch.ones(2), torch.ones(2), "w", dtype=torch.bfloat16)


def test_choice_compares_plain_texts():
    class AnyText(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    checks.choice("B", "B", "card")
    checks.choice(None, None, "card")
    for wrong, says in ((AnyText("A"), "'A' is not right: GB for GiB"), ("C", "the answer is 'B'"), (3, "of type int")):
        with refuses(says):
            checks.choice(wrong, "B", "card", wrong={"A": "GB for GiB"})
    with refuses("'B' is not right"):
        checks.choice("B", None, "card")


# ---------------------------------------------------------------- calling


def test_call_silences_what_a_right_answer_says(capfd, recwarn):
    def answer(n):
        print("working")
        print("working", file=sys.stderr)
        warnings.warn("working", stacklevel=1)
        return n + 1

    assert checks.call(answer, 3) == 4
    assert capfd.readouterr() == ("", "") and not recwarn.list


def test_passed_prints_one_line(capsys):
    checks.passed("count")
    assert capsys.readouterr().out == "Passed: count\n"


def raising(error):
    def answer(n):
        raise error

    return answer


counter = iter(range(100))


@pytest.mark.parametrize(
    "answer, says",
    [
        (raising(NotImplementedError()), "answer is not written yet"),
        (raising(KeyError("head_dim")), "answer fails with KeyError: 'head_dim'"),
        (raising(SystemExit(0)), "ends the program"),
        (lambda n: None, "returns nothing"),
        (lambda n: n.append(1) or 3, "changes its arguments"),
        (lambda n: n.__setitem__(0, Same(4)) or 3, "changes its arguments"),
        (lambda n: next(counter), "called again with the same arguments"),
        (lambda n: torch.full((2,), float(next(counter))), "called again with the same arguments"),
    ],
)
def test_call_watches_the_answer(answer, says):
    with refuses(says):
        checks.call(answer, [9007199254740993])


def test_call_accepts_steady_answers_of_many_kinds():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    for value in (3, 2**70, "x", (1, [2.5]), {"a": torch.ones(2)}, float("nan"), Ledger(1), object, odd):
        assert checks.same(checks.call(lambda value=value: value), value)
    assert not checks.same(odd, torch.tensor([1.0, float("inf"), 1.0])) and not checks.same(odd, -odd)
    assert checks.call(lambda: None, none_ok=True) is None
    with refuses("called again"):
        checks.call(lambda: 2**60 + next(counter))  # equal as floats


def swallow(function):
    def answer(*args):
        try:
            return function(*args)
        except AssertionError:
            return 7

    return answer


ASKING = {
    "predict": lambda: predict(TINY, TrainingPlan(seq_len=4)),
    "measure": lambda: measure(TINY, TrainingPlan(seq_len=4)),
    "checks.measured": lambda: checks.measured(TINY),
    "parameters": lambda: Architecture.of(TINY).parameters,
    "linear_parameters": lambda: Architecture.of(TINY).linear_parameters,
    "tensors": lambda: Architecture.of(TINY).tensors(),
    "block_tensors": lambda: Architecture.of(TINY).block_tensors(),
    "PRECISIONS": lambda: PRECISIONS["bf16"].weights,
    "a model": lambda: GPT(TINY),
}


@pytest.mark.parametrize("what", ASKING)
def test_the_book_is_closed_by_hand_and_open_again_after(what):
    for answer in (ASKING[what], swallow(ASKING[what])):
        with refuses("the answer asks (the course's|a model).* write the arithmetic yourself"):
            checks.call(answer, by_hand=True)
    assert ASKING[what]() is not None
    checks.call(ASKING[what], twice=False)  # where it is allowed, it works


def test_the_closed_book_leaves_plain_arithmetic_alone():
    def answer(config):
        return torch.tensor(config.n_embd * TrainingPlan(batch=2).batch), StepMemory(Ledger(1), Ledger(1), "step")

    assert checks.call(answer, TINY, by_hand=True)[0] == 24
