"""MiniGPT against transformers' GPT-2, its own two attentions, and the formulas of its docstring."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from minigpt.model import GPT, IGNORE, PRESETS, GPTConfig, cross_entropy

TINY = GPTConfig(n_layer=2, n_embd=32, n_head=4, context=24, vocab_size=64)


def tiny(seed: int = 0, **changes) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig(**{**vars(TINY), **changes})).eval()


def some_tokens(length: int = 16, batch: int = 2) -> torch.Tensor:
    return torch.randint(64, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_what_the_formulas_say(name):
    config = GPTConfig.preset(name)
    with torch.device("meta"):
        model = GPT(config)
    L, C, V, S = config.n_layer, config.n_embd, config.vocab_size, config.context
    assert sum(p.numel() for p in model.parameters()) == 12 * L * C**2 + V * C + S * C + (2 * L + 1) * C


def test_small_has_the_85_million_weights_of_gpt2():
    with torch.device("meta"):
        model, gpt2 = GPT(GPTConfig.preset("small")), GPT2LMHeadModel(GPT2Config())
    linears = sum(m.weight.numel() for m in model.blocks.modules() if isinstance(m, nn.Linear))
    matrices = sum(p.numel() for p in gpt2.transformer.h.parameters() if p.ndim == 2)
    assert linears == matrices == 84_934_656


def test_the_logits_are_those_of_gpt2_with_zero_biases():
    model = tiny()
    gpt2 = GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=24, vocab_size=64, activation_function="gelu")
    ).eval()
    ours = model.state_dict()
    theirs = {name: torch.zeros_like(value) for name, value in gpt2.state_dict().items()}
    theirs["transformer.wte.weight"] = theirs["lm_head.weight"] = ours["token_embedding.weight"]
    theirs["transformer.wpe.weight"] = ours["position_embedding.weight"]
    theirs["transformer.ln_f.weight"] = ours["norm.weight"]
    for i in range(2):
        a, b = f"blocks.{i}.", f"transformer.h.{i}."
        theirs[b + "ln_1.weight"], theirs[b + "ln_2.weight"] = ours[a + "attn_norm.weight"], ours[a + "mlp_norm.weight"]
        theirs[b + "attn.c_attn.weight"] = torch.cat([ours[f"{a}attn.{x}_proj.weight"] for x in "qkv"]).T
        theirs[b + "attn.c_proj.weight"] = ours[a + "attn.o_proj.weight"].T
        theirs[b + "mlp.c_fc.weight"] = ours[a + "mlp.up_proj.weight"].T
        theirs[b + "mlp.c_proj.weight"] = ours[a + "mlp.down_proj.weight"].T
    gpt2.load_state_dict(theirs)
    tokens = some_tokens()
    torch.testing.assert_close(model(tokens), gpt2(tokens).logits)


def test_eager_and_sdpa_agree_in_logits_and_gradients():
    sdpa, eager = tiny(), tiny(attention="eager")
    tokens = some_tokens()
    for model in (sdpa, eager):
        model(tokens, tokens.roll(-1, 1)).backward()
    torch.testing.assert_close(sdpa(tokens), eager(tokens))
    for p, q in zip(sdpa.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_token_sees_the_future(attention):
    model, tokens = tiny(attention=attention), some_tokens()
    changed = tokens.clone()
    changed[:, 9] = (tokens[:, 9] + 1) % 64
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=0)
    assert (before[:, 9:] != after[:, 9:]).any(-1).all()


def test_the_weights_start_with_the_stated_spread():
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("nano"))
    for name, p in model.named_parameters():
        if p.ndim == 1:
            assert (p == 1).all(), name
        else:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            wanted = 0.02 / math.sqrt(2 * 4) if writes else 0.02
            assert p.std().item() == pytest.approx(wanted, rel=4 / math.sqrt(2 * p.numel())), name  # four sigma


def test_the_head_is_tied():
    model = tiny()
    assert model.lm_head.weight.data_ptr() == model.token_embedding.weight.data_ptr()


def test_the_loss_is_a_mean_over_the_targets_that_count():
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    targets[0, :3] = targets[1, 4] = IGNORE
    by_hand = []
    for row, row_targets in zip(logits.tolist(), targets.tolist()):
        for scores, target in zip(row, row_targets):
            if target != IGNORE:
                by_hand.append(math.log(sum(math.exp(s) for s in scores)) - scores[target])
    assert cross_entropy(logits, targets).item() == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)


def test_greedy_generation_takes_the_likeliest_token_and_slides_past_the_context():
    model, text = tiny(), some_tokens(4, batch=1)
    out = model.generate(text, 30, temperature=0)
    assert out.shape == (1, 34)
    for t in range(4, 34):
        assert out[0, t] == model(out[:, max(0, t - 24) : t])[0, -1].argmax()
    stop = out[0, 6].item()
    stopped = model.generate(text, 30, temperature=0, stop=stop)[0].tolist()
    assert stopped == out[0, : 5 + out[0, 4:].tolist().index(stop)].tolist()


def test_the_coldest_temperatures_take_the_likeliest_token():
    model, prompt = tiny(), some_tokens(4, batch=1)
    assert torch.equal(model.generate(prompt, 5, temperature=1e-300), model.generate(prompt, 5, temperature=0))


def test_sampling_repeats_with_its_generator():
    model, text = tiny(), some_tokens(4, batch=1)
    one, same, other = (model.generate(text, 12, generator=torch.Generator().manual_seed(s)) for s in (3, 3, 4))
    assert one.equal(same) and not one.equal(other)


def test_peft_wraps_it_by_its_target_names():
    model, tokens = tiny(), some_tokens()
    before = model(tokens)
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    torch.testing.assert_close(wrapped(tokens), before)  # B starts at zero
    assert sum(p.numel() for p in wrapped.parameters() if p.requires_grad) == 2 * 2 * (32 + 32)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(n_layer=0), "n_layer is 0"),
        (dict(n_layer=True), "n_layer is True"),
        (dict(attention=[]), r"attention is \[\]"),
        (dict(n_head=5), "n_head is 5; it must divide n_embd"),
        (dict(attention="flash"), "attention is 'flash'; allowed: sdpa, eager"),
    ],
)
def test_bad_shapes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_bad_calls_are_named():
    with pytest.raises(ValueError, match="preset is 'huge'; allowed: nano, micro, small"):
        GPTConfig.preset("huge")
    with pytest.raises(ValueError, match=r"preset is \[\]; allowed"):
        GPTConfig.preset([])
    with pytest.raises(ValueError, match="max_new_tokens is -1; it must be an integer of at least 0"):
        tiny().generate(some_tokens(2, batch=1), -1)
    with pytest.raises(ValueError, match="the sequence has 25 tokens; the model's context is 24"):
        tiny()(some_tokens(25))
    with pytest.raises(ValueError, match=r"tokens has shape \(1, 0\)"):
        tiny().generate(some_tokens(0, batch=1), 1)
    with pytest.raises(ValueError, match="temperature is -1"):
        tiny().generate(some_tokens(2, batch=1), 1, temperature=-1)
