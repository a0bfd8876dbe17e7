"""Run a lab's bank of wrong and right answers against its checks: ``python -m tools.bank [LAB ...]``.

``tools/bank_entries.py`` says how a bank is written. Every answer runs in a fresh namespace (``tools/bank_lab.py``):
the lab's set-up and the instructor's answers up to this exercise, then the answer, then the exercise's check. A wrong
one must get its verdict and its points; a right one must get all points and leave nothing on stderr. The table also
says what the hidden tests alone catch. With ``--apart`` the answers run in another process than the checks
(``tools/bank_apart.py``), and must be judged the same.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT
from tools.bank_apart import Apart
from tools.bank_entries import Entry, read_bank
from tools.bank_lab import Lab, Outcome


@dataclass(frozen=True)
class Judgement:
    """What the check said about one entry."""

    lab: str
    entry: Entry
    outcome: Outcome
    fault: str | None  # why the entry did not fare as it should; None when it did

    @property
    def line(self) -> str:
        mark, verdict = "FAIL" if self.fault else "ok", self.outcome.verdict
        what = self.fault or (f"{verdict.id}: {verdict}" if verdict else "passes")
        what = what.splitlines()[0] if self.fault or len(what) <= 130 else what.splitlines()[0][:127] + "..."
        keeps = f" [keeps {self.outcome.points:g}]" if verdict and self.outcome.points else ""
        start = f"{mark:5}{self.lab[:5]:7}{self.entry.exercise:20}{self.entry.kind:7}"
        return f"{start}{self.entry.title:52}  {what}{keeps}"


def judge(lab: Lab, entry: Entry) -> Judgement:
    """Whether the check treats this entry as it should."""
    outcome = lab.run(entry.exercise, entry.code)
    full, fault = lab.points[entry.exercise], None
    found = outcome.verdict.ids if outcome.verdict else frozenset()
    if outcome.error:
        fault = f"it ends in an error that is no verdict: {outcome.error}"
    elif found != entry.verdict:
        said = f"{'+'.join(sorted(found))}: {outcome.verdict}" if found else "nothing"
        fault = f"the verdict is {said}; {'+'.join(sorted(entry.verdict)) or 'none'} is asked for"
    elif outcome.points != (entry.points if entry.verdict else full):
        fault = f"it gets {outcome.points:g} of {full:g} points, not {entry.points:g}"
    elif not entry.verdict and outcome.stderr:
        fault = f"the check writes to stderr: {outcome.stderr.strip()}"
    return Judgement(lab.name, entry, outcome, fault)


def only_hidden_tests_catch(lab: Lab, entry: Entry) -> bool:
    """Whether a wrong answer gets all points from what a student sees of the check."""
    seen = lab.run(entry.exercise, entry.code, hidden=False)
    return bool(entry.verdict) and seen.points == lab.points[entry.exercise]


def banks(root: Path = ROOT) -> list[Path]:
    """The labs' texts that have a bank, in order. Raises ValueError for a bank without a lab."""
    found = sorted((root / "content" / "labs").glob("*.bank.py"))
    texts = [path.with_name(path.name.replace(".bank.py", ".md")) for path in found]
    for path in texts:
        if not path.exists():
            raise ValueError(f"{path.stem}.bank.py has no lab beside it")
    return texts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bank", description=__doc__.splitlines()[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="only these, as lab01")
    parser.add_argument("--apart", action="store_true", help="the answers in a process of their own, as in grading")
    args = parser.parse_args(argv)
    names = args.labs
    faults = count = 0
    try:
        texts = [path for path in banks() if not names or path.stem in names or path.stem.split("-")[0] in names]
        if not texts:
            raise ValueError(f"no bank of {', '.join(names) or 'any lab'} in content/labs/")
        for path in texts:
            lab = Apart(path) if args.apart else Lab(path)
            for entry in read_bank(path.with_suffix(".bank.py"), lab.answers):
                judgement = judge(lab, entry)
                hidden = (
                    " [hidden]" if not (args.apart or judgement.fault) and only_hidden_tests_catch(lab, entry) else ""
                )
                print(judgement.line + hidden, flush=True)
                count, faults = count + 1, faults + bool(judgement.fault)
            lab.close()
    except (ValueError, OSError) as error:
        print(f"bank: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bank: stopped after {count} answers", file=sys.stderr)
        return 130
    print(f"{count} answers, {faults} not judged as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
