"""From nothing to ready: the set-up files agree, make sets up once and never half, doctor tells the truth."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError, distributions, version
from types import SimpleNamespace

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tools import ROOT, doctor, settings

COURSE = [
    "jupyterlab",
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "unsloth",
    "matplotlib",
    "nbgrader",
    "papermill",
]
TARGETS = [
    *("run", "site", "test", "test-quick", "lint", "coverage", "lab", "check", "notebooks", "grade", "attacks"),
    *("formgrader", "colab", "doctor", "base"),
    *("bench", "accuracy", "fuzz", "clean", "help"),
]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
UNSLOTH = "pip install --no-deps -c constraints.txt --group unsloth"

# Stands for python: remembers what it was asked, makes an environment out of itself, fails where FAIL matches.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  *version_info*) [ -z "$OLD" ]; exit ;;
  --version) echo "Python 3.10.1"; exit ;;
  *ensurepip*) exit 0 ;;
  *_base_executable*) echo "$0"; exit ;;
esac
echo "$*" >> calls
[[ "$*" == *"pip install"* ]] && echo "Collecting what was asked"
[ -n "$FAIL" ] && [[ "$*" == *$FAIL* ]] && echo "ERROR: why not" >&2 && exit 1
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
exit 0
"""
LINT = ["ruff check .", "ruff format --check .", "mypy"]
VENV = ["-m venv .venv"]
INSTALLS = [
    "-m pip install -c constraints.txt pip",
    "-m pip install -c constraints.txt -e .[course,real,test]",
    "-m pip install -c constraints.txt --no-deps --group unsloth",
]
DOCTOR = ["-m tools.doctor"]


