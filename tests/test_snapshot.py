"""The reader of snapshots: against programmes whose every request is known, and against files made to harm."""

import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.memory.predicted.allocator import Allocator
from minigpt.memory.snapshot import holders, read, with_blocks
from minigpt.memory.snapshot.__main__ import main
from minigpt.memory.snapshot.growth import growth
from minigpt.memory.snapshot.plain import load
from minigpt.memory.units import readable
from tests.snapshots import CPP, LOOP, MINE, TORCH, Noting, entry, left, segment, snapshot


@pytest.fixture
def small(tmp_path):
    """A step of which a request was held before, and a segment of 20 MiB was taken for 12 MiB."""
    trace = [
        entry("alloc", 1024, 700, [CPP, TORCH, MINE, LOOP]),
        entry("segment_alloc", 4096, 20 << 20),
        entry("alloc", 4096, 12 << 20, [LOOP]),
        entry("free_requested", 0, 1024),
        entry("free_completed", 0, 1024),
        entry("free_requested", 4096, 12 << 20),
        entry("free_completed", 4096, 12 << 20),
        entry("segment_free", 4096, 20 << 20),
        entry("oom", 0, 1 << 30, [LOOP], device_free=5 << 20),
    ]
    left = [(0, 1024, 1024, "inactive"), (1024, 1024, 700, "active_allocated"), (2048, 64, 64, "inactive")]
    return snapshot(trace, [segment(0, 2 << 20, left, device=1)], tmp_path / "small.pickle")


def test_sizes_are_those_of_a_programme_worked_by_hand(small):
    recording = read(small)
    before, mib = 1024, 1 << 20
    assert list(recording.sizes()) == [
        (before, 2 * mib),
        (before + 1024, 2 * mib),
        (before + 1024, 22 * mib),
        (before + 1024 + 12 * mib, 22 * mib),
        (1024 + 12 * mib, 22 * mib),
        (1024 + 12 * mib, 22 * mib),
        (1024, 22 * mib),
        (1024, 22 * mib),
        (1024, 2 * mib),
        (1024, 2 * mib),
    ]
    assert (recording.peak(0), recording.peak(1), recording.unexplained, recording.device) == (3, 2, 0, 1)


def test_holders_are_the_innermost_lines_outside_of_torch(small):
    recording = read(small)
    found = [(h.line.split(" by a thread")[0], h.nbytes, h.requests) for h in holders(recording.held_after(3))]
    assert found[0] == ("project/train.py:9 in <module>", 12 << 20, 1)
    assert ("project/model.py:31 in forward", 1024, 1) in found
    assert sum(line.startswith("no Python line") for line, *_ in found) == 1 and len(found) == 3


def test_growth_names_the_request_that_took_memory(small):
    (only,) = growth(read(small))
    assert (only.taken, only.asked, only.line) == (20 << 20, 12 << 20, "project/train.py:9 in <module>")
    assert only.unused == (2 << 20) - 2048


@st.composite
def programmes(draw):
    """(events of a programme from nothing, where the recording begins): a toy that gives each request its place."""
    events, held, top = [], {}, 0
    for _ in range(draw(st.integers(1, 40))):
        if held and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(held)))
            events.append(("free_requested", address, held.pop(address)))
        else:
            size = draw(st.integers(1, 5000))
            events += [("segment_alloc", top, 8192), ("alloc", top, size)]
            held[top], top = size, top + 8192
    return events, draw(st.integers(0, len(events) - 1))


