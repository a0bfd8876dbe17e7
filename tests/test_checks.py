"""What graded cells call: right answers pass whatever their type, wrong ones are named, hostile ones get nothing."""

import ast
import contextlib
import math
import re
import sys
import warnings

import numpy as np
import pytest
import torch

import minigpt.checks.training  # noqa: F401  (it closes minigpt.train)
from minigpt import checks
from minigpt.checks import Wrong, comparing, naming
from minigpt.checks.counting import cards, parameters, saved, static
from minigpt.memory import Architecture, Ledger, TrainingPlan, predict
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, train
from tools import ROOT
from tools.bank_entries import ID

TINY = GPTConfig(n_layer=2, n_embd=12, n_head=2, context=7, vocab_size=31)


@contextlib.contextmanager
def refuses(id: str, says: str | None = None):
    """The verdict has this id, and its sentence says this."""
    with pytest.raises(Wrong, match=says) as caught:
        yield
    assert caught.value.id == id


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


class AnyText(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


# ---------------------------------------------------------------- whole numbers


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


# ---------------------------------------------------------------- naming the mistake


@pytest.mark.parametrize(
    "got, id",
    [
        (round(10**9 * 2**30 / 10**9), "gib-for-gb"),
        (round(10**9 * 10**9 / 2**30), "gb-for-gib"),
        (8 * 10**9, "bits"),
        (10**9 // 8, "eighth"),
        (2 * 10**9, "twice"),
        (10**9 // 2, "half"),
        (4 * 10**9, "four-times"),
        (10**9 // 4, "quarter"),
        (0, "nothing-counted"),
        (10**9 + 7, "too-many"),
    ],
)
def test_ratios_of_bytes_are_named(got, id):
    with refuses(id, f"^bytes: .* \\(yours {got:,}, right 1,000,000,000 bytes\\)$"):
        checks.integer(got, 10**9, "bytes", unit="bytes")


@pytest.mark.parametrize("got, unit", [(13.48, "GB"), (12.55, "GiB"), (13476.8, "MB"), (12852.5, "MiB")])
def test_large_units_are_named(got, unit):
    with refuses(f"in-{unit.lower()}", f"is in {unit}; whole bytes"):
        checks.integer(got, 13_476_831_232, "weights", unit="bytes")


def test_ratios_of_counts_that_are_no_bytes_are_not_called_bits():
    with refuses("too-many", "^count: 70 too many"):
        checks.integer(80, 10, "count")


def test_one_slip_or_two_are_named_and_a_listed_value_first():
    slips = {"no-head": ("the head is missing", -100), "no-norm": ("a norm is missing", -7), "none": ("nothing", 0)}
    assert naming.diagnose(900, 1000, slips=slips) == ("no-head", "the head is missing (yours 900, right 1,000)")
    id, sentence = naming.diagnose(893, 1000, slips=slips)
    assert id == "no-head+no-norm" and sentence.startswith("the head is missing, and a norm is missing (")
    assert naming.diagnose(900, 1000, {"listed": ("a listed value", 900)}, slips)[0] == "listed"
    assert naming.diagnose(901, 1000, slips=slips) == ("too-few", "99 too few (yours 901, right 1,000)")


@pytest.mark.parametrize("model", [TINY, "llama-3-8b", "llama-7b", "qwen2.5-0.5b", "qwen3-8b"])
def test_slips_are_differences_from_the_right_count(model):
    a = Architecture.of(model)
    slips = {id: extra for id, (_, extra) in parameters.count_slips(a).items()}
    head = a.vocab_size * a.n_embd
    assert (slips["tied-head-twice"] == head) if a.tied else (slips["no-head"] == -head)
    assert ("wide-kv" in slips) == (a.n_kv_head != a.n_head)
    if "wide-kv" in slips:
        qkv_bias = any(t.name.endswith("k.bias") for t in a.block_tensors())
        assert slips["wide-kv"] == 2 * a.n_layer * (a.n_embd + qkv_bias) * a.head_dim * (a.n_head - a.n_kv_head)


def test_no_two_slips_of_a_lab_case_hide_each_other():
    config = dict(
        model_type="llama", vocab_size=500, hidden_size=72, intermediate_size=130, num_hidden_layers=3,
        num_attention_heads=9, num_key_value_heads=3, head_dim=10, tie_word_embeddings=False,
    )  # fmt: skip
    values = [value for _, value in parameters.count_slips(config).values() if value]
    assert len(set(values)) == len(values)


def test_measured_is_the_meters_reading_of_both_families():
    count = sum(parameter.numel() for parameter in GPT(TINY).parameters())
    assert parameters.measured(TINY).trainable == 4 * count == 4 * parameters.counted(TINY)
    assert parameters.measured(TINY, "bf16").trainable == 2 * count
    assert parameters.measured(TINY) is parameters.measured(GPTConfig(**TINY.__dict__))  # measured once


def test_a_chosen_card_is_explained_by_the_first_mistake_that_chooses_it():
    shop = {"D": (80, "GB"), "C": (24, "GB"), "B": (16, "GiB"), "A": (16, "GB")}
    for nbytes, choice, id in ((17e9, "A", "gb-as-gib"), (17e9, "C", "gib-as-gb"), (17e9, "D", "first"),
                               (16e9, "B", "exact-fit"), (17e9, None, "none"), (81e9, "D", "gb-as-gib"),
                               (100e9, "D", "largest"), (15e9, "C", "wrong-choice")):  # fmt: skip
        with refuses(id):
            cards.smallest(lambda *_, choice=choice: choice, (int(nbytes), shop))


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
        ({**TRUTH, "gradients": Same(1)}, "too-few", "gradients: 409 too few"),
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
    with refuses("too-few", "^step, gradients: 408 too few"):
        checks.buckets(got, TRUTH, "step", only=["gradients", "optimizer"])


# ---------------------------------------------------------------- tensors and texts


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


# ---------------------------------------------------------------- calling


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


counter = iter(range(100))


@pytest.mark.parametrize(
    "answer, id, says",
    [
        (raising(NotImplementedError()), "not-written", "answer is not written yet"),
        (raising(KeyError("head_dim")), "raises-keyerror", r"answer fails with KeyError: 'head_dim' \(line \d+: raise"),
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


# ---------------------------------------------------------------- the closed book


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


# ---------------------------------------------------------------- verdicts


def says(*ids: str, points: float = 1, **options):
    """A part whose check raises a verdict with each of these ids in turn."""

    def check(case=None):
        if case:
            raise Wrong(case, f"{case} is wrong")

    return checks.part(points, check, each=ids, **options)


def test_all_parts_right_is_one_line_and_no_value(capsys):
    assert checks.score("all is right", says(points=2), says()) is None
    assert capsys.readouterr().out == "Passed: all is right\n"


def test_some_parts_right_is_a_number_that_nbgrader_takes(capsys):
    points = checks.score("all is right", says(points=2), says("late"), says("late", "never"), says(points=0.5))
    assert isinstance(points, float) and repr(points) == "2.5"
    assert points.verdict.ids == {"late"} and str(points.verdict) == "late is wrong"  # said once
    assert capsys.readouterr().out == "2.5 of 4.5 points\nlate is wrong\n"


def test_no_part_right_is_the_verdict_alone(capsys):
    with refuses("a+b+c", "^a\\+b is wrong\nc is wrong$"):
        checks.score("all is right", says("a+b"), says("c"))
    assert capsys.readouterr().out == ""


def test_a_part_that_builds_on_another_counts_after_it_only():
    first, second = says("first"), says()
    with refuses("first"):
        checks.score("", first, says(after=first), says("unseen", after=(second, first)))
    assert checks.score("", second, says(after=second), says("third", after=second)) == 2


def test_a_verdict_is_a_sentence_and_no_traceback():
    assert Wrong("id", "the head is counted twice")._render_traceback_() == ["Wrong: the head is counted twice"]


def test_an_error_of_the_checks_is_no_verdict():
    with pytest.raises(ZeroDivisionError):
        checks.score("", says(), checks.part(1, lambda: 1 / 0))


def test_every_id_is_in_kebab_case_and_every_verdict_has_one():
    for path in (ROOT / "minigpt" / "checks").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == "Wrong":
                assert len(call.args) == 2, (path.name, call.lineno)
                id = getattr(call.args[0], "value", None)
                assert not isinstance(id, str) or re.fullmatch(ID, id), (path.name, id)
