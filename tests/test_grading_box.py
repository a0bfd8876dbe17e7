"""What a box shuts out, what it limits and what ends with it; and what is said where there is no bubblewrap."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tools import ROOT
from tools.grading import box as boxes
from tools.grading import fence
from tools.grading.box import Box, held, missing, not_held
from tools.grading.groups import Group

needs_bubblewrap = pytest.mark.skipif(bool(missing()), reason=f"no box can be made here: {missing()}")
PROBE = """
import json, os, socket, sys, time
said = {}
for name, path in json.loads(sys.argv[1]).items():
    try:
        said[name] = sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()
    except OSError:
        said[name] = None
for path in ("/box/x", "/tmp/x", "/student/x", "/x", "/dev/x", "/course/x", "/usr/x", "/box/given.txt"):
    try:
        open(path, "w").write("mine")
        said[path] = True
    except OSError:
        said[path] = False
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), 2)
    said["network"] = True
except OSError:
    said["network"] = False
try:
    bytearray(20 << 30)
    said["20 GiB"] = True
except MemoryError:
    said["20 GiB"] = False
said["environment"] = dict(os.environ)
said["first"] = open("/proc/1/environ").read()
children = 0
try:
    while children < 600:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        children += 1
except OSError:
    pass
said["children"] = children
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a program says that looks around in a box; outside, a server listens, and a file lies in its own folder."""
    import socket

    files, other = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("other")
    (files / "given.txt").write_text("given")
    (other / "secret.txt").write_text("secret")
    places = {
        "solutions": ROOT / "solutions", "course": "/course", "secret": other / "secret.txt",
        "home": Path.home() / ".bashrc", "given": "/box/given.txt", "passwords": "/etc/passwd",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        patch.setenv("THE_GRADERS", "own")
        where = json.dumps({name: str(path) for name, path in places.items()})
        port = str(server.getsockname()[1])
        with Box(True, [ROOT / "minigpt"], files) as box:
            command = box.command([sys.executable, "-c", PROBE, where, port])
            done = subprocess.run(command, env=box.env, cwd=box.cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), files, box


@needs_bubblewrap
def test_a_box_has_python_the_package_and_a_copy_of_the_files_and_nothing_else_of_the_disk(told):
    said, files, _ = told
    assert said["course"] == ["minigpt"] and said["given"] == "given"
    assert [said[name] for name in ("solutions", "secret", "home", "passwords")] == [None] * 4
    assert (files / "given.txt").read_text() == "given" and said["/box/given.txt"]  # it was the copy that changed


@needs_bubblewrap
def test_only_its_own_folders_can_be_written(told):
    said, _, _ = told
    assert {path for path in said if path.startswith("/") and said[path]} == {
        "/box/x", "/tmp/x", "/student/x", "/box/given.txt"
    }  # fmt: skip


@needs_bubblewrap
def test_there_is_no_network_and_nothing_of_the_graders_environment(told):
    said, _, _ = told
    assert not said["network"] and said["environment"]["HOME"] == "/student"
    assert "THE_GRADERS" not in said["environment"] and "THE_GRADERS" not in said["first"]


@needs_bubblewrap
def test_memory_and_processes_are_limited(told):
    said, _, _ = told
    assert not said["20 GiB"]
    if not_held("auto") is None:
        assert said["children"] < boxes.PROCESSES


@needs_bubblewrap
def test_a_closed_box_leaves_no_folder(told):
    assert not told[2].folder.exists()


@pytest.mark.parametrize(
    "kind", [pytest.param(True, marks=needs_bubblewrap, id="held"), pytest.param(False, id="open")]
)
def test_what_a_program_has_started_ends_with_the_box(kind, tmp_path):
    """Its child is in a session of its own, so no signal to the program's group reaches it."""
    name = f"ends_with_the_box_{os.getpid()}_{kind}"
    child = [sys.executable, "-c", "import time; time.sleep(100)", name]
    start = f"import subprocess, time; subprocess.Popen({child!r}, start_new_session=True); time.sleep(100)"
    with Box(kind, [ROOT / "minigpt"]) as box:
        program = subprocess.Popen(box.command([sys.executable, "-c", start]), env=box.env, cwd=box.cwd)
        assert wait(lambda: running(name)), "the child never started"
        program.kill()
        program.wait()
    assert wait(lambda: not running(name)), "the child outlives its box"


def running(name: str) -> bool:
    found = []
    for process in psutil.process_iter():
        try:
            found += [process.pid] if process.cmdline()[-1:] == [name] else []
        except psutil.Error:
            continue
    return bool(found)


