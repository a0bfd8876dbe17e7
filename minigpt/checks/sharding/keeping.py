"""The bytes that a rank keeps between steps, and judging a student's arithmetic of them.

zero(zero_bytes, (config, ranks, stage))      ``zero_bytes(groups, ranks, stage)``: ZeRO by hand, stage 1 or 3
fsdp(fsdp_bytes, (config, ranks))             ``fsdp_bytes(shapes, ranks, rank)`` for each rank: fully_shard
card(card_bytes, (model, ranks))              ``card_bytes(block, rest, layers, ranks)``: rank 0, computing in 16 bits

All in float32 with AdamW. The truth is what a rank's meter reads, which
``predicted.sharded.rank`` has to the byte (tests/test_sharded.py).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from minigpt.checks.closing import asked_first, by_hand, knows, remembered
from minigpt.checks.comparing import buckets
from minigpt.checks.naming import Hints, times
from minigpt.checks.sharding import asking  # noqa: F401  closes the book
from minigpt.checks.sharding.dealing import length_of
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted import sharded
from minigpt.model import GPTConfig

knows(__name__)
KEPT = ("weights", "gradients", "optimizer")
Shapes = list[tuple[int, ...]]


def zero(zero_bytes: Callable, case: tuple[GPTConfig, int, int]) -> None:
    config, ranks, stage = case
    groups = groups_of(config)
    mine = by_hand(zero_bytes, groups, ranks, stage)
    what = f"ZeRO-{stage}, {ranks} ranks, groups of {', '.join(f'{g:,}' for g in groups)}"
    buckets(mine, metered(config, f"zero{stage}", ranks, 0), what, slips=zero_slips(groups, ranks, stage))


def fsdp(fsdp_bytes: Callable, case: tuple[GPTConfig, int]) -> None:
    config, ranks = case
    shapes = shapes_of(config)
    asked = [lambda rank=rank: by_hand(fsdp_bytes, shapes, ranks, rank) for rank in range(ranks)]
    for rank, mine in enumerate(asked_first(asked)):
        what, slips = f"fully_shard, rank {rank} of {ranks}", fsdp_slips(shapes, ranks, rank)
        buckets(mine, metered(config, "fsdp2", ranks, rank), what, slips=slips)


def card(card_bytes: Callable, case: tuple, only: tuple[str, ...] = ()) -> None:
    model, ranks = case
    block, rest, layers = parts_of(model)
    mine = by_hand(card_bytes, block, rest, layers, ranks)
    what = f"a model of {layers} blocks on {ranks} cards"
    buckets(mine, on_a_card(block, rest, layers, ranks), what, slips=card_slips(block, rest, layers, ranks), only=only)


# ---------------------------------------------------------------- truths


def groups_of(config: GPTConfig) -> list[int]:
    """Numbers of each block, and of what is in no block."""
    block, rest, layers = parts_of(config)
    return [*[sum(map(prod, block))] * layers, sum(map(prod, rest))]


def shapes_of(config: GPTConfig) -> Shapes:
    """Of every parameter, in the model's order."""
    return [tuple(t.shape) for t in Architecture.of(config).tensors()]


def parts_of(model) -> tuple[Shapes, Shapes, int]:
    """The shapes of one block, those of what is in no block, and the number of blocks."""
    a = Architecture.of(model)
    block = [tuple(t.shape) for t in a.block_tensors()]
    rest = [tuple(t.shape) for t in a.tensors() if not t.name.startswith(("blocks.", "layers."))]
    return block, rest, a.n_layer


def metered(config: GPTConfig, kind: str, ranks: int, rank: int) -> dict[str, int]:
    """Between two steps, in bytes."""
    return dict(zip(KEPT, _metered(tuple(vars(config).items()), kind, ranks, rank)))


@remembered
def _metered(config: tuple, kind: str, ranks: int, rank: int) -> tuple[int, ...]:
    plan = TrainingPlan(batch=1, seq_len=4, precision="fp32", sharding=kind, ranks=ranks)
    ledger = sharded.rank(GPTConfig(**dict(config)), plan, rank).ledger.as_dict()
    return tuple(ledger[name] for name in KEPT)


def rows(shape: tuple[int, ...], ranks: int, rank: int) -> int:
    most = length_of(shape[0], ranks)
    return min(most, max(0, shape[0] - rank * most))


def room(shapes: Shapes, ranks: int) -> int:
    """Numbers that a rank has room for, padding included."""
    return sum(length_of(shape[0], ranks) * prod(shape[1:]) for shape in shapes)


def on_a_card(block: Shapes, rest: Shapes, layers: int, ranks: int) -> dict[str, int]:
    own, tensors = layers * room(block, ranks) + room(rest, ranks), layers * len(block) + len(rest)
    return {
        "weights": 4 * own, "gradients": 4 * own, "optimizer": 8 * own + 4 * tensors,
        "layer": 2 * ranks * room(block, ranks), "root": 2 * ranks * room(rest, ranks),
    }  # fmt: skip


# ---------------------------------------------------------------- what mistakes add, one at a time

ONE_MOMENT = "AdamW keeps two moments of each number"
NO_COUNT = "AdamW also keeps a count of steps, 4 bytes for each tensor that it updates"


