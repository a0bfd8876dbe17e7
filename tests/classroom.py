"""A class of one lab, made, graded and looked at: ``python -m tests.classroom 60`` (minutes; 20 are as good a test).

Most are honest: of a few kinds, each with other right and wrong answers from the lab's bank. Among them are one that
attacks, one that is no notebook, one with an endless loop and one that ends its process. The kinds are graded by
themselves first, then all together, stopped by Ctrl-C on the way, and gone on with. Two oracles: the bank says what
each answer is worth, and a kind gets in the class, to the word, what it got by itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

from tools import ROOT
from tools.bank_entries import Entry, read_bank
from tools.bank_lab import Lab
from tools.grade_one import GRADING
from tools.grading.grades import load
from tools.grading.task import SUBMITTED

ODD = {  # what stands in the answer to the first exercise
    "attacks": """
import os, shutil, subprocess, sys
from pathlib import Path
for name in ("gradebook.db", "submitted", "records", "scores.csv"):
    for folder in [Path("{root}", "build/grading"), *(parent / "build/grading" for parent in Path.cwd().parents)]:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True) if (folder / name).is_file() else None
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9999)  # left behind {root}"], start_new_session=True)
import minigpt.checks
minigpt.checks.score = lambda *args, **options: None
""",
    "does-not-end": "import time\nwhile True:\n    time.sleep(0.01)  # the machine is for the others, too\n",
    "exits": "import os\nos._exit(0)\n",
}


class Class:
    """``students``: {name: the notebook as text}; ``kind``: {honest student: the number of its kind}."""

    def __init__(self, lab: str, size: int, kinds: int, root: Path) -> None:
        self.lab, self.root = lab, root
        source = ROOT / "content" / "labs" / f"{lab}.md"
        self.course = Lab(source)
        self.entries = [each for each in read_bank(source.with_suffix(".bank.py"), self.course.answers) if honest(each)]
        self.blank = json.loads((ROOT / "labs" / lab / f"{lab}.ipynb").read_text(encoding="utf8"))
        self.answers = [self.chosen(number) for number in range(min(kinds, size))]
        odd = [*ODD, "broken"] if size > len(ODD) + 1 else []
        places = {size * (i + 1) // (len(odd) + 1): name for i, name in enumerate(odd)}  # not next to each other
        self.students: dict[str, str] = {}
        self.kind: dict[str, int] = {}
        for i in range(size):
            name = f"{i:02d}-{places.get(i, 'honest')}"
            if i in places:
                self.students[name] = '{"cells": 3}' if places[i] == "broken" else self.odd(places[i])
            else:
                self.kind[name] = len(self.kind) % len(self.answers)
                self.students[name] = self.text(self.answers[self.kind[name]])

    def chosen(self, number: int) -> dict[str, Entry | None]:
        """The answers of a kind: kind 0 has the instructor's, the others right and wrong ones in turn."""
        found: dict[str, Entry | None] = {}
        for i, exercise in enumerate(self.course.checks):
            those = [each for each in self.entries if each.exercise == exercise]
            right = [each for each in those if each.kind == "right"]
            wrong = [each for each in those if each.kind == "wrong"]
            pool = wrong if (number + i) % 3 == 1 else right
            found[exercise] = pool[number % len(pool)] if number and pool else None
        return found

    def text(self, answers: dict[str, Entry | None], before: dict[str, str] | None = None) -> str:
        data = deepcopy(self.blank)
        for cell in data["cells"]:
            if cell["id"] in answers:
                entry = answers[cell["id"]]
                cell["source"] = entry.code if entry else self.course.answers[cell["id"]]
            cell["source"] = (before or {}).get(cell["id"], "") + "".join(cell["source"])
        return json.dumps(data)

    def odd(self, name: str) -> str:
        return self.text(self.answers[0], {next(iter(self.course.checks)): ODD[name].replace("{root}", str(self.root))})

    def worth(self, kind: int) -> dict[str, float]:
        """What the bank says: {check: points}."""
        return {
            self.course.check_names[exercise]: self.course.points[exercise] if entry is None or entry.kind == "right"
            else entry.points for exercise, entry in self.answers[kind].items()
        }  # fmt: skip


def honest(entry: Entry) -> bool:
    return not {"does-not-end", "ends-program"} & entry.verdict and not entry.title.startswith("patches")


def hand_in(root: Path, lab: str, students: dict[str, str]) -> None:
    (root / "solutions").mkdir(parents=True)
    shutil.copytree(ROOT / "solutions" / lab, root / "solutions" / lab)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    for name, text in students.items():
        path = root / SUBMITTED / name / lab / f"{lab}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text)


