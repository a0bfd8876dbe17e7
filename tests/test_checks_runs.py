"""The checks of labs 04's and 10's runs: what the judge makes itself, and what a notebook hands over in its place."""

import pytest
import torch

from minigpt.checks import runs
from minigpt.checks.galore import running as galore
from minigpt.checks.optimizers import running as eight
from minigpt.lora import inject
from minigpt.model import GPT, GPTConfig
from minigpt.optim import adam8bit, adam_step, blockwise
from minigpt.optim.galore import find_projection, project, project_back
from tests.judged import refuses

CONFIG = GPTConfig(n_layer=1, n_embd=24, n_head=2, context=96, vocab_size=256)
BEGUN = runs.Beginning("tiny", CONFIG, 0, torch.device("cpu"))


def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    """Written with the package's parts, whose codes are shaped as the weight."""
    small = weight.numel() < adam8bit.SMALLEST
    m = v = torch.zeros_like(weight)
    if state and small:
        m, v = state["m"], state["v"]
    elif state:
        m, v = (maps[kind][state[name].long()] * state[f"{name}_absmax"].repeat_interleave(256)[: weight.numel()]
                for name, kind in (("m", "signed"), ("v", "unsigned")))  # fmt: skip
        m, v = m.view(weight.shape), v.view(weight.shape)
    options = dict(lr=lr, betas=betas, eps=eps, weight_decay=decay)
    weight, m, v = adam(weight, grad, m, v, t, **options)
    if small:
        return weight, {"m": m, "v": v}
    new = {}
    for name, x, kind in (("m", m, "signed"), ("v", v, "unsigned")):
        codes, new[f"{name}_absmax"] = quantized(x, maps[kind])
        new[name] = codes.flatten()
    return weight, new


def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    tall = W.shape[0] >= W.shape[1]
    if state.get("step", 0) % gap == 0:
        (state["P"],) = found(G, rank).values()
    side = {"right" if tall else "left": state["P"]}
    R = low(G, **side)
    m, v = state.get("m", torch.zeros_like(R)), state.get("v", torch.zeros_like(R))
    state["m"], state["v"] = betas[0] * m + (1 - betas[0]) * R, betas[1] * v + (1 - betas[1]) * R**2
    state["step"] = t = state.get("step", 0) + 1
    size = lr * scale * (1 - betas[1] ** t) ** 0.5 / (1 - betas[0] ** t)
    W -= size * back(state["m"] / (state["v"].sqrt() + eps), **side)


def copied(function):
    """The same code under another name: the book closes the package's own."""
    return type(function)(function.__code__, function.__globals__, function.__name__, function.__defaults__)


def with_defaults(function):
    made = copied(function)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


adam, quantized = with_defaults(adam_step), with_defaults(blockwise.quantize)
found, low, back = map(with_defaults, (find_projection, project, project_back))


def test_a_right_step_is_the_courses_and_keeps_what_is_predicted(monkeypatch):
    monkeypatch.setattr(eight, "by_hand", lambda function, *args, twice, guards: function(*args))
    eight.steps(adam8bit_step, BEGUN)
    eight.keeps(adam8bit_step, BEGUN)

    def undecayed(*args):
        return adam8bit_step(*args[:-1], 0.0)

    def whole(weight, grad, state, *more):
        new = adam8bit_step(weight, grad, {name: x for name, x in state.items() if name != "exact"}, *more)
        return new[0], new[1] | {"exact": torch.zeros_like(weight)}

    with refuses("other-steps", "three steps of yours are not"):
        eight.steps(lambda *args: (args[0], adam8bit_step(*args)[1]), BEGUN)
    with pytest.raises(AssertionError, match="all states of the model"):
        eight.keeps(whole, BEGUN)
    with refuses("no-pair"):
        eight.keeps(lambda weight, *_: weight, BEGUN)
    with refuses("other-steps"):
        monkeypatch.setattr(eight, "DECAY", 50.0)  # so large that three steps show it
        eight.steps(undecayed, BEGUN)


def test_ten_galore_steps_are_the_courses(monkeypatch):
    monkeypatch.setattr(galore.probes, "by_hand", lambda function, *args, twice, untouched, none_ok, **more:
                        function(*args, **more))  # fmt: skip
    monkeypatch.setattr(galore.probes, "taken", galore.probes.taken.function)
    galore.steps(galore_step, BEGUN)
    galore.keeps(galore_step, (BEGUN, 5))
    with pytest.raises(AssertionError, match="ten losses"):
        galore.steps(lambda W, *args, **options: galore_step(W, *args, **options | {"lr": 0.05}), BEGUN)

    def more(W, G, state, **options):
        galore_step(W, G, state, **options)
        state["G"] = G.clone()

    with pytest.raises(AssertionError, match="all states of the blocks' matrices"):
        galore.keeps(more, (BEGUN, 5))


def shifted(amount: float) -> GPT:
    """A model whose bytes are as likely as they are in text, nearly: the last norm's weight is larger."""
    model = BEGUN.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=amount)
    for tokens, targets in BEGUN.batches(6):
        optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()
    return model


def test_weights_are_judged_and_no_words():
    one, two = shifted(1e-2), shifted(1.0001e-2)
    eight.learned({"AdamW": one, "8-bit AdamW": two}, (BEGUN, 0.1, 0))
    for models in (None, {}, {"AdamW": one}, 7):
        with refuses("not-run"):
            eight.learned(models, (BEGUN, 0.1, 0))
    with refuses("one-run"):
        eight.learned({"AdamW": one, "8-bit AdamW": one}, (BEGUN, 0.1, 0))
    with refuses("did-not-fall", "8-bit AdamW: the validation loss"):
        eight.learned({"AdamW": one, "8-bit AdamW": BEGUN.model()}, (BEGUN, 0.1, 0))
    with refuses("other-model"):
        eight.learned({"AdamW": one, "8-bit AdamW": torch.nn.Linear(2, 2)}, (BEGUN, 0.1, 0))
    spoiled = BEGUN.model()
    torch.nn.init.constant_(spoiled.norm.weight, float("nan"))
    with refuses("did-not-fall"):
        eight.learned({"AdamW": one, "8-bit AdamW": spoiled}, (BEGUN, 0.1, 0))
    with refuses("apart"):
        eight.learned({"AdamW": one, "8-bit AdamW": shifted(1e-3)}, (BEGUN, 0.01, 0))


def test_what_lora_freezes_is_as_it_was():
    adapted = BEGUN.model()
    inject(adapted, 3, 16, targets="all-linear")
    one, two = shifted(1e-2), shifted(2e-2)
    with refuses("did-not-fall", "^LoRA"):  # B is zeros: nothing was learned
        galore.learned({"full": one, "GaLore": two, "LoRA": adapted}, (BEGUN, 0.1, 0))
    with refuses("frozen", "^GaLore"):
        still = shifted(1e-2)
        still.token_embedding.weight.data.copy_(BEGUN.model().token_embedding.weight)
        galore.learned({"full": one, "GaLore": still, "LoRA": adapted}, (BEGUN, -9.0, 0))
    galore.learned({"full": one, "GaLore": two, "LoRA": adapted}, (BEGUN, -9.0, 0))
    with refuses("other-model", "^LoRA: there are no adapters"):
        galore.learned({"full": one, "GaLore": two, "LoRA": one}, (BEGUN, -9.0, 0))
    adapted.blocks[0].mlp.up_proj.base.weight.data.add_(1e-3)
    with refuses("frozen", "^LoRA"):
        galore.learned({"full": one, "GaLore": two, "LoRA": adapted}, (BEGUN, -9.0, 0))
