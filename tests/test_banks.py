"""Every lab's bank: each wrong answer loses its points with a diagnosis, each right one keeps them.

Also the untouched student version, which fails every check, and the judge itself on a lab made for it.
"""

import pytest

from tools import ROOT, bank
from tools.build import documents

TEXTS = bank.banks()
WRONG, RIGHT = 5, 2  # at least, for every exercise


def test_every_lab_has_a_bank():
    labs = [ROOT / document.path for document in documents(ROOT) if document.is_lab]
    assert labs and TEXTS == labs


@pytest.fixture(scope="module", params=TEXTS, ids=[path.stem for path in TEXTS])
def lab(request) -> bank.Lab:
    return bank.Lab(request.param)


@pytest.fixture(scope="module")
def entries(lab) -> list[bank.Entry]:
    return bank.read_bank(ROOT / "content" / "labs" / f"{lab.name}.bank.py")


@pytest.mark.slow
def test_wrong_answers_lose_their_points_and_right_ones_keep_them(lab, entries, capsys):
    verdicts = []
    with capsys.disabled():  # the table belongs in the test's output, green or not
        print()
        for entry in entries:
            verdicts.append(bank.judge(lab, entry))
            print(verdicts[-1].line, flush=True)
    faults = [verdict.line for verdict in verdicts if verdict.fault]
    assert not faults, "\n".join(faults)


def test_every_exercise_has_five_wrong_and_two_right_answers(lab, entries):
    for exercise in lab.answers:
        kinds = [entry.kind for entry in entries if entry.exercise == exercise]
        assert kinds.count("wrong") >= WRONG and kinds.count("right") >= RIGHT, (exercise, kinds)
        titles = [entry.title for entry in entries if entry.exercise == exercise]
        assert len(set(titles)) == len(titles)


def test_the_untouched_student_version_fails_every_check(lab):
    for exercise in lab.answers:
        for hidden in (True, False):
            message, kind, _ = lab.run(exercise, lab.untouched[exercise], hidden)
            assert kind == "AssertionError" and "not written yet" in message, (exercise, message)


@pytest.mark.slow
def test_the_instructors_answers_pass_silently(lab):
    for exercise, answer in lab.answers.items():
        assert lab.run(exercise, answer) == (None, "", ""), exercise


# ---------------------------------------------------------------- the judge

LAB = """\
---
title: "Lab 01: judge"
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
:points: 1

assert double(2) == 4, "twice 2 is 4"
### BEGIN HIDDEN TESTS
assert double(3) == 6, "twice 3 is 6"
### END HIDDEN TESTS
```
"""
BANK = """\
# %% exercise=double wrong="squares" says="twice 3 is 6"
def double(x):
    return x * x

# %% exercise=double wrong="is right after all" says="twice"
def double(x):
    return x + x

# %% exercise=double wrong="has another diagnosis" says="thrice"
def double(x):
    return 3 * x

# %% exercise=double wrong="crashes" says="oops"
def double(x):
    raise KeyError("oops")

# %% exercise=double wrong="exits" says="oops"
raise SystemExit(0)

# %% exercise=double wrong="exits when called" says="oops"
def double(x):
    exit(0)

# %% exercise=double wrong="divides by zero" says="oops"
1 / 0

# %% exercise=double wrong="does not parse" says="oops"
x = (

# %% exercise=double right="adds"
def double(x):
    return x + x

# %% exercise=double right="is wrong after all"
def double(x):
    return 5

# %% exercise=double right="warns in the check"
import math, warnings
math.isclose = None
def double(x):
    warnings.warn("slow")
    return x + x
"""
FAULTS = [None, "a wrong answer passes", "does not say 'thrice'", "ends in KeyError",
          "ends in SystemExit", "ends in SystemExit", "ends in ZeroDivisionError", "ends in SyntaxError", None,
          "a right answer fails",
          "the check writes to stderr"]  # fmt: skip


def test_the_judge_sees_every_kind_of_fault(course):
    import math

    root = course(**{"labs/lab01-judge": LAB})
    path = root / "content" / "labs" / "lab01-judge.bank.py"
    path.write_text(BANK, encoding="utf8")
    lab = bank.Lab(root / "content" / "labs" / "lab01-judge.md", root)
    verdicts = [bank.judge(lab, entry) for entry in bank.read_bank(path)]
    assert len(verdicts) == len(FAULTS)
    for verdict, fault in zip(verdicts, FAULTS):
        assert (verdict.fault is None) if fault is None else (fault in verdict.fault), verdict
    assert [verdict.hidden_only for verdict in verdicts] == [True] + 10 * [False]
    assert math.isclose(1.0, 1.0)  # what an answer patches is put back


@pytest.mark.parametrize(
    "text, says",
    [
        ("x = 1\n", "has no entries"),
        ('# %% exercise=double wrong="x"\n', "line 1: write .* exercise= and"),
        ('\n# %% exercise=double right="x" says="y"\n', "line 2: write .* exercise= and"),
        ('# %% exercise=double wrong="x" says=""\n', "line 1: .*none of them empty"),
        ('# %% exercise=double wrong="x" right="x" says="y"\n', "line 1: write"),
        ('# %% exercise=double right="x"\nx = 1\n#%% exercise=double right="y"\n', "line 3: write '# %% '"),
        ('# %% right="x"\n', "line 1"),
        ('# %% exercise=double wrong="x" says="("\n', "line 1"),
        ('# %% exercise=double wrong="x says=1\n', "line 1: No closing quotation"),
    ],
)
def test_a_broken_bank_is_refused_with_its_line(text, says, tmp_path):
    path = tmp_path / "lab01-x.bank.py"
    path.write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match=says):
        bank.read_bank(path)


def test_a_set_up_that_fails_is_the_labs_fault(course):
    root = course(**{"labs/lab01-judge": LAB.replace("unit = 1", "raise SystemExit(0)")})
    lab = bank.Lab(root / "content" / "labs" / "lab01-judge.md", root)
    with pytest.raises(ValueError, match="lab01-judge: the cells up to double fail: SystemExit: 0"):
        lab.run("double", "")


def test_the_command_refuses_an_unknown_lab(capsys):
    assert bank.main(["lab99"]) == 2
    assert "no bank of lab99" in capsys.readouterr().err
