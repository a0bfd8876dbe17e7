"""Every lab's bank: each wrong answer gets the verdict and the points that it should, each right one all points.

Also what no bank has to hold for each exercise: an untouched answer, lazy ones, and one that looks for the truth in the
frames that call it; and the judge itself on a lab made for it.
"""

import ast
import sys

import pytest

from minigpt.checks import verdict
from tools import ROOT, bank
from tools.bank_apart import Apart
from tools.bank_entries import Entry, read_bank
from tools.bank_lab import Lab, Outcome
from tools.texts import documents

TEXTS = bank.banks()
WRONG, RIGHT = 5, 2  # at least, for every exercise


def test_every_lab_has_a_bank():
    labs = [ROOT / document.path for document in documents(ROOT) if document.is_lab]
    assert labs and TEXTS == labs


@pytest.fixture(scope="module", params=TEXTS, ids=[path.stem for path in TEXTS])
def lab(request) -> Lab:
    return Lab(request.param)


@pytest.fixture(scope="module")
def entries(lab) -> list[Entry]:
    return read_bank(ROOT / "content" / "labs" / f"{lab.name}.bank.py", lab.answers)


@pytest.mark.slow
def test_wrong_answers_get_their_verdict_and_right_ones_all_points(lab, entries):
    faults = [judgement.line for entry in entries if (judgement := bank.judge(lab, entry)).fault]
    assert entries and not faults, "\n".join(faults)


@pytest.mark.slow
def test_answers_in_a_process_of_their_own_are_judged_the_same(lab, entries):
    """All right ones, and a wrong one for each exercise; ``python -m tools.bank --apart`` has all."""
    wrong = {entry.exercise: entry for entry in entries if entry.kind == "wrong"}
    some = [entry for entry in entries if entry.kind == "right"] + [*wrong.values()]
    apart = Apart(ROOT / "content" / "labs" / f"{lab.name}.md")
    try:
        judged = [bank.judge(apart, entry) for entry in some]
    finally:
        apart.close()
    faults = [judgement.line for judgement in judged if judgement.fault]
    assert judged and not faults, "\n".join(faults)


def test_every_exercise_has_five_wrong_and_two_right_answers(lab, entries):
    for exercise in lab.answers:
        kinds = [entry.kind for entry in entries if entry.exercise == exercise]
        assert kinds.count("wrong") >= WRONG and kinds.count("right") >= RIGHT, (exercise, kinds)
        titles = [entry.title for entry in entries if entry.exercise == exercise]
        assert len(set(titles)) == len(titles)


def test_the_untouched_student_version_gets_no_point(lab):
    for exercise in lab.answers:
        for hidden in (True, False):
            outcome = lab.run(exercise, lab.untouched[exercise], hidden)
            assert outcome.points == 0 and outcome.verdict.ids == {"not-written"}, (exercise, outcome)


LAZY = ("return 0", "return None", "return {}", "return args[0] if args else 0", "raise ValueError", "return ()")


class Replaced(ast.NodeTransformer):
    """Every function of an answer gets another beginning, or another body; ``args`` are its arguments."""

    def __init__(self, start: str, keep: bool):
        self.start, self.keep = start, keep

    def visit_FunctionDef(self, function):
        names = ", ".join(arg.arg for arg in function.args.args if arg.arg != "self")
        start = ast.parse(f"args = ({names},)\n{self.start}" if names else f"args = ()\n{self.start}").body
        function.body = [*start, *function.body] if self.keep else start
        return function


def replaced(code: str, start: str, keep: bool = False) -> str:
    return ast.unparse(ast.fix_missing_locations(Replaced(start, keep).visit(ast.parse(code))))


@pytest.mark.slow
def test_a_lazy_answer_gets_no_point(lab):
    for exercise, answer in lab.answers.items():
        for body in LAZY:
            outcome = lab.run(exercise, replaced(answer, body))
            assert outcome.points == 0 and outcome.verdict, (exercise, body, outcome)


TRUTHS = {"truth", "expected", "wrong", "right", "slips", "hints", "theirs", "codes", "packed", "reading"}


