"""Watch against the meter, and event by event."""

import torch

from minigpt.memory import MemoryMeter
from minigpt.memory.measured.watch import Watch
from minigpt.model import GPT, GPTConfig


def test_what_is_saved_is_what_the_meter_calls_activations():
    model = GPT(GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16, vocab_size=50))
    tokens = torch.randint(50, (3, 16))
    with MemoryMeter(model, inputs=(tokens,)) as meter:
        meter.mark("forward")
        loss = model(tokens, tokens)
        meter.mark("backward")
        loss.backward()
    with Watch(tokens=tokens, **dict(model.named_parameters())) as watch:
        model(tokens, tokens)
    weights = dict(model.named_parameters())
    saved = sum(nbytes for name, nbytes in watch.saved_bytes().items() if name not in weights)
    assert saved == meter.result().ledger.activations > 10**5


def test_a_life_ends_with_its_last_holder_and_a_view_is_no_birth():
    x = torch.randn(4, 8, requires_grad=True)
    with Watch(x=x) as watch:
        y = x * 2
        view = y.view(8, 4)
        del y
        z = view.exp()
        del view
    assert watch.events == [
        ("born", "mul #1", 128),
        ("born", "exp #2", 128),
        ("saved", "exp #2", 128),
        ("died", "mul #1", 0),
    ]
    assert [(life.name, life.born, life.died, life.saved) for life in watch.lives()] == [
        ("x", 0, 4, False),
        ("mul #1", 0, 3, False),
        ("exp #2", 1, 4, True),
    ]
    assert z.shape == (8, 4)
