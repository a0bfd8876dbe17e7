"""Recording a step on a GPU, with torch's functions in its stead: what is asked of torch, and in which order."""

import inspect

import pytest
import torch

from minigpt.memory.buckets import Ledger, Reserved, StepMemory
from minigpt.memory.measured.record import recording
from minigpt.memory.readings import read_reading, save_reading


@pytest.fixture
def asked(monkeypatch):
    """What was asked of torch, on a machine that says that it has a GPU."""
    found: list = []

    def record(enabled, **options):
        found.append(("history", enabled))

    def dump(path):
        found.append("dump")
        with open(path, "wb") as file:
            file.write(b"whole")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, value in (("max_memory_allocated", 700), ("max_memory_reserved", 900), ("memory_reserved", 600)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: found.append(name))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    return found


ON, OFF = ("history", "all"), ("history", None)


def test_the_counters_are_read_and_the_history_is_off_again(asked, tmp_path):
    with recording(tmp_path / "new" / "step.pickle") as seen:
        asked.append("step")
    assert seen.card == Reserved(700, "", 900, "", 600)
    assert asked == ["synchronize", "reset_peak_memory_stats", ON, "step", "synchronize", "dump", OFF]
    assert (tmp_path / "new" / "step.pickle").read_bytes() == b"whole"
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_after_an_error_nothing_is_on_and_no_file_is_left(asked, tmp_path):
    with pytest.raises(KeyError), recording(tmp_path / "step.pickle") as seen:
        raise KeyError("step")
    assert asked[-1] == OFF and seen.card is None and not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_named_and_the_history_is_off(asked, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ValueError, match="path is .*taken.*cannot be written"), recording(tmp_path / "taken" / "x"):
        pass
    assert asked[-1] == OFF


def test_without_a_path_only_the_counters_are_read(asked):
    with recording(None) as seen:
        pass
    assert seen.card is not None and seen.card.reserved == 900 and ON not in asked and "dump" not in asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_step_runs_and_nothing_else(tmp_path):
    with recording(tmp_path / "step.pickle") as seen:
        pass
    assert seen.card is None and not list(tmp_path.iterdir())


def test_torch_takes_the_options_that_it_is_asked_for():
    taken = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries", "clear_history"} <= set(taken)


def test_a_reading_keeps_a_cards_counters_and_one_without_is_read(tmp_path):
    step = StepMemory(Ledger(1), Ledger(1), "forward, x", card=Reserved(700, "step, AdamW", 900, "forward, x", 600))
    without = StepMemory(Ledger(1), Ledger(1), "forward, x")
    path = save_reading(
        tmp_path, lab="lab02", case="a", device="cuda", instrument="x", predicted=step, measured=without
    )
    reading = read_reading(path)
    assert reading.predicted.card == Reserved(700, "", 900, "", 0) and reading.measured == without
    path.write_text(path.read_text().replace('"reserved": 900', '"reserved": -1'))
    with pytest.raises(ValueError, match="card is .*integer bytes"):
        read_reading(path)