def in_use(address, asked):
    size = -(-asked // 512) * 512
    rest = (address + size, 8192 - size, 8192 - size, "inactive")
    return [(address, size, asked, "active_allocated"), rest]


@settings(max_examples=30, deadline=None)
@given(programmes())
def test_a_recording_that_began_late_has_the_sizes_of_the_whole_programme(tmp_path_factory, programme):
    events, cut = programme
    held: dict[int, int] = {}
    segments = []
    truth = [(0, 0)]
    for action, address, size in events:
        if action == "alloc":
            held[address] = size
        elif action == "free_requested":
            del held[address]
        else:
            segments.append(address)
        truth.append((sum(-(-n // 512) * 512 for n in held.values()), 8192 * len(segments)))
    last = [segment(at, 8192, in_use(at, held[at]) if at in held else [], 1) for at in segments]
    trace = [entry(*event, [LOOP]) for event in events[cut:]]
    recording = read(snapshot(trace, last, tmp_path_factory.mktemp("late") / "late.pickle"))
    assert list(recording.sizes()) == truth[cut:]
    assert recording.unexplained == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40 << 20)), min_size=1, max_size=40), st.integers(0, 100))
def test_whole_blocks_are_the_allocators_or_lie_in_the_stated_range(tmp_path_factory, programme, share):
    trace, live, truth = [], [], [0]
    allocator = Allocator(device=Noting(trace))
    for kind, nbytes in programme:
        if kind < 2 and live:
            block = live.pop(nbytes % len(live))
            trace += [entry(f"free_{when}", block.address, block.requested) for when in ("requested", "completed")]
            allocator.free(block)
        else:
            live.append(allocator.allocate(nbytes))
            trace.append(entry("alloc", live[-1].address, nbytes))
        last, now = trace[-1]["action"], allocator.statistics.allocated.current
        truth += [truth[-1]] * (len(trace) - len(truth)) + [now]
        if last == "free_completed":
            truth[-2] = now  # a block counts as freed when that is requested
    cut = share * (len(trace) - 1) // 100
    path = tmp_path_factory.mktemp("whole") / "whole.pickle"
    recording = with_blocks(read(snapshot(trace[cut:], left(allocator), path)))
    found = [allocated for allocated, _ in recording.sizes()]
    assert recording.open == 0 or cut
    more = (1 << 40) if recording.open is None else recording.open
    assert all(least <= true <= least + more for least, true in zip(found, truth[cut:], strict=True))


# ------------------------------------------------------------ files made to harm


class Runs:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def hostile():
    """name -> bytes. None may run, exhaust memory, or end in a traceback."""
    protocol = b"\x80\x04"
    cycle: list = []
    cycle.append(cycle)
    return {
        "reduce": pickle.dumps(dict(segments=[], device_traces=[[Runs()]])),
        "reduce, protocol 0": pickle.dumps(Runs(), protocol=0),
        "instance": b"(ios\nsystem\n.",
        "object": protocol + b"(cos\nsystem\no.",
        "extension": protocol + b"\x82\x01.",
        "persistent": b"P1\n.",
        "persistent, binary": protocol + b"K\x01Q.",
        "memo of 64 GB": protocol + b"K\x01r\xff\xff\xff\x7f0K\x01.",
        "string of an exabyte": protocol + b"\x8d" + struct.pack("<Q", 1 << 60) + b"a.",
        "bytearray": protocol + b"\x96" + struct.pack("<Q", 1 << 40) + b".",
        "cut": pickle.dumps(dict(segments=[], device_traces=[[]] * 9))[:-9],
        "empty": b"",
        "text": b"address,size\n1,2\n",
        "an int": pickle.dumps(3),
        "a list": pickle.dumps([1, 2]),
        "a cycle": pickle.dumps(dict(segments=cycle, device_traces=cycle)),
        "no traces": pickle.dumps(dict(segments=[])),
        "a string for a size": pickle.dumps(dict(segments=[], device_traces=[[entry("alloc", 0, "1")]])),
        "a negative size": pickle.dumps(dict(segments=[], device_traces=[[entry("alloc", 0, -1)]])),
        "an unknown action": pickle.dumps(dict(segments=[], device_traces=[[entry("grow", 0, 1)]])),
        "True for a size": pickle.dumps(dict(segments=[], device_traces=[[entry("alloc", 0, True)]])),
        "no history": pickle.dumps(dict(segments=[], device_traces=[[], []])),
        "ten million blocks": repeated(),
        "pop of nothing": protocol + b"0.",
    }


def repeated() -> bytes:
    """A few thousand bytes that say the same list of blocks thousands of times."""
    blocks = [dict(size=512, address=0, state="inactive")] * 3000
    one = dict(device=0, address=0, total_size=1, blocks=blocks)
    return pickle.dumps(dict(segments=[one] * 3000, device_traces=[[entry("alloc", 0, 1)]]))


@pytest.mark.parametrize("name", hostile())
def test_a_hostile_file_is_refused_in_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pickle").write_bytes(hostile()[name])
    assert main(["bad.pickle"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "bad.pickle" in err
    assert not (tmp_path / "harmed").exists()


def test_the_file_that_runs_code_does_run_it_in_pickle(tmp_path, monkeypatch):
    """Else the test above would prove nothing."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(hostile()["reduce"])
    assert (tmp_path / "harmed").exists()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, data):
    trace = [entry("alloc", 0, 700, [MINE]), entry("free_requested", 0, 700), entry("segment_free", 0, 9)]
    folder = tmp_path_factory.mktemp("damaged")
    whole = snapshot(trace, [segment(0, 64, [], 1)], folder / "whole.pickle").read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    bad = whole[:place] + data.draw(st.binary(min_size=0, max_size=3)) + whole[place + 1 :]
    (folder / "bad.pickle").write_bytes(bad)
    try:
        read(folder / "bad.pickle")
    except ValueError:
        pass


def test_plain_data_of_every_protocol_is_read(tmp_path):
    data = dict(a=[1, -2, 3.5, None, True, "é", b"x", 2**70], b=(1, (2,), ()), c={"d": []})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "plain.pickle").write_bytes(pickle.dumps(data, protocol=protocol))
        if protocol in (0, 1, 2):  # these write bytes as a call
            with pytest.raises(ValueError, match="could run code"):
                load(tmp_path / "plain.pickle")
        else:
            assert load(tmp_path / "plain.pickle")[0] == data


def test_no_allowed_opcode_calls_or_imports():
    from minigpt.memory.snapshot.plain import ALLOWED

    known = {opcode.name for opcode in pickletools.opcodes}
    assert ALLOWED <= known
    assert not ALLOWED & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1",
                          "EXT2", "EXT4", "PERSID", "BINPERSID", "BYTEARRAY8", "NEXT_BUFFER"}  # fmt: skip


# ------------------------------------------------------------ the command


def test_the_report_says_peak_reserve_holders_and_the_failure(small, capsys):
    assert main([str(small)]) == 0
    out = capsys.readouterr().out
    for part in ("allocated at most 0.01 GB", "project/train.py:9", f"out of memory: {readable(1 << 30)}"):
        assert part in out, part


def test_json_is_whole_and_integers(small, capsys):
    assert main([str(small), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_allocated"] == {"bytes": 2048 + (12 << 20), "reserved": 22 << 20, "after_event": 3}
    assert found["peak_reserved"] == {"bytes": 22 << 20, "allocated": 2048, "after_event": 2}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "0"], "device is 0"),
        (["--top", "0"], "top is 0"),
        (["--plot", "x.txt"], "plot is 'x.txt'"),
        (["--plot", "nowhere/x.png"], "cannot be written"),
    ],
)
def test_wrong_use_is_one_line(small, options, says, capsys):
    assert main([str(small), *options]) == 2
    assert says in capsys.readouterr().err


def test_a_picture_is_drawn(small, tmp_path, capsys):
    assert main([str(small), "--plot", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_reading_needs_no_torch(small):
    code = "import sys, minigpt.memory.snapshot.__main__ as c; c.main(sys.argv[1:]); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, str(small)], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"