def grade(root: Path, *options: str, until: int | None = None) -> tuple[int, float, str]:
    """(exit code, seconds, what it says). ``until``: Ctrl-C when so many are finished."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "tools.grade", "--root", str(root), *options]
    with tempfile.TemporaryFile("w+") as said:
        running = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)
        while running.poll() is None:
            if until is not None and len(rows(root, "scores")) >= until:
                os.killpg(running.pid, signal.SIGINT)
                until = None
            time.sleep(0.5)
        said.seek(0)
        return running.returncode, time.monotonic() - begun, said.read()


def rows(root: Path, name: str) -> list[dict]:
    path = root / GRADING / f"{name}.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def points(root: Path) -> dict[str, dict[str, tuple]]:
    """{student: {exercise: what was given, and said}}."""
    made: dict[str, dict[str, tuple]] = {}
    for row in rows(root, "points"):
        made.setdefault(row["student"], {})[row["exercise"]] = (row["score"], row["verdict"], row["said"])
    return made


def check(made: Class, alone: Path) -> list[str]:
    """What is not as it should be, a sentence each."""
    found, by_itself = points(made.root), points(alone)
    lines = {row["student"] for row in rows(made.root, "scores")}
    faults = [f"{name} has no line" for name in made.students if name not in lines]
    for name, kind in made.kind.items():
        if found.get(name) != by_itself[f"kind-{kind}"]:
            faults.append(f"{name}: {found.get(name)}, by itself {by_itself[f'kind-{kind}']}")
    for kind in range(len(made.answers)):
        given = {name: float(each[0] or 0) for name, each in by_itself[f"kind-{kind}"].items()}
        for name, worth in made.worth(kind).items():
            if given[name] != worth:
                faults.append(f"kind {kind}: {name} got {given[name]:g}; the bank says {worth:g}")
    first = made.course.check_names[next(iter(made.course.checks))]
    full = made.worth(0)
    for name in [name for name in made.students if name not in made.kind]:
        given = {check: float(each[0] or 0) for check, each in found.get(name, {}).items() if check in full}
        wanted = {} if name.endswith("broken") else full if name.endswith("attacks") else full | {first: 0.0}
        if given != wanted:
            faults.append(f"{name}: {given}, not {wanted}")
    left = subprocess.run(["ps", "-Ao", "args"], capture_output=True, text=True).stdout
    return faults + (["a process was left behind"] if f"# left behind {made.root}" in left else [])


def together(made: Class, options: list[str]) -> list[str]:
    """Grades the class, with a stop on the way, says how long it took, and returns what is wrong with that."""
    root, size = made.root, len(made.students)
    stopped, first, _ = grade(root, *options, until=size // 3)
    kept = rows(root, "scores")
    print(f"Ctrl-C after {first:.0f} s: exit code {stopped}, {len(kept)} of {size} finished", flush=True)
    code, second, said = grade(root, *options)
    print(f"gone on for {second:.0f} s: exit code {code}; together {(first + second) / size:.1f} s a submission")
    took = sorted(g.seconds or 0 for name in made.kind if (g := load(root, name, made.lab)))
    print(f"an honest one takes {took[0]:.0f} to {took[-1]:.0f} s, {statistics.median(took):.0f} in the median")
    for row in [row for row in rows(root, "scores") if row["student"] not in made.kind]:
        print(f"  {row['student']:20} {row['status']:8} {row['score'] or 'no score':>8}  {row['notes'][:120]}")
    faults = [f"{row['student']}: its line changed" for row in kept if row not in rows(root, "scores")]
    if (stopped, code) != (130, 1) or f"{len(kept)} of {size} have not changed" not in said:
        faults.append(f"exit codes {stopped} and {code}, not 130 and 1, or it did not go on:\n{said}")
    return faults


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.classroom", description=__doc__.splitlines()[0])
    parser.add_argument("size", type=int, help="how many hand in, at least 6")
    parser.add_argument("--kinds", type=int, default=6, help="of honest notebooks (default 6)")
    parser.add_argument("--lab", default="lab01-count")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--sandbox", default="auto")
    args = parser.parse_args(argv)
    options = ["--jobs", args.jobs, "--sandbox", args.sandbox]
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        alone = Path(folder, "alone")
        made = Class(args.lab, args.size, args.kinds, Path(folder, "class"))
        hand_in(alone, args.lab, {f"kind-{i}": made.text(answers) for i, answers in enumerate(made.answers)})
        hand_in(made.root, args.lab, made.students)
        code, seconds, _ = grade(alone, *options)
        print(f"{len(made.answers)} kinds by themselves: {seconds:.0f} s, exit code {code}", flush=True)
        faults = together(made, options) + check(made, alone)
    print("\n".join(faults) or f"all {len(made.kind)} honest ones have what they have by themselves, and the bank's")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
