"""What all tests share: a hermetic environment, small courses to build, and the time that each part took."""

from __future__ import annotations

import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

os.environ["MPLBACKEND"] = "agg"
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
if "PYTEST_XDIST_WORKER" in os.environ:  # one of two processes: with threads for all cores, each would slow both
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # nbgrader calls alembic


SLOW_FIXTURES = {"children", "grades", "ran", "runs"}  # processes, a grader, notebooks, trainers: whoever asks first


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items) -> None:
    """Files that take long begin first, so that both processes end together: each has whole files (--dist=loadfile)."""
    slow = set()
    for item in items:
        if SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow"):
            slow.add(item.path)
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def hermetic_jupyter(tmp_path_factory):
    """Jupyter and IPython without the settings, extensions and kernels of whoever runs the tests."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("JUPYTER_NO_CONFIG", "1")
        yield


@pytest.fixture(scope="module")
def quick_and_quiet():
    """The fuzzer's own switches of torch and transformers, put back afterwards: many small steps take half the time."""
    from tools.fuzz_case import quick_and_quiet

    with quick_and_quiet():
        yield


@pytest.fixture
def course(tmp_path):
    """A function that writes a course of given texts, as {"labs/lab01-x.md": text}, and returns its folder."""

    def write(**texts: str) -> Path:
        for name in ("pyproject.toml", "constraints.txt", "LICENSE", "README.md"):
            shutil.copy(ROOT / name, tmp_path)
        for name, text in texts.items():
            path = tmp_path / "content" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf8")
        return tmp_path

    return write


def pytest_terminal_summary(terminalreporter) -> None:
    """Seconds by test file: the parts of the run."""
    seconds = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section("seconds by part")
    for part, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{total:7.1f} s  {part}")
