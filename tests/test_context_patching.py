"""What Liger and Unsloth replace: stand-ins compute what transformers does, and Unsloth's source has the names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from minigpt.context.patching import PIECES, patched

NORMS, BLOCKS = 5, 2
LIGER = {"rotary": BLOCKS, "norm": NORMS, "MLP": BLOCKS, "loss": 1}
UNSLOTH = {**LIGER, "attention": BLOCKS, "block": BLOCKS, "model": 1}


def test_who_is_called():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=BLOCKS, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=None,
    ))  # fmt: skip

    def names():
        return modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaAttention.forward, LlamaForCausalLM.forward

    before = names()
    tokens = torch.randint(0, 60, (2, 16))
    own = model(tokens, labels=tokens).loss
    expected = {
        (): ({}, {}),
        ("liger",): (LIGER, {}),
        ("unsloth",): ({}, UNSLOTH),
        ("liger", "unsloth"): ({"loss": 1}, {**UNSLOTH, "loss": 0}),
        ("unsloth", "liger"): ({"loss": 1, "MLP": BLOCKS}, {**UNSLOTH, "loss": 0, "MLP": 0}),
    }
    for order, counts in expected.items():
        with patched(model, order) as calls:
            assert torch.allclose(model(tokens, labels=tokens).loss, own, atol=1e-6)
        for library, wanted in zip(("liger", "unsloth"), counts):
            assert {piece: calls[library, piece] for piece in PIECES} == {p: wanted.get(p, 0) for p in PIECES}, order
    with pytest.raises(ValueError, match="library is 'apex'; allowed: liger, unsloth"):
        with patched(model, ["unsloth", "apex"]):
            pass
    assert names() == before
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_unsloths_source_has_these_names():
    """Read, not imported: its import patches what is there."""
    found = importlib.util.find_spec("unsloth")
    if found is None or found.origin is None:
        pytest.skip("unsloth is not installed")
    source = (Path(found.origin).parent / "models" / "llama.py").read_text()
    for line in (
        "LlamaAttention.forward = LlamaAttention_fast_forward",
        "LlamaDecoderLayer.forward = LlamaDecoderLayer_fast_forward",
        "LlamaModel.forward = LlamaModel_fast_forward",
        "LlamaForCausalLM.forward = CausalLM_fast_forward(",
        "mlp_module.forward = types.MethodType(",
        "fast_rms_layernorm(\n            self.input_layernorm, hidden_states",
        "= fast_rope_embedding(Q, K, cos, sin, rope_position_ids)",
    ):
        assert line in source, line