@pytest.fixture
def make(tmp_path):
    """Calls make in a copy of the set-up files with a pretended python; returns what make said and python was asked."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/find_python.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def call(*arguments: str, **environment: str) -> SimpleNamespace:
        (tmp_path / "calls").write_text("")
        variables = {"PATH": os.environ["PATH"], **environment}
        line = ["make", f"PYTHON={python}", *arguments]
        ran = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        return SimpleNamespace(code=ran.returncode, out=ran.stdout, err=ran.stderr, calls=calls, root=tmp_path)

    return call


def test_help_is_the_default_and_lists_every_target(make):
    shown = make()
    assert shown.out == make("help").out and shown.calls == []
    lines = shown.out.splitlines()
    assert [line.split()[1] for line in lines] == ["help", *TARGETS[:-1]]
    assert all(len(line.split()) > 3 for line in lines)


def test_set_up_happens_once(make):
    first = make("doctor")
    assert first.code == 0 and first.calls == VENV + INSTALLS + DOCTOR
    assert re.search(r"Set up in \d+ s\.", first.out)
    assert "Collecting" not in first.out + first.err  # pip is quiet while all goes well
    assert make("doctor").calls == DOCTOR
    assert make("notebooks").calls == ["-m tools.build"]


def test_a_python_that_comes_too_late_is_said(make):
    assert "is not used" not in make("doctor").out
    again = make("doctor", "PYTHON=python9")
    assert again.calls == DOCTOR and "PYTHON=python9 is not used: .venv is set up." in again.out


def test_changed_versions_are_installed_into_the_same_environment(make):
    ready = make("doctor").root / ".venv" / ".ready"
    os.utime(ready, (0, 0))
    assert make("doctor").calls == INSTALLS + DOCTOR


def test_a_broken_set_up_starts_again_from_nothing(make):
    broken = make("doctor", FAIL="-e .")
    assert broken.code != 0 and broken.calls == VENV + INSTALLS[:2]
    assert not (broken.root / ".venv" / ".ready").exists()
    assert make("doctor").calls == VENV + INSTALLS + DOCTOR


def test_a_broken_set_up_shows_what_pip_said(make):
    """Both what pip had been doing and why it stopped, once, and never for the install that went well."""
    broken = make("doctor", FAIL="-e .")
    assert broken.err.splitlines()[:2] == ["Collecting what was asked", "ERROR: why not"]
    assert broken.err.count("Collecting") == 1


def test_unsloth_stops_nothing(make):
    ran = make("doctor", FAIL="unsloth")
    assert ran.code == 0 and ran.calls == VENV + INSTALLS + DOCTOR
    assert "Unsloth could not be installed: its part of the labs will be missing" in ran.out
    assert "ERROR: why not" in ran.err
    assert make("doctor").calls == DOCTOR


def test_an_old_python_is_refused_in_one_sentence(make):
    ran = make("doctor", OLD="1")
    assert ran.code != 0 and ran.calls == []
    said = [line for line in ran.err.splitlines() if not line.startswith("make: ***")]
    assert len(said) == 1 and "3.11 or newer (not 3.14.1) is needed" in said[0] and "is Python 3.10.1" in said[0]


def test_the_run_target_passes_its_variables(make):
    make("doctor")
    ran = make("run", "ONLY=lab02", "SOURCE=labs", "ARGS=-p PRESET micro")
    assert ran.calls == ["-m tools.run --only lab02 --source labs -p PRESET micro"]
    assert make("run", "ONLY=01 lab02").calls == ["-m tools.run --only 01 lab02"]


def test_lint_checks_style_format_and_types_and_stops_at_the_first_that_fails(make):
    make("doctor")
    checks = [f"-m {check}" for check in LINT]
    assert make("lint").calls == checks
    for n, check in enumerate(checks, 1):
        failed = make("lint", FAIL=check)
        assert failed.code != 0 and failed.calls == checks[:n]


def test_the_quick_tests_are_those_that_are_not_slow(make):
    make("doctor")
    two = "-m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder"
    assert make("test-quick").calls == [f"{two} -m not slow"]
    assert make("test").calls == [f"{two} --durations=15"]  # all of them


def test_clean_keeps_what_students_handed_in(make):
    root = make("doctor").root
    for name in ("build/run/x", "build/grading/submitted/ann/x"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("x")
    assert make("clean").code == 0
    assert not (root / ".venv").exists() and not (root / "build/run").exists()
    assert (root / "build/grading/submitted/ann/x").exists()


def test_the_python_found_is_the_one_behind_an_environment():
    """Inside .venv, `make` must not build the new .venv with the one that it is about to remove."""
    found = subprocess.run(["bash", "tools/find_python.sh", sys.executable], cwd=ROOT, capture_output=True, text=True)
    asked = "import os, sys; print(os.path.realpath(sys.executable), sys.prefix == sys.base_prefix)"
    answer = subprocess.run([found.stdout.strip(), "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [os.path.realpath(sys.executable), "True"]


def names(requirements) -> set[str]:
    return {settings.normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def test_conda_names_every_package_and_reads_the_same_two_files():
    text = (ROOT / "environment.yml").read_text()
    *conda, last = yaml.safe_load(text)["dependencies"]
    assert names(conda) == {"python", "pip"}
    files = {entry for entry in last["pip"] if entry.startswith("-")}
    extras = ",".join(settings.pyproject(ROOT)["project"]["optional-dependencies"])
    assert files == {"-c constraints.txt", f"-e .[{extras}]"}
    needed, optional = settings.requirements(ROOT)
    named = names(set(last["pip"]) - files)
    assert named == set(COURSE) - {"unsloth"} and named <= set(needed)
    assert UNSLOTH in text and "unsloth" in optional  # by itself: a list of packages cannot say --no-deps


def test_every_package_has_one_tested_version():
    pins = settings.pins(ROOT)
    needed, optional = settings.requirements(ROOT)
    assert set(needed) | set(optional) <= set(pins)
    assert all(re.fullmatch(r"[\w.]+", pin) for pin in pins.values())  # no +cpu, no path
    for name in needed:
        assert version(name).partition("+")[0] == pins[name], f"{name} is not the version in constraints.txt"


def test_every_pin_installs_on_every_python_that_the_course_allows():
    """A pin that asks for Python 3.11.5 breaks the set-up on 3.11.2 (Debian 12), and pip finds out only there.

    What a pin asks for stands in the metadata of the installed package. A pin that is not what is installed (a platform
    that does without, an environment older than the pins) is named in a warning, for it is not checked here.
    """
    course = SpecifierSet(settings.pyproject(ROOT)["project"]["requires-python"])
    minors = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert minors[0] == "3.11" and "3.11.0" in course and "3.10.99" not in course
    allowed = [python for minor in minors for patch in range(20) if (python := f"{minor}.{patch}") in course]
    refused, unknown = {}, []
    for name, pin in settings.pins(ROOT).items():
        package = next(iter(distributions(name=name)), None)
        if package is None or package.version.partition("+")[0] != pin:
            unknown.append(f"{name} {pin}")
            continue
        asked = SpecifierSet(package.metadata.get("Requires-Python", ""))
        if excluded := [python for python in allowed if python not in asked]:
            refused[f"{name} {pin}, which asks for {asked}"] = excluded
    if unknown:
        warnings.warn(f"not installed as pinned, so not checked: {', '.join(unknown)}", stacklevel=1)
    assert len(unknown) < len(settings.pins(ROOT)) / 2
    assert refused == {}


def test_ci_runs_what_a_reader_types():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and script.read_text().splitlines()[-1] == "make test"
    jobs = WORKFLOW["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    assert jobs["test"]["env"]["PYTHON"] == "python${{ matrix.python }}"
    assert jobs["debian"]["container"] == "debian:12"
    assert jobs["test"]["steps"][-1] == jobs["debian"]["steps"][-1] == {"run": "bash .ci/run"}
    assert jobs["lint"]["steps"][-1]["run"].startswith("make lint")


@pytest.mark.parametrize("check", [*LINT[:2], pytest.param(LINT[2], marks=pytest.mark.slow)])
def test_the_code_is_clean(check):
    """What `make lint` runs: CI calls `make test` alone."""
    ran = subprocess.run([sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_doctor_without_any_package():
    """-S leaves the site-packages out: a line for everything that is missing, and no traceback."""
    ran = subprocess.run([sys.executable, "-S", "-m", "tools.doctor"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert all(re.match(r"\[(OK|WARN|FAIL)\] +\S", line) for line in lines)
    assert "[FAIL]  torch is missing" in lines and "[FAIL]  nbgrader is missing" in lines
    assert "[WARN]  unsloth is missing: Unsloth's part of the labs will be missing" in lines
    assert any(line.startswith("[FAIL]  torch cannot be imported: ModuleNotFoundError") for line in lines)
    assert any(re.match(r"\[OK\] +Python 3", line) for line in lines)


def test_doctor_reports_here(capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert f"[OK]    torch {version('torch')}\n" in out and "free disk: " in out and "RAM: " in out


def test_doctor_compares_versions(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", lambda name: "2.13.0+cu130")
    assert doctor.package("torch", "2.13.0") == ("OK", "torch 2.13.0+cu130")
    assert doctor.package("torch", "2.12.0") == ("WARN", "torch 2.13.0+cu130; the tests ran with 2.12.0")
    monkeypatch.setattr(doctor, "version", missing)
    assert doctor.package("torch", "2.13.0") == ("FAIL", "torch is missing")
    assert doctor.package("unsloth", "1.0", optional=True)[0] == "WARN"


@pytest.mark.parametrize(("native", "line"), [(True, ("OK", "native bf16: yes")), (False, ("WARN", "native bf16: no"))])
def test_doctor_asks_for_native_bf16(monkeypatch, native, line):
    """A T4's torch says yes to the plain question."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="Tesla T4", total_memory=15_843_721_216),
        is_bf16_supported=lambda including_emulation=True: including_emulation or native,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    card, bf16 = doctor.gpu()
    assert card == ("OK", "GPU 0: Tesla T4, 15.8 GB")
    assert bf16[0] == line[0] and bf16[1].startswith(line[1])
