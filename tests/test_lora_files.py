"""Adapters in a file: back here and in peft, refused where they do not fit, written whole."""

from __future__ import annotations

import math

import pytest
import torch
from peft import set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from minigpt import lora
from minigpt.lora import KINDS, LoRALinear, files
from minigpt.model import GPT, GPTConfig
from tests.adapted import BATCHES, CLOSE, SIX, pair, peft_of, tiny


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_adapters_comes_back_here_and_in_peft(kind, tmp_path):
    ours, _ = pair(kind)
    tokens, path = BATCHES[0][0], tmp_path / "new folder" / "adapter.safetensors"
    lora.save(ours, path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    fresh, fresh_peft = tiny(), peft_of(tiny(), kind, SIX)
    assert lora.load(fresh, path) == list(lora.adapters(ours))
    assert torch.equal(fresh(tokens), ours(tokens))
    assert repr(fresh) == repr(ours) and lora.trainable_parameters(fresh) == lora.trainable_parameters(ours)
    assert set_peft_model_state_dict(fresh_peft, load_file(path)).unexpected_keys == []
    torch.testing.assert_close(fresh_peft(tokens), ours(tokens), **CLOSE)


def test_a_file_keeps_the_settings_and_the_type(tmp_path):
    model = tiny()
    lora.inject(model, 3, 5, ["up_proj"], "rslora", dropout=0.25, adapter_dtype=torch.bfloat16)
    lora.save(model, tmp_path / "a")
    fresh = tiny()
    lora.load(fresh, tmp_path / "a")
    for layer in lora.adapters(fresh).values():
        assert (layer.rank, layer.alpha, layer.kind, layer.dropout) == (3, 5, "rslora", 0.25)
        assert layer.scaling == 5 / math.sqrt(3) and layer.lora_A.dtype == torch.bfloat16


def test_a_file_that_does_not_fit_is_refused_and_leaves_the_model_as_it_was(tmp_path):
    model, other = tiny(), GPT(GPTConfig(n_layer=2, n_embd=64, n_head=2))
    lora.inject(other, 4)
    lora.save(other, tmp_path / "wide")
    (tmp_path / "text").write_text("not tensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    for name, message in {
        "nowhere": "nowhere', which cannot be read", "text": "text', which cannot be read",
        "plain": "which has no adapter settings in its header",
        "wide": r"q_proj.lora_A.weight is \(4, 64\), the model needs \(4, 32\)",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            lora.load(model, tmp_path / name)
    assert lora.trainable_parameters(model) == sum(p.numel() for p in model.parameters())
    with pytest.raises(ValueError, match="model has an adapter at blocks.0.attn.q_proj already"):
        lora.load(other, tmp_path / "wide")
    with pytest.raises(ValueError, match="model has no adapters"):
        lora.save(model, tmp_path / "wide")
    other.blocks[0].attn.q_proj = LoRALinear(nn.Linear(64, 64), 2)
    with pytest.raises(ValueError, match="adapters that differ in rank"):
        lora.save(other, tmp_path / "wide")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, header: tensors.update(extra=torch.zeros(1)), "the model has no place for extra"),
        (lambda tensors, header: next(iter(tensors.values())).fill_(math.nan), "weight holds NaN or infinity"),
        (lambda tensors, header: header.update(lora="[]"), "no adapter settings in its header"),
        (lambda tensors, header: header.update(lora="{"), "a', which cannot be read"),
        (lambda tensors, header: tensors.popitem(), "weight is None, the model needs"),
    ],
)
def test_a_changed_file_is_refused(change, message, tmp_path):
    model, fresh = tiny(), tiny()
    lora.inject(model, 4)
    lora.save(model, tmp_path / "a")
    with safe_open(tmp_path / "a", "pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    change(tensors, header)
    save_file(tensors, tmp_path / "a", header)
    with pytest.raises(ValueError, match=message):
        lora.load(fresh, tmp_path / "a")
    assert lora.trainable_parameters(fresh) == sum(p.numel() for p in fresh.parameters())


def test_a_file_for_another_depth_is_refused(tmp_path):
    shallow, deep = (GPT(GPTConfig(n_layer=n, n_embd=32, n_head=2)) for n in (1, 3))
    lora.inject(shallow, 4)
    lora.save(shallow, tmp_path / "a")
    with pytest.raises(ValueError, match="made for a model of 7 linear layers; this model has 19"):
        lora.load(deep, tmp_path / "a")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    model = tiny()
    lora.inject(model, 4)
    lora.save(model, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()

    def full(tensors, path, header):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(OSError, match="no space left"):
        lora.save(model, tmp_path / "a")
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == before
