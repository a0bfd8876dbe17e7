"""Measuring in processes of their own: the same bytes as here, errors and interrupts that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import torch

from minigpt.memory import TrainingPlan, predict
from minigpt.memory.measured import apart as apart_module
from minigpt.memory.measured.apart import Call, measure_apart, measuring, run_apart
from minigpt.memory.measured.step import measure
from minigpt.model import GPTConfig

TINY = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16, vocab_size=50)
LLAMA = dict(
    model_type="llama", vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture
def children(monkeypatch):
    """Every process that is started; all of them must have ended at the end."""
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    yield started
    assert started and all(child.poll() is not None for child in started)


@pytest.mark.slow
def test_a_step_measured_apart_is_the_step_measured_here():
    plan = TrainingPlan(batch=2, seq_len=16, method="lora", precision="bf16", optimizer_loop="single")
    assert measure_apart(TINY, plan) == measure(TINY, plan, "cpu")


def test_several_run_side_by_side_and_come_back_in_order(children):
    plan = TrainingPlan(batch=2, seq_len=16, precision="bf16")
    step = predict(TINY, plan)
    calls = {
        "llama": measuring(LLAMA, plan, "fake"),
        "known name": measuring("gpt2", TrainingPlan(batch=1, seq_len=4), "fake"),
        "there and back": Call("copy:deepcopy", {"x": {"step": step, "dtype": torch.bfloat16, "plan": plan}}),
        "loud": Call("builtins:print", {"end": '{"result": 5}'}),
        "surroundings": Call("subprocess:getoutput", {"cmd": "echo $HF_HUB_OFFLINE $OMP_NUM_THREADS; pwd"}),
    }
    results = run_apart(calls, at_once=2)
    assert list(results) == list(calls)
    assert results["llama"] == measure(LLAMA, plan, "fake")
    assert results["known name"].ledger.weights == 4 * 124_439_808  # GPT-2's published size, in float32
    assert results["there and back"] == {"step": step, "dtype": torch.bfloat16, "plan": plan} and step.events
    assert results["loud"] is None
    settings, folder = results["surroundings"].split("\n")
    assert settings == f"1 {torch.get_num_threads()}"
    assert folder != str(Path.cwd()) and not Path(folder).exists()


def test_a_value_error_comes_back_in_its_own_words(children):
    for model, plan, device in ((TINY, TrainingPlan(seq_len=17), "cpu"), (LLAMA, TrainingPlan(), "tpu")):
        with pytest.raises(ValueError) as here:
            measure(model, plan, device)
        with pytest.raises(ValueError) as there:
            measure_apart(model, plan, device)
        assert str(there.value) == str(here.value)


def test_other_failures_say_what_the_child_printed_last(children):
    calls = {
        "raises": Call("operator:no_such_function"),
        "dies": Call("os:_exit", {"status": 3}),
        "killed": Call("os:abort"),
        "lives": Call("os:getpid"),
    }
    results = run_apart(calls, at_once=3, keep_errors=True)
    assert isinstance(results["raises"], RuntimeError)
    assert "raises failed: AttributeError: module 'operator' has no attribute" in str(results["raises"])
    assert "its last lines:\nTraceback" in str(results["raises"])
    assert str(results["killed"]).startswith("killed was ended by SIGABRT")
    assert str(results["dies"]) == "dies ended with exit status 3; it printed nothing"
    assert results["lives"] not in (os.getpid(), None)
    with pytest.raises(RuntimeError, match="raises failed"):
        run_apart({"raises": calls["raises"], "waits": Call("os:getpid")})


def test_a_child_that_takes_too_long_is_stopped(children):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="waits was stopped after 3 seconds"):
        run_apart({"waits": Call("signal:pause")}, timeout=3)
    assert time.monotonic() - start < 30


def test_of_a_flood_the_end_is_told(children):
    flood = Call(
        "subprocess:check_call", {"args": [sys.executable, "-c", "print('x' * 10**7); print('the end'); 1 / 0"]}
    )
    with pytest.raises(RuntimeError, match="flood failed: CalledProcessError") as error:
        run_apart({"flood": flood})
    assert len(str(error.value)) < 5_000 and "CalledProcessError" in str(error.value).splitlines()[-1]


def test_large_arguments_hold_nothing_up(children):
    large = "x" * 10**7
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="a was stopped after 0.1 seconds"):  # long before its imports are done
        run_apart({"a": Call("copy:copy", {"x": large}), "b": Call("copy:copy", {"x": large})}, at_once=2, timeout=0.1)
    assert len(children) == 2 and time.monotonic() - start < 2
    assert run_apart({"a": Call("copy:copy", {"x": large})}) == {"a": large}


def ends(pid: int) -> bool:
    """Whether a process ends within 10 seconds; one that nobody has collected yet has ended."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def sleeper(path: Path) -> Call:
    """A child that starts a grandchild; the ids of both are in ``path`` once they run."""
    return Call("subprocess:getoutput", {"cmd": f"echo $PPID $$ > {path}.new; mv {path}.new {path}; exec sleep 600"})


def test_what_a_child_has_started_ends_with_it(children, monkeypatch, tmp_path):
    nap = time.sleep

    def interrupt(seconds):
        nap(seconds)
        if (tmp_path / "ids").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(apart_module.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_apart({"a": sleeper(tmp_path / "ids")})
    child, grandchild = map(int, (tmp_path / "ids").read_text().split())
    assert child == children[0].pid and ends(grandchild)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_when_the_parent_dies_its_children_do(how, tmp_path):
    code = (
        "import signal, tests.test_apart as t\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # under nohup it is ignored, and this would wait for ever
        f"t.run_apart({{'a': t.sleeper(t.Path({str(tmp_path / 'ids')!r}))}})"
    )
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, start_new_session=True) as parent:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "ids").exists():
                assert parent.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            parent.send_signal(how)
    ids = [int(pid) for pid in (tmp_path / "ids").read_text().split()]
    assert len(ids) == 2 and all(map(ends, ids))


def test_an_interrupt_leaves_no_child(children, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(apart_module.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_apart({"a": Call("signal:pause"), "b": Call("signal:pause")}, at_once=2)
    assert len(children) == 2


@pytest.mark.parametrize(
    "calls, options, says",
    [
        ({"x": Call("os:getenv", {"key": torch.zeros(1)})}, {}, "os:getenv for 'x' cannot be sent: Tensor is neither"),
        ({"x": Call("os:getenv", {"key": float("nan")})}, {}, "os:getenv for 'x' cannot be sent"),
        ({}, dict(at_once=0), "at_once is 0"),
        ({}, dict(timeout=0), "timeout is 0; it must be a number of seconds above 0"),
        ({}, dict(timeout="1"), "timeout is '1'"),
        ({}, dict(keep_errors=1), "keep_errors is 1"),
    ],
)
def test_what_is_not_allowed_is_refused_before_a_process_starts(calls, options, says, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ValueError, match=says):
        run_apart(calls, **options)


def test_a_set_and_the_numbers_of_numpy_travel_as_json_has_them():
    call = Call("a:b", {"names": {"v_proj", "q_proj"}, "rank": numpy.int64(4), "rate": numpy.float32(0.5)})
    assert json.loads(apart_module.encode("it", call))["arguments"] == {
        "names": ["q_proj", "v_proj"], "rank": 4, "rate": 0.5,
    }  # fmt: skip
