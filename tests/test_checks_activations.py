"""The checks of lab 05: their truths against the meter, the course's lists and torch, and the book that they close.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

from dataclasses import replace

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from minigpt import checkpointing, chunked_loss
from minigpt.checks import Wrong, probes
from minigpt.checks.activations import accumulating, again, blocks, chunks, fitting, metering
from minigpt.checks.closing import by_hand
from minigpt.checks.probes import functions, probe, scenes
from minigpt.checks.probes.watching import Watch, python_bytes
from minigpt.memory import MemoryMeter, TrainingPlan, predict
from minigpt.memory.saved import saved_by_block
from minigpt.model import IGNORE, GPTConfig
from tests.judged import TINY, refuses

LLAMA = dict(hidden_size=84, intermediate_size=234, head_dim=22, num_attention_heads=6, num_key_value_heads=2)


# ---------------------------------------------------------------- the truth


def test_a_llamas_block_is_the_courses_list():
    plan = TrainingPlan(batch=2, seq_len=31, precision="bf16")
    listed = saved_by_block({**blocks.llama_model(LLAMA), "num_hidden_layers": 2}, plan)
    assert blocks.kept_llama(tuple(LLAMA.items()), 2, 31) == sum(row.counted for row in listed)


def test_an_eager_block_is_the_courses_list():
    listed = saved_by_block(TINY, TrainingPlan(batch=3, seq_len=5, attention="eager"))
    assert blocks.kept_eager(TINY, 3, 5) == sum(row.counted for row in listed)


def test_each_way_of_counting_wrongly_shows_in_a_scene():
    """Against what the meter reads there."""
    shown, ways = set(), set()
    for make in scenes.SCENES.values():
        run, module, inputs = make()
        with MemoryMeter(module, inputs=inputs) as meter:
            run()
        right = meter.result().ledger.activations
        given = {id: value for id, (_, value) in metering.mistakes(run, list(module.parameters())).items()}
        ways |= set(given)
        shown |= {id for id, value in given.items() if value != right}
    assert shown == ways


def by_targets(model, tokens, targets, rows):
    total = targets.ne(IGNORE).sum().item()
    loss = 0.0
    for some, wanted in zip(tokens.split(rows), targets.split(rows)):
        count = wanted.ne(IGNORE).sum().item()
        if count:
            part = model(some, wanted) * count / total
            part.backward()
            loss += part.item()
    return loss


CASE = accumulating.Case((4, 1, 3), rows=2)


def test_accumulation_by_targets_is_the_big_batch_and_no_weighting_of_the_cases_is_another():
    for case in (CASE, accumulating.Case((3, 0, 0, 2), rows=1)):
        accumulating.adds(by_targets, case)
        accumulating.returns(by_targets, case)
    accumulating.few(by_targets)
    weightings = {id: tuple(shares) for id, (_, shares) in accumulating.weightings(CASE).items()}
    right = tuple(count / sum(CASE.parts) for count in CASE.parts)
    assert right not in weightings.values() and len(set(weightings.values())) == len(weightings)


def test_a_step_and_changed_targets_are_refused():
    def steps(model, tokens, targets, rows):
        loss = by_targets(model, tokens, targets, rows)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return loss

    def masks(model, tokens, targets, rows):
        loss = by_targets(model, tokens, targets, rows)
        targets[0] = IGNORE
        return loss

    with refuses("steps", "makes gradients, and no step"):
        accumulating.adds(steps, CASE)
    with refuses("changes-arguments"):
        accumulating.adds(masks, CASE)


class Torchs(torch.autograd.Function):
    """The course's own answers under the lab's names."""

    @staticmethod
    def apply(*args):
        if isinstance(args[0], nn.Module):
            return torch.utils.checkpoint.checkpoint(args[0], args[1], use_reentrant=False)
        return chunked_loss.chunked_cross_entropy(*args[:3], chunk=args[3])


@pytest.fixture
def open_book(monkeypatch):
    """So that torch's and the course's own answers can be judged."""
    monkeypatch.setattr(functions, "by_hand", lambda run, *args, **_: run(*args))
    for name in ("checkpointed", "checkpoint_keeps", "chunked", "chunked_makes"):
        monkeypatch.setattr(functions, name, getattr(functions, name).function)
    monkeypatch.setattr(probes, "is_probing", lambda: True)


@pytest.mark.parametrize("case", [
    again.Case(12), again.Case(14, dropout=0.4), again.Case(10, trained_input=False), again.Case(8, frozen=True),
    again.Case(9, rows=(2, 3)), again.Case(7, dropout=0.2, blocks=3),
], ids=lambda case: case.text)  # fmt: skip
def test_torchs_own_checkpoint_passes(case, open_book):
    again.backward(Torchs, case)
    again.keeps(Torchs)


@pytest.mark.parametrize("case", [
    chunks.Case(20, 30, 8, 6), chunks.Case(23, 40, 9, 5, ignored=(0, 7, 20, 21, 22)), chunks.Case(9, 50, 6, 40),
], ids=lambda case: case.text)  # fmt: skip
def test_the_courses_loss_in_chunks_passes(case, open_book):
    chunks.gradients(Torchs, case)
    chunks.never_whole(Torchs, chunks.Case(150, 400, 10, 9))


def test_what_draws_another_mask_is_named_only_where_there_is_dropout(open_book):
    class Anew(torch.autograd.Function):
        @staticmethod
        def apply(run, x, *_):
            return torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

    again.backward(Anew, again.Case(12))
    with refuses("other-draw", "draws another dropout mask"):
        again.backward(Anew, again.Case(12, dropout=0.4))


SMALL = GPTConfig(n_layer=3, n_embd=32, n_head=2, context=32, vocab_size=100)
ROOMS = [fitting.Case(SMALL, 32, 9), fitting.Case(SMALL, 32, 12, checkpointed=True)]


@pytest.mark.parametrize("case", ROOMS, ids=lambda case: case.text)
def test_the_room_holds_the_batch_and_not_one_more(case):
    room = fitting.room_of(case)
    peaks = [fitting.on_top(predict(case.config, case.plan(case.batch + more))) for more in (0, 1)]
    assert peaks[0] <= room < peaks[1]
    batch = min((room - once) // each for each, once in fitting.instants(case).values())
    assert batch == case.batch
    fitting.fits(lambda *_: case.batch, case)
    with pytest.raises(Wrong, match="one more than fits: round down"):
        fitting.fits(lambda *_: case.batch + 1, case)


def test_a_meter_that_reads_otherwise_is_an_error_of_the_lab(monkeypatch):
    case = ROOMS[0]._replace(batch=5)
    monkeypatch.setattr(
        fitting, "measure", lambda config, plan, device: predict(config, replace(plan, batch=plan.batch + 2))
    )
    with pytest.raises(RuntimeError, match="is not between them"):
        fitting.fits(lambda *_: 5, case)


# ---------------------------------------------------------------- what is counted beside an answer


@probe
def counted(scene: str) -> dict:
    run, module, inputs = scenes.SCENES[scene]()
    with Watch(module.parameters(), inputs) as watch:
        given = run()
        alive = watch.alive(given)
    return {"kept": watch.kept, "peak": watch.peak, "largest": watch.largest, "alive": alive}


@pytest.mark.parametrize("scene", scenes.SCENES)
def test_a_watch_reads_what_the_meter_reads(scene):
    said = counted(scene)
    run, module, inputs = scenes.SCENES[scene]()
    with MemoryMeter(module, inputs=inputs) as meter:
        meter.mark("run")
        given = run()
    reading = meter.result()
    before = sum(change for phase, _, change in reading.events if phase == "before")
    made = [change for phase, _, change in reading.events if phase == "run"]
    assert said["kept"] == reading.ledger.activations
    assert said["largest"] == max(made)
    if given is not None:  # backward sums in place, which the meter books as torch does without it
        assert said["peak"] == reading.peak.total - before
        assert said["alive"] == sum(made) - given.untyped_storage().nbytes()


def test_a_watch_is_for_probes_alone():
    def asks():
        with Watch() as watch:
            torch.ones(3)
        return watch.peak

    with refuses("asks-course"):
        by_hand(asks, building=True)
    with refuses("asks-course"):
        scenes.saved(lambda run, known: asks(), "a block of MiniGPT")
    asks_in_a_probe = probe(lambda: asks())
    assert asks_in_a_probe() == 12


def test_what_python_takes_is_counted():
    kept = []
    _, nbytes = python_bytes(lambda: kept.append(torch.ones(1000).tolist()))
    assert nbytes > 8000
    assert python_bytes(lambda: torch.ones(1000))[1] < 2000


# ---------------------------------------------------------------- the closed book

X = torch.ones(4, 3, requires_grad=True)
ASKING = {
    "saved_by_block": lambda: saved_by_block(TINY, TrainingPlan(batch=1, seq_len=4)),
    "checkpoint_blocks": lambda: checkpointing.checkpoint_blocks(nn.Module(), "none"),
    "chunked_cross_entropy": lambda: chunked_loss.chunked_cross_entropy(X, torch.ones(5, 3), torch.ones(4).long()),
    "its Function": lambda: chunked_loss._Chunked.apply(
        X, torch.ones(5, 3), torch.ones(4).long(), 2, IGNORE, torch.float32, [True, True]),
    "the meter": lambda: MemoryMeter().result(),
    "instants": lambda: fitting.instants(ROOMS[0]),
    "room_of": lambda: fitting.room_of(ROOMS[0]),
    "kept_llama": lambda: blocks.kept_llama(tuple(LLAMA.items()), 2, 31),
    "mistakes": lambda: metering.mistakes(lambda: None, []),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKING)
def test_the_courses_own_answers_are_closed(what):
    with refuses("asks-course", "the course's own arithmetic"):
        by_hand(ASKING[what], building=True)


def test_torchs_own_checkpoint_is_closed_and_open_again():
    layer = nn.Linear(3, 3)

    def asks():
        return torch.utils.checkpoint.checkpoint(layer, X, use_reentrant=False)

    with refuses("asks-torch", "the answer asks torch.utils.checkpoint"):
        by_hand(asks)
    assert asks().shape == (4, 3)
