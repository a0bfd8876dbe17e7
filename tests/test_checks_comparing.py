"""What graded cells compare: right answers of any type pass, wrong ones are named, hostile ones get nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minigpt import checks
from minigpt.checks import Wrong, comparing
from minigpt.memory import Ledger
from tests.judged import AnyText, Same, SameFloat, refuses


@pytest.mark.parametrize("right", [10, np.int64(10), np.uint8(10), torch.tensor(10), torch.tensor(10).short()])
def test_integers_of_every_kind_pass(right):
    checks.integer(right, 10, "ten")


@pytest.mark.parametrize(
    "wrong, id, says",
    [
        (11, "too-many", "1 too many"),
        (10.0, "float-for-int", r"10\.0 is a float; .*divide with //"),
        (9.5, "float-for-int", "is a float"),
        (True, "truth-value", "truth value"),
        (np.bool_(True), "truth-value", "truth value"),
        (torch.tensor(True), "truth-value", "truth value"),
        (float("nan"), "not-finite", "nan is not a number of anything"),
        (torch.tensor(float("nan")), "not-finite", "nan is not a number of anything"),
        (float("inf"), "not-finite", "inf is not a number of anything"),
        ("10", "wrong-type", "of type str"),
        ([10], "wrong-type", "of type list"),
        (None, "wrong-type", "of type NoneType"),
        (torch.tensor([10, 10]), "wrong-type", "of type Tensor"),
        (Same(3), "too-few", "7 too few"),
        (SameFloat(3.0), "float-for-int", r"3\.0 is a float"),
    ],
)
def test_what_is_not_the_whole_number_is_refused(wrong, id, says):
    with refuses(id, says):
        checks.integer(wrong, 10, "ten")


def test_values_become_plain_ones():
    given = {"a": Same(3), AnyText("b"): [SameFloat(2.5), (np.int64(4), True)], "c": Ledger(Same(1)), "d": None}
    made = comparing.plain(given)
    assert repr(made) == repr({"a": 3, "b": [2.5, (4, True)], "c": Ledger(1), "d": None})
    assert [type(key) for key in made] == 4 * [str] and type(made["a"]) is int and type(made["c"].weights) is int
    tensor = torch.ones(2)
    assert comparing.plain(tensor) is tensor


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
    "wrong, id, says",
    [
        (1630, "wrong-type", "of type int; a dict of bytes"),
        ({**TRUTH, "adam": 1}, "wrong-keys", "it has 'adam'; the buckets are weights, gradients, optimizer"),
        ({"weights": 400}, "wrong-keys", "it lacks gradients, optimizer;"),
        ({**TRUTH, "weights": 1630}, "total", "step, weights: that is the total; the bucket asked for is weights"),
        ({**TRUTH, "weights": 820}, "figure-of-optimizer", "step, weights: that is the figure of optimizer"),
        ({**TRUTH, "optimizer": 420, "weights": 800}, "twice+too-few+total-right",
         "The total is right: the bytes are in the wrong buckets"),
        ({**TRUTH, "optimizer": 410}, "figure-of-gradients", "optimizer: .*that is the figure of gradients"),
        ({**TRUTH, "gradients": 398}, "frozen", "gradients: frozen weights have no gradients"),
        ({**TRUTH, "gradients": float("nan")}, "not-finite", "nan is not a number"),
        ({**TRUTH, "gradients": Same(1)}, "too-few", "gradients: 409 bytes too few"),
        (Ledger(**TRUTH, activations=3), "wrong-keys", "it has 'activations'"),
    ],
)  # fmt: skip
def test_each_bucket_is_judged(wrong, id, says):
    hints = {"gradients": {"frozen": ("frozen weights have no gradients", 398)}}
    with refuses(id, says):
        checks.buckets(wrong, TRUTH, "step", wrong=hints)


def test_all_wrong_buckets_are_named_or_only_those_asked_for():
    got = {"weights": 1, "gradients": 2, "optimizer": 820}
    with pytest.raises(Wrong) as error:
        checks.buckets(got, TRUTH, "step")
    assert len(str(error.value).splitlines()) == 2
    checks.buckets(got, TRUTH, "step", only=["optimizer"])
    with refuses("too-few", "^step, gradients: 408 bytes too few"):
        checks.buckets(got, TRUTH, "step", only=["gradients", "optimizer"])


def test_close_takes_tensors_numbers_and_mappings():
    truth = torch.randn(3, 4, generator=torch.manual_seed(0))
    checks.close(truth * (1 + 1e-6), truth, "g")
    checks.close(np.float64(2.0), 2.0, "loss")
    checks.close(torch.tensor(2.0, requires_grad=True), 2, "loss")
    checks.close({"a": truth, "b": 2}, {"a": truth}, "gradients")
    checks.close(torch.zeros(0), torch.zeros(0), "empty")


@pytest.mark.parametrize(
    "change, id, says",
    [
        (lambda t: t * 2, "twice", "twice what it should be"),
        (lambda t: -t, "sign", "sign is turned round"),
        (lambda t: t * 0, "zero", "zero everywhere"),
        (lambda t: t * 4, "four-times", "4 times"),
        (lambda t: t.T, "transposed", "transposed"),
        (lambda t: t[:2], "wrong-shape", r"its shape is \(2, 4\), not \(3, 4\)"),
        (lambda t: t / 3, "divided-twice", "divided by the number of micro-batches twice"),
        (lambda t: t * float("nan"), "not-finite", "NaN or infinity"),
        (lambda t: torch.where(t == t[0, 0], float("nan"), t), "not-finite", "NaN or infinity"),
        (lambda t: t + 0.01, "differs", "differs by up to 0.01"),
        (lambda t: None, "none", "there is none"),
        (lambda t: "text", "wrong-type", "of type str"),
    ],
)
def test_wrong_tensors_are_named(change, id, says):
    truth = torch.randn(3, 4, generator=torch.manual_seed(0))
    with refuses(id, says):
        hints = {"divided-twice": ("divided by the number of micro-batches twice", truth / 3)}
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
        with pytest.raises(Wrong, match="g: "):
            checks.close(wrong, torch.full((2,), 3.0) if isinstance(wrong, torch.Tensor) else 3.0, "g")


def test_the_dtype_is_judged_where_it_is_asked_for():
    with refuses("wrong-dtype", "dtype is torch.float32; torch.bfloat16 is asked for"):
        checks.close(torch.ones(2), torch.ones(2), "w", dtype=torch.bfloat16)


def test_choice_compares_plain_texts():
    checks.choice("B", "B", "card")
    checks.choice(None, None, "card")
    for wrong, id, says in ((AnyText("A"), "units", "'A' is not right: GB for GiB"), (3, "wrong-type", "of type int"),
                            ("C", "wrong-choice", "the answer is 'B'")):  # fmt: skip
        with refuses(id, says):
            checks.choice(wrong, "B", "card", wrong={"units": ("GB for GiB", "A"), "later": ("another", "A")})
    with refuses("wrong-choice", "'B' is not right"):
        checks.choice("B", None, "card")