def wait(whether, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not whether() and time.monotonic() < end:
        time.sleep(0.05)
    return whether()


def test_without_a_box_a_program_has_a_home_a_folder_and_an_environment_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_GRADERS", "own")
    (tmp_path / "given.txt").write_text("given")
    code = "import json, os, resource; print(json.dumps([os.getcwd(), os.listdir(), dict(os.environ), "
    code += "resource.getrlimit(resource.RLIMIT_AS)[0]]))"
    with Box(False, [ROOT / "minigpt"], tmp_path) as box:
        done = subprocess.run(
            box.command([sys.executable, "-c", code]), env=box.env, cwd=box.cwd, capture_output=True, text=True
        )
        folder, there, environment, memory = json.loads(done.stdout)
    assert Path(folder).name == "box" and there == ["given.txt"] and tmp_path != Path(folder)
    assert Path(environment["HOME"]) == box.folder / "home" and "THE_GRADERS" not in environment
    assert memory in (boxes.MEMORY, -1)  # macOS has no such limit


LOOKS_OUT = """
import glob, json, os, signal, socket, sys
import minigpt
def done(do):
    try:
        do()
        return True
    except OSError:
        return False
root, others, here = sys.argv[1], sys.argv[2], os.path.dirname(minigpt.__file__)
print(json.dumps({
    "solutions": done(lambda: os.listdir(root + "/solutions")), "secret": done(lambda: open(others + "/secret")),
    "makes": done(lambda: open(others + "/x", "w")), "removes": done(lambda: os.remove(others + "/secret")),
    "links": done(lambda: os.link(others + "/secret", "y")), "package": done(lambda: open(here + "/x", "w")),
    "environment": done(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    "memory": done(lambda: open(f"/proc/{os.getppid()}/mem", "rb")),
    "signal": done(lambda: os.kill(os.getppid(), 0)),
    "network": done(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 2)),
    "own": done(lambda: [open(f"{folder}/x", "w") for folder in (".", os.environ["HOME"], os.environ["TMPDIR"])]),
}))
"""


@pytest.mark.skipif(not fence.version(), reason="this system has no Landlock")
def test_in_a_fence_nothing_of_others_is_opened_changed_or_reached(tmp_path):
    """The parent of the program that looks out is this process."""
    import socket

    (tmp_path / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server, Box(False, [ROOT / "minigpt"]) as box:
        asked = [sys.executable, "-c", LOOKS_OUT, str(ROOT), str(tmp_path), str(server.getsockname()[1])]
        done = subprocess.run(box.command(asked), env=box.env, cwd=box.cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    since = {"network": 4, "signal": 6}  # versions of Landlock
    assert {name for name, able in said.items() if able} == {
        "own", *(name for name, version in since.items() if fence.version() < version)
    }  # fmt: skip
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("version, said", [(7, "send UDP"), (1, "send what it likes"), (0, "solutions and gradebook")])
def test_it_is_said_what_a_fence_does_not_hold(version, said, monkeypatch):
    monkeypatch.setattr(fence, "there", lambda: version)
    assert said in (not_held("off") or "")


def test_without_bubblewrap_it_is_said_what_is_not_held_and_require_refuses(monkeypatch):
    monkeypatch.setattr(boxes.shutil, "which", lambda name: None)
    monkeypatch.setattr(fence, "there", lambda: 0)
    boxes.missing.cache_clear()
    try:
        said = not_held("auto")
        assert said and "not shut in" in said and "gradebook" in said and "network" in said and "\n" not in said
        if sys.platform == "linux":
            assert "apt-get install bubblewrap" in said
        assert not held("auto") and not held("off")
        with pytest.raises(ValueError, match="--sandbox is 'require', and "):
            held("require")
    finally:
        boxes.missing.cache_clear()


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="--sandbox is 'on'; allowed: require, auto, off"):
        held("on")


def test_a_bubblewrap_that_may_do_nothing_is_none(monkeypatch, tmp_path):
    """As in many containers: it is there, and the kernel refuses."""
    refuses = tmp_path / "bwrap"
    refuses.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(boxes.shutil, "which", lambda name: str(refuses))
    boxes.missing.cache_clear()
    try:
        assert "No permissions to create new namespace" in (missing() or "")
    finally:
        boxes.missing.cache_clear()


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_has_its_limits_in_either_version(tmp_path, version, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("memory pids")
    group = Group(7, 3, tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.rglob("box-*/*")}
    assert written == (
        {"memory.limit_in_bytes": "7", "pids.max": "3"} if version == 1 else {"memory.max": "7", "pids.max": "3"}
    )
    assert group.counts and len(group.files) == (2 if version == 1 else 1)
