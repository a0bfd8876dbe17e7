"""Which functions know the truths of a lab: what registers itself when its check cells import their subjects.

``known`` asks a process of its own, so that nothing of another lab is registered there.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from tools import ROOT

SECONDS = 240


@dataclass(frozen=True)
class Known:
    """(module, qualified name) of every truth and of classes that know some; the probes that the lab's checks use."""

    truths: tuple[tuple[str, str], ...]
    records: tuple[tuple[str, str], ...]
    probes: tuple[str, ...]

    def of(self, module: str) -> set[str]:
        return {name for where, name in self.truths if where == module}


def known(checks: list[str]) -> Known:
    """Of these check cells. Raises ValueError where what they import cannot be imported."""
    return _known(tuple(imports(checks)))


@cache
def _known(statements: tuple[str, ...]) -> Known:
    done = subprocess.run(
        [sys.executable, "-m", "tools.grading.truths"], input=json.dumps(statements), capture_output=True,
        text=True, cwd=ROOT, env=dict(os.environ, PYTHONPATH=str(ROOT)), timeout=SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"the lab's checks cannot be imported: {(done.stderr.strip() or 'no reason given')[-300:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    truths, records = (tuple((module, name) for module, name in said[kind]) for kind in ("truths", "records"))
    return Known(truths, records, tuple(said["probes"]))


def imports(cells: list[str]) -> list[str]:
    """The statements in these cells, wherever they stand, that import from minigpt.checks; each once."""
    found: dict[str, None] = {}
    for node in (node for cell in cells for node in ast.walk(ast.parse(cell))):
        names = [getattr(node, "module", "") or "", *(alias.name for alias in getattr(node, "names", []))]
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any(name.startswith("minigpt.checks") for name in names):
            found[ast.unparse(node)] = None
    return list(found)


def main() -> None:
    exec("\n".join(json.load(sys.stdin)), {})
    from minigpt.checks import closing

    truths = sorted({(function.__module__, function.__qualname__) for function in closing._all_functions()})
    records = sorted((record.__module__, record.__qualname__) for record in closing._records)
    probes = sorted(name for name in sys.modules if name.startswith("minigpt.checks.probes."))
    print(json.dumps({"truths": truths, "records": records, "probes": probes}))


if __name__ == "__main__":
    main()
