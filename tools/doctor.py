"""What this machine has for the course: one line a fact, [OK], [WARN] or [FAIL]; exits with 1 if any fails.

A package that is missing fails, one of another version than constraints.txt has warns. Native bf16 is asked without
emulation: a T4 answers yes to torch's plain question and then computes bf16 slowly, in float32.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from tools import ROOT
from tools.settings import pins, requirements

GB = 10**9
DISK_GB, RAM_GB = 5, 8  # below these: a warning
OK, WARN, FAIL = "OK", "WARN", "FAIL"


def python() -> tuple[str, str]:
    found = f"Python {sys.version.split()[0]} at {sys.executable}"
    return (OK, found) if sys.version_info >= (3, 11) else (FAIL, f"{found}; 3.11 or newer is needed")


def packages() -> list[tuple[str, str]]:
    """Every package that pyproject.toml names, against the exact version in constraints.txt."""
    needed, optional = requirements(ROOT)
    tested = pins(ROOT)
    return [package(name, tested.get(name), name in optional) for name in dict.fromkeys([*needed, *optional])]


def package(name: str, tested: str | None, optional: bool = False) -> tuple[str, str]:
    """One package's line. ``tested`` is the version in constraints.txt; an optional package may be missing."""
    try:
        found = version(name)
    except PackageNotFoundError:
        if optional:
            return WARN, f"{name} is missing: Unsloth's part of the labs will be missing"
        return FAIL, f"{name} is missing"
    if tested and found.partition("+")[0] != tested:
        return WARN, f"{name} {found}; the tests ran with {tested}"
    return OK, f"{name} {found}"


def gpu() -> list[tuple[str, str]]:
    """The card's name, its memory, and whether it computes in bf16 itself."""
    try:
        cuda = import_module("torch").cuda
    except Exception as error:  # a broken install raises OSError, RuntimeError or worse
        return [(FAIL, f"torch cannot be imported: {type(error).__name__}: {error}")]
    if not cuda.is_available():
        return [(WARN, "no CUDA GPU: labs make a dry run, and measure MiniGPT on the CPU")]
    lines = []
    for index in range(cuda.device_count()):
        card = cuda.get_device_properties(index)
        lines.append((OK, f"GPU {index}: {card.name}, {card.total_memory / GB:.1f} GB"))
    if cuda.is_bf16_supported(including_emulation=False):
        lines.append((OK, "native bf16: yes"))
    else:
        lines.append((WARN, "native bf16: no; use fp16 (bf16 would be emulated)"))
    return lines


def machine() -> list[tuple[str, str]]:
    """Free disk and memory."""
    disk = shutil.disk_usage(ROOT).free / GB
    lines = [(OK if disk >= DISK_GB else WARN, f"free disk: {disk:.1f} GB")]
    if not hasattr(os, "sysconf"):  # Windows; psutil would know, and may not be installed
        return [*lines, (WARN, f"RAM: unknown to Python here, on {os.cpu_count()} cores; {RAM_GB} GB are needed")]
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return [*lines, (OK if ram >= RAM_GB else WARN, f"RAM: {ram:.1f} GB on {os.cpu_count()} cores")]


def sandbox() -> tuple[str, str]:
    """Whether `make grade` can shut students' code in; only who grades needs that."""
    try:
        from tools.grading.box import missing, not_held  # which asks psutil
    except ImportError as error:
        return WARN, f"bubblewrap: unknown, for {error.name} is missing"
    return (WARN, f"`make grade`: {not_held('auto')}") if missing() else (OK, "bubblewrap, for `make grade`")


def main() -> int:
    lines = [python()]
    if lines[0][0] == OK:  # an older one cannot read pyproject.toml
        lines += [*packages(), *gpu(), *machine(), sandbox()]
    for level, fact in lines:
        print(f"[{level}]".ljust(7), fact)
    return 1 if any(level == FAIL for level, _ in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