@pytest.mark.slow
def test_the_instructors_answers_pass_silently_and_see_no_truth(lab, monkeypatch):
    """What an answer that looks into the frames which call it would find is no truth; and all points are given away."""
    seen, totals = set(), []

    def look():
        frame = sys._getframe(1)
        while frame := frame.f_back:
            if "minigpt/checks" in frame.f_code.co_filename:
                given = {id(value) for value in frame.f_locals.get("args", ())}
                seen.update((frame.f_code.co_name, name) for name, value in frame.f_locals.items()
                            if name in TRUTHS and value is not None and id(value) not in given)  # fmt: skip

    def part(points, *args, **options):
        totals.append(points)
        return original(points, *args, **options)

    original = verdict.part
    monkeypatch.setattr("minigpt.checks.part", part)
    monkeypatch.setattr("builtins.look", look, raising=False)
    for exercise, answer in lab.answers.items():
        totals.clear()
        outcome = lab.run(exercise, replaced(answer, "look()", keep=True))
        assert outcome == Outcome(lab.points[exercise]), (exercise, outcome)
        assert sum(totals) == lab.points[exercise], (exercise, totals)
    assert not seen


# ---------------------------------------------------------------- the judge

LAB = """\
---
title: "Lab 01: judge"
read: 1
minutes: {cpu: 1, gpu: 1}
memory_gb: {ram: 1, vram: 1}
---

```{code-cell}
:tags: [setup]

unit = 1
```

```{code-cell}
:name: double
:tags: [exercise]

def double(x):
    ### BEGIN SOLUTION
    return 2 * x * unit
    ### END SOLUTION
```

```{code-cell}
:name: check-double
:tags: [check]
:points: 3

from minigpt import checks


@checks.check
def check_double(double):
    def twice(answer, x):
        checks.integer(checks.call(answer, x), 2 * x, f"twice {x}", slips={"once": ("x is counted once", -x)})

    cases = [2]
    ### BEGIN HIDDEN TESTS
    cases += [3]
    ### END HIDDEN TESTS
    doubles, zero = checks.part(2, twice, double, each=cases), checks.part(1, twice, double, each=[0])
    return checks.score("double doubles", doubles, zero)
```
"""
BANK = """\
# %% double
# wrong: squares -> too-many, keeps 1
#     `2 * x` => `x * x`
# wrong: once -> once, keeps 1
#     `2 * ` => ``
# wrong: is right after all -> once
#     `2 * x` => `x + x`
# wrong: has another verdict -> once
#     `2` => `3`
# wrong: keeps a point -> once
#     `2 * x` => `x`
# wrong: crashes -> raises-keyerror
def double(x):
    raise KeyError("oops")

# wrong: exits -> ends-program
raise SystemExit(0)

# wrong: exits when called -> ends-program
#     `return 2 * x` => `exit(0)`
# wrong: divides by zero -> raises-zerodivisionerror
1 / 0

# wrong: does not parse -> raises-syntaxerror
#     `2 * x` => `(2`

# right: adds
def double(x):
    return x + x

# right: is wrong after all
def double(x):
    return 5

# right: warns in the check
import math, sys, warnings
from minigpt import checks
math.isclose = None
checks.call = lambda answer, x: answer(x)
def double(x):
    warnings.warn("slow")
    return x + x
"""
FAULTS = [None, None, "the verdict is nothing; once is asked for", "the verdict is too-many: twice 2: 2 too many",
          "it gets 1 of 3 points, not 0", None, "an error that is no verdict: SystemExit: 0", None,
          "an error that is no verdict: ZeroDivisionError", "an error that is no verdict: SyntaxError", None,
          "the verdict is too-many: twice 2: 1 too many", "the check writes to stderr"]  # fmt: skip


def test_the_judge_sees_every_kind_of_fault(course):
    import math

    root = course(**{"labs/lab01-judge.md": LAB})
    path = root / "content" / "labs" / "lab01-judge.bank.py"
    path.write_text(BANK, encoding="utf8")
    lab = Lab(root / "content" / "labs" / "lab01-judge.md", root)
    judgements = [bank.judge(lab, entry) for entry in read_bank(path, lab.answers)]
    assert len(judgements) == len(FAULTS)
    for judgement, fault in zip(judgements, FAULTS):
        assert (judgement.fault is None) if fault is None else (fault in judgement.fault), judgement
    caught = [bank.only_hidden_tests_catch(lab, judgement.entry) for judgement in judgements if not judgement.fault]
    assert caught == [True] + (FAULTS.count(None) - 1) * [False]
    assert math.isclose(1.0, 1.0)  # what an answer patches is put back


def test_a_set_up_that_fails_is_the_labs_fault(course):
    root = course(**{"labs/lab01-judge.md": LAB.replace("unit = 1", "raise SystemExit(0)")})
    lab = Lab(root / "content" / "labs" / "lab01-judge.md", root)
    with pytest.raises(ValueError, match="lab01-judge: the cells up to double fail: SystemExit: 0"):
        lab.run("double", "")


def test_the_command_refuses_an_unknown_lab(capsys):
    assert bank.main(["lab99"]) == 2
    assert "no bank of lab99" in capsys.readouterr().err
