"""The shipped base and the command that samples from it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from minigpt import base, sample
from minigpt.data import encode, pretraining_text, windows_in_order
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, bits_per_byte, evaluate


@pytest.fixture(scope="module")
def model() -> GPT:
    return base.load_base()


def test_the_base_is_small_and_tied(model):
    assert (files("minigpt") / "assets" / "base.safetensors").stat().st_size < 2_500_000
    assert sum(p.numel() for p in model.parameters()) == base.base_record()["parameters"]
    assert model.lm_head.weight is model.token_embedding.weight
    assert base.load_base(dtype=torch.bfloat16).norm.weight.dtype == torch.bfloat16


def test_the_base_knows_python_that_it_has_not_seen(model):
    """The recorded loss is that of the whole validation text; a fortieth of it must be near, and below any guess."""
    batches = windows_in_order(pretraining_text("validation"), 8, 256)
    bits = bits_per_byte(evaluate(model, batches[::40]))
    recorded = base.base_record()["validation_bits_per_byte"]
    assert recorded < 3
    assert bits == pytest.approx(recorded, rel=0.15), (
        f"recorded with Python {base.base_record()['python']}, not {platform.python_version()}"
    )


def test_the_base_prefers_python_to_its_reverse(model):
    text = "    def __init__(self, name):\n        self.name = name\n\n    def close(self):\n        pass\n"
    forward, backward = encode(text), encode(text[::-1])
    loss, reverse = (model(t[None, :-1], t[None, 1:]).item() for t in (forward, backward))
    assert loss < reverse - 1


def test_a_completion_repeats_with_its_seed(model):
    one, same, other = (sample.complete(model, "def read_", 40, seed=seed) for seed in (0, 0, 1))
    assert one == same != other
    greedy = {sample.complete(model, "def read_", 40, temperature=0, seed=seed) for seed in (0, 1)}
    assert len(greedy) == 1


def test_making_a_base_writes_what_loading_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "windows_in_order", lambda text, *shape: windows_in_order(text, *shape, limit=1))
    monkeypatch.setattr(base, "GPTConfig", type("Small", (), {"preset": lambda name: GPTConfig(1, 16, 2)}))
    plan = TrainPlan(steps=2, precision="bf16-autocast")
    trained, record = base.pretrain(plan, tmp_path / "base.pt", resume=False)
    base.save_base(trained, record, tmp_path / "assets")
    assert sorted(p.name for p in (tmp_path / "assets").iterdir()) == ["base.json", "base.safetensors"]
    assert record["steps"] == 2 and record["tokens"] == 2 * 16 * 256
    monkeypatch.setattr(base, "files", lambda package: tmp_path)
    loaded = base.load_base(dtype=torch.bfloat16)
    for (name, p), q in zip(loaded.named_parameters(), trained.parameters(), strict=True):
        assert p.equal(q), name
    assert base.base_record() == record


def test_a_missing_base_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match="base.safetensors is missing from the package"):
        base.load_base()


@pytest.mark.parametrize("content", [b"", b"junk", None, save({"other": torch.zeros(1)})], ids=str)
def test_a_damaged_base_is_named(content, tmp_path, monkeypatch):
    whole = (Path(base.__file__).parent / base.ASSETS / base.WEIGHTS).read_bytes()
    (tmp_path / base.ASSETS).mkdir()
    (tmp_path / base.ASSETS / base.WEIGHTS).write_bytes(whole[:-9] if content is None else content)
    monkeypatch.setattr(base, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="base.safetensors does not hold the base model"):
        base.load_base()


def test_what_the_terminal_cannot_show_is_escaped_and_a_closed_pipe_is_no_error():
    code = "from minigpt.console import show; show('caf\\u00e9')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, rb"caf\xe9", b"")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_folder_that_cannot_be_written_is_named_before_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(base, "pretrain", lambda *_: pytest.fail("trained first"))
    (tmp_path / "file").write_text("")
    assert base.main(["--out", str(tmp_path / "file"), "--checkpoint", str(tmp_path / "run.pt")]) == 2
    assert base.main(["--out", str(tmp_path), "--checkpoint", str(tmp_path / "file" / "run.pt")]) == 2
    assert capsys.readouterr().err.count(str(tmp_path / "file")) == 2


def test_the_command_continues_the_prompt():
    command = [sys.executable, "-m", "minigpt.sample", "import ", "--tokens", "8", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("import ") and len(done.stdout) > len("import \n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([""], "the prompt is empty"),
        (["x", "--tokens", "0"], "tokens is 0; it must be an integer of at least 1"),
        (["x", "--tokens", "many"], "argument --tokens: invalid int value: 'many'"),
        (["x", "--temperature", "-1"], "temperature is -1.0"),
        (["x", "--temperature", "nan"], "temperature is nan"),
        (["x", "--seed", "-1"], "seed is -1"),
        (["x", "--device", "abacus"], "device is 'abacus'; this machine has: auto, cpu"),
        (["x", "--device", "meta"], "device is 'meta'; this machine has: auto, cpu"),
        ([], "the following arguments are required: prompt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_two(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        sample.main(arguments)
    out, err = capsys.readouterr()
    assert stopped.value.code == 2 and out == ""
    assert message in err and err.count("\n") == 1


def test_making_a_base_with_bad_input_is_one_sentence(capsys, tmp_path):
    assert base.main(["--steps", "0"]) == 2
    assert base.main(["--resume", "--checkpoint", str(tmp_path / "none.pt")]) == 2
    err = capsys.readouterr().err
    assert "steps is 0" in err and "to resume, it must be a file" in err and "Traceback" not in err
