"""The checks of lab 12: their arithmetic against torch, predict and real ranks; ranks that hang.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

import linecache
import os
import time
from pathlib import Path

import pytest
import torch

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import sharding as probes
from minigpt.checks.sharding import dealing, keeping, running
from minigpt.memory import TrainingPlan, predict
from minigpt.memory.measured.sending import names_of, source_of
from minigpt.memory.predicted import sharded
from minigpt.model import GPTConfig
from minigpt.sharding import shard_blocks, zero3
from tests.judged import refuses, swallow

TINY = GPTConfig(n_layer=2, n_embd=20, n_head=2, context=9, vocab_size=256)
CELL = """
def length(n, ranks):
    return -(-n // ranks)

def step(parameters, state, group, update):
    n, sizes = sum(p.numel() for p in parameters), [p.numel() for p in parameters]
    k = length(n, group.ranks)
    row = F.pad(torch.cat([p.grad.flatten() for p in parameters]), (0, k * group.ranks - n))
    mine = F.pad(torch.cat([p.detach().flatten() for p in parameters]), (0, k * group.ranks - n)).split(k)[group.rank]
    update(mine, group.reduce_scatter(row) / group.ranks, state)
    for p, piece in zip(parameters, group.all_gather(mine)[:n].split(sizes)):
        p.grad = None
        p.data.copy_(piece.view_as(p))

def leaves(parameters, state, group, update):
    if group.rank == 0:
        group.all_gather(torch.ones(3))

def hangs(parameters, state, group, update):
    import time
    time.sleep(600 if group.rank else 0)
    group.all_gather(torch.ones(3))

print(undefined)  # what is no definition is not run again
"""


@pytest.fixture
def cell():
    """A notebook's cell: its names, after it has run as far as it goes."""
    name = "<cell of lab 12>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    names = {"__name__": "__main__", "torch": torch, "F": torch.nn.functional}
    with pytest.raises(NameError):
        exec(compile(CELL, name, "exec"), names)
    yield names
    del linecache.cache[name]


@pytest.mark.parametrize("n, ranks", [(10, 4), (14, 4), (5, 4), (101, 7), (48, 6), (2, 5)])
def test_parts_are_those_of_torch_chunk(n, ranks):
    chunks = [list(part) for part in torch.arange(n).chunk(ranks)]
    dealt = [list(range(*part)) for part in dealing.dealt(n, ranks)]
    assert dealt == chunks + [[]] * (ranks - len(chunks))


@pytest.mark.parametrize("model, ranks", [("llama-2-70b", 8), ("llama-7b", 7)])
def test_a_cards_bytes_are_those_of_predict_and_of_what_is_gathered(model, ranks):
    words = dict(batch=1, seq_len=8, precision="fp32", sharding="fsdp2", ranks=ranks, param_dtype="bf16")
    plan = TrainingPlan(**words)
    block, rest, layers = keeping.parts_of(model)
    mine, course = keeping.on_a_card(block, rest, layers, ranks), predict(model, plan)
    assert mine["weights"] == course.ledger.weights - course.frozen  # the rotary frequencies
    assert mine["gradients"] == course.ledger.gradients and mine["optimizer"] == course.ledger.optimizer
    (forward,) = [s for s in sharded.communication(model, plan) if (s.collective, s.phase) == ("all-gather", "forward")]
    assert forward.nbytes == layers * mine["layer"] + mine["root"]


def test_collectives_sum_and_join_as_torchs_do():
    def run(group):
        part = group.reduce_scatter(torch.arange(6.0) * (group.rank + 1))
        return part.tolist(), group.all_gather(part + group.rank).tolist()

    gathered = [0.0, 6.0, 13.0, 19.0, 26.0, 32.0]
    assert probes.together(run, 3, "it") == [([0.0, 6.0], gathered), ([12.0, 18.0], gathered), ([24.0, 30.0], gathered)]


@pytest.mark.parametrize(
    "id, run",
    {
        "ranks-disagree": lambda group: group.rank or group.all_gather(torch.ones(2)),
        "unequal-shards": lambda group: group.all_gather(torch.ones(2 + group.rank)),
        "not-padded": lambda group: group.reduce_scatter(torch.ones(5)),
        "not-flat": lambda group: group.all_gather(torch.ones(2, 2)),
        "not-contiguous": lambda group: group.all_gather(torch.ones(4, 2)[:, 0]),
        "does-not-end": lambda group: [group.all_gather(torch.ones(1)) for _ in range(101)],
    }.items(),
)
def test_what_real_ranks_would_not_survive_is_said(id, run):
    with refuses(id):
        probes.together(run, 2, "it")


def test_memory_that_is_kept_is_seen():
    kept = []

    def run(group):
        kept[:] = [group.all_gather(torch.ones(4))[:1]]
        before = group.alive()
        kept.clear()
        return before, group.alive()

    assert probes.together(run, 2, "it") == [([32], [])] * 2


ASKING = (
    lambda: sharded.shards.padded((3, 4), 2),
    lambda: keeping.room([(3, 4)], 2),
    lambda: sharded.rank(TINY, TrainingPlan(seq_len=8, sharding="fsdp2", ranks=2), 0),
)


@pytest.mark.parametrize("ask", ASKING)
def test_the_book_is_closed(ask):
    assert ask() is not None
    for answer in (ask, swallow(ask)):
        with refuses("asks-course"):
            by_hand(answer)


def test_the_courses_own_sharding_is_closed():
    for ask in (lambda: shard_blocks(None), lambda: zero3.gather(None, None)):
        with refuses("asks-course"):
            by_hand(ask)


def test_the_text_that_travels_has_what_a_function_uses_and_no_more(cell):
    source = source_of([cell["step"]])
    assert names_of(source)["length"](10, 4) == 3 and "undefined" not in source
    with pytest.raises(ValueError, match="has no text"):
        source_of([eval("lambda: 0", {"__name__": "__main__"})])


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(cell):
    ranks, why = running.tried(lambda: running.together({"step": cell["step"]}, "zero1", TINY, 3))
    assert why == "" and ranks is not None
    assert ranks[0]["losses"] == ranks[1]["losses"] == pytest.approx(running.alone(TINY, 3), rel=1e-6)
    n = 2 * (12 * 20 * 20 + 2 * 20) + (256 + 9 + 1) * 20
    assert [told["optimizer"] for told in ranks] == [8 * n / 2 + 4] * 2 and ranks[0]["left"] == 0


@pytest.mark.slow
def test_a_rank_that_hangs_ends_all_and_nothing_is_left(cell):
    began = time.monotonic()
    ranks, why = running.tried(lambda: running.together({"step": cell["hangs"]}, "zero1", TINY, 1, patience=2))
    assert ranks is None and "\n" not in why and time.monotonic() - began < 60
    assert "rank 1 of 2 kept rank 0 of 2 waiting: it came to no collective within the 2 seconds" in why
    assert not children_of(os.getpid())


def children_of(parent: int) -> list[str]:
    """The commands of ranks that this process has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended meanwhile
    return [command for command in found if "measured.apart" in command]