def zero_slips(groups: list[int], ranks: int, stage: int) -> dict[str, list[Hints]]:
    n, own, at_once = sum(groups), sum(length_of(g, ranks) for g in groups), length_of(sum(groups), ranks)
    full, down = ranks * own, sum(g // ranks for g in groups)
    cut = {
        "rounded-down": ("it is rounded down: a shard has ceil(n / W) numbers", down - own),
        "one-group": ("all is one group here; each group has its own padding", at_once - own),
        "two-ranks": ("these are the shards of 2 ranks", sum(length_of(g, 2) for g in groups) - own),
    }
    all_of = {"not-sharded": (f"stage {stage} cuts these: a rank has its shard alone", n - own),
              "not-sharded-padded": (f"stage {stage} cuts these: a rank has its shard alone", full - own)}  # fmt: skip
    never = f"stage {stage} does not cut these: every rank has all of them"
    if stage == 1:
        whole = {"no-padding": ("the flat tensor of each group ends in padding, which is there too", n - full),
                 "one-group": ("all is one group here; each group has its own padding", ranks * at_once - full),
                 "rounded-down": ("it is rounded down: a shard has ceil(n / W) numbers", ranks * down - full),
                 "two-ranks": ("these are the shards of 2 ranks", ranks * cut["two-ranks"][1]),
                 "sharded": (never, own - full)}  # fmt: skip
        made = {"padded": ("gradients come one by one, as autograd makes them: without padding", full - n),
                "sharded": (never, own - n)}  # fmt: skip
    else:
        whole = made = cut | all_of
    state = {id: (sentence, 2 * extra) for id, (sentence, extra) in (cut | all_of).items()}
    state |= {"one-moment": (ONE_MOMENT, -own)}
    counts = {"no-count": (NO_COUNT, -4 * len(groups)), "one-count": (NO_COUNT, 4 - 4 * len(groups))}
    return {"weights": times([whole], 4), "gradients": times([made], 4), "optimizer": [*times([state], 4), counts]}


def fsdp_slips(shapes: Shapes, ranks: int, rank: int) -> dict[str, list[Hints]]:
    n, padded = sum(map(prod, shapes)), room(shapes, ranks)
    real = sum(rows(shape, ranks, rank) * prod(shape[1:]) for shape in shapes)
    others = {
        "flat": ("each tensor is cut by its numbers here; fully_shard cuts along the first dimension",
                 sum(length_of(prod(shape), ranks) for shape in shapes)),
        "one-flat": ("all is one flat tensor here; fully_shard cuts each by itself", length_of(n, ranks)),
        "rounded-down": ("it is rounded down", sum(shape[0] // ranks * prod(shape[1:]) for shape in shapes)),
        "not-sharded": ("fully_shard cuts these, too", n),
        "last-dimension": ("it is cut along the last dimension; fully_shard takes the first",
                           sum(prod(shape[:-1]) * length_of(shape[-1], ranks) for shape in shapes)),
    }  # fmt: skip
    kept = {id: (sentence, value - padded) for id, (sentence, value) in others.items()}
    kept |= {"no-padding": ("these are this rank's rows alone; there is room for ceil(d / W) on every rank",
                            real - padded)}  # fmt: skip
    state = {id: (sentence, 2 * (value - real)) for id, (sentence, value) in others.items()}
    state |= {"state-of-padding": ("padding has no moments: AdamW sees this rank's rows", 2 * (padded - real)),
              "one-moment": (ONE_MOMENT, -real)}  # fmt: skip
    counts = {"no-count": (NO_COUNT, -4 * len(shapes)), "one-count": (NO_COUNT, 4 - 4 * len(shapes))}
    return {"weights": times([kept], 4), "gradients": times([kept], 4), "optimizer": [*times([state], 4), counts]}


def card_slips(block: Shapes, rest: Shapes, layers: int, ranks: int) -> dict[str, list[Hints]]:
    own, tensors = layers * room(block, ranks) + room(rest, ranks), layers * len(block) + len(rest)
    n = layers * sum(map(prod, block)) + sum(map(prod, rest))
    kept = {
        "not-sharded": ("a card has its part alone", 4 * (n - own)),
        "in-two-bytes": ("the shards stay in float32, 4 bytes; 16 bits have only the gathered copies", -2 * own),
        "no-padding": (
            "each tensor is cut along its first dimension, and the last part is filled up",
            4 * (n // ranks - own),
        ),
        "one-block": ("this is one block; there are more", -4 * (layers - 1) * room(block, ranks)),
        "no-rest": ("what is in no block is cut as well", -4 * room(rest, ranks)),
    }
    state = {id: (sentence, 2 * extra) for id, (sentence, extra) in kept.items() if id != "in-two-bytes"}
    state["one-moment"] = ("AdamW keeps two moments of each number, in float32", -4 * own)
    counts = {"no-count": (NO_COUNT, -4 * tensors), "one-count": (NO_COUNT, 4 - 4 * tensors)}

    def gathered(shapes: Shapes) -> list[Hints]:
        whole, bare = ranks * room(shapes, ranks), sum(map(prod, shapes))
        return [{
            "in-four-bytes": ("what is gathered is in 16 bits", 2 * whole),
            "still-cut": ("this is one card's part; it computes with all of it", 2 * (whole // ranks - whole)),
            "no-padding": ("the padding is gathered, too", 2 * (bare - whole)),
        }]  # fmt: skip

    layer = gathered(block)
    layer[0]["all-layers"] = ("one block is gathered at a time, not all", 2 * (layers - 1) * ranks * room(block, ranks))
    return {
        "weights": [kept],
        "gradients": [kept],
        "optimizer": [state, counts],
        "layer": layer,
        "root": gathered(rest),
    }
