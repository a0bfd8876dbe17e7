"""No two hints explain the same wrong number: no two slips in one case, and no slip that is the sum of two others.

Each table of slips is asked for the labs' cases, in the order in which a check goes through them, and for random sizes.
Slips with the same value are allowed where the sizes make them the same (a model without grouped heads has q_proj and
k_proj of one size): their message names all of them. What two slips of one group add up to is nobody's mistake.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterable

import pytest
import torch

from minigpt.checks import naming, training
from minigpt.checks.activations import blocks
from minigpt.checks.adapters import counts, truths
from minigpt.checks.allocating import sizes as requests
from minigpt.checks.capstone import byhand
from minigpt.checks.counting import parameters, saved, static
from minigpt.checks.four_bits import storage
from minigpt.checks.galore import keeping
from minigpt.checks.optimizers import storage as states
from minigpt.checks.qlora import stays
from minigpt.checks.sharding import dealing
from minigpt.checks.sharding import keeping as ranks
from minigpt.memory import Architecture
from minigpt.memory.families import KNOWN
from minigpt.memory.units import MIB
from minigpt.model import GPTConfig
from minigpt.real import SEVEN
from tools import ROOT

GROUPED = dict(
    model_type="llama", vocab_size=500, hidden_size=72, intermediate_size=130, num_hidden_layers=3,
    num_attention_heads=9, num_key_value_heads=3, head_dim=10, tie_word_embeddings=False, max_position_embeddings=64,
)  # fmt: skip
TINY = dict(
    vocab_size=400, hidden_size=64, intermediate_size=150, num_hidden_layers=3, num_attention_heads=8,
    num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=64,
)  # fmt: skip
REAL = dict(
    model_type="llama", vocab_size=300, hidden_size=128, intermediate_size=320, num_hidden_layers=2, head_dim=64,
    num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip

LAB10 = dict(
    model_type="llama", vocab_size=310, hidden_size=84, intermediate_size=130, num_hidden_layers=5, head_dim=14,
    num_attention_heads=12, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


def gpt(n_layer: int, n_embd: int, n_head: int, context: int, vocab_size: int) -> GPTConfig:
    return GPTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head, context=context, vocab_size=vocab_size)


def block(width: int, inner: int, head_dim: int, heads: int, key_heads: int) -> dict:
    return dict(hidden_size=width, intermediate_size=inner, head_dim=head_dim, num_attention_heads=heads,
                num_key_value_heads=key_heads)  # fmt: skip


def sizes(model) -> tuple[int, int]:
    architecture = Architecture.of(model)
    return architecture.parameters, len(architecture.tensors())


LAB12 = {**LAB10, "vocab_size": 1003, "intermediate_size": 230}
GROUPS = [ranks.groups_of(gpt(5, 36, 4, 33, 91)), ranks.groups_of(gpt(2, 42, 6, 29, 113))]

SUBJECTS = {  # what makes the slips, and the cases of the labs, visible and hidden, in order
    "a MiniGPT": (parameters.count_slips, [
        (gpt(3, 48, 4, 40, 100),), (GPTConfig.preset("nano"),), (gpt(2, 36, 6, 77, 300),), (GPTConfig.preset("small"),),
    ]),
    "a llama": (parameters.count_slips, [
        ({**GROUPED, "tie_word_embeddings": True},), (GROUPED,),
        ({name: value for name, value in GROUPED.items() if name != "num_key_value_heads"},), (KNOWN["llama-7b"],),
    ]),
    "pure bf16": (static.precision_slips, [(*sizes(gpt(3, 48, 4, 40, 100)), "bf16"), (*sizes(GROUPED), "bf16")]),
    "autocast": (static.precision_slips, [
        (*sizes(gpt(3, 48, 4, 40, 100)), "bf16-autocast"), (*sizes(GROUPED), "bf16-autocast"),
    ]),
    "float32": (static.float32_slips, [
        (gpt(3, 96, 6, 128, 200),), (gpt(5, 60, 6, 89, 150),), (GPTConfig.preset("nano"),),
    ]),
    "a block": (saved.block_slips, [(gpt(4, 91, 7, 120, 211), 3, 97), (gpt(3, 60, 5, 90, 152), 1, 41)]),
    "activations": (saved.saved_slips, [(gpt(4, 91, 7, 120, 211), 3, 97), (gpt(3, 60, 5, 90, 152), 1, 41)]),
    "an eager block": (blocks.eager_slips, [(gpt(2, 84, 6, 128, 200), 3, 53), (gpt(2, 60, 5, 90, 150), 2, 37)]),
    "a llama's block": (blocks.llama_slips, [
        (block(84, 234, 14, 6, 2), 3, 41), (block(120, 310, 12, 10, 2), 1, 33),
        (block(102, 274, 30, 6, 2), 2, 57), (block(64, 150, 26, 4, 1), 2, 29),
    ]),
    "adapters": (counts.count_slips, [
        (GROUPED, 4, ["k_proj", "gate_proj"]), (GROUPED, 4, ["o_proj", "up_proj"]),
        (GROUPED, 4, SEVEN), (KNOWN["llama-7b"], 8, ["q_proj", "v_proj"]), (KNOWN["llama-7b"], 8, SEVEN),
    ]),
    "LoRA": (counts.bucket_slips, [
        (TINY, 4, SEVEN), ({**TINY, "num_hidden_layers": 2}, 7, ["v_proj", "gate_proj", "k_proj"]),
    ]),
    "plain NF4": (storage.byte_slips, [(65_536, 64, False), (1_651, 64, False)]),
    "double NF4": (storage.byte_slips, [(131_072, 64, True), (40_002, 64, True)]),
    "QLoRA": (stays.slips, [(*stays.parts(REAL), 16), ([(128, 64), (64, 64)], 10, 2)]),
    "8-bit state": (states.state_slips, [
        ([5000],), ([20_000, 300, 4096],), ([4095, 77],), ([65_537, 8191, 12_288, 1001],),
    ]),
    **{kind: (states.static_slips, [
        (states.shapes_of(model), kind, precision)
        for model in (gpt(2, 72, 6, 40, 90), gpt(3, 60, 5, 33, 131), "llama-7b")
        for precision in ("fp32", "bf16", "bf16-autocast")
    ]) for kind in ("adamw", "adamw8bit", "lion", "sgd_momentum")},
    "GaLore's state": (keeping.state_slips, [
        (*keeping.parts(LAB10), 9, 4), (*keeping.parts({**LAB10, "num_hidden_layers": 2}), 29, 2),
        (*keeping.parts(gpt(2, 48, 4, 40, 100)), 13, 2), (*keeping.parts(gpt(3, 36, 4, 30, 70)), 36, 4),
    ]),
    "an SVD": (keeping.svd_slips, [(90, 50, 4), (30, 70, 4)]),
    "an SVD in 16 bits": (keeping.svd_slips, [(50, 120, 2), (64, 64, 2), (110, 40, 2)]),
    "a request": (requests.round_slips, [(800,), (1,), (512,), (513,), (25 * MIB - 100,), (1024,)]),
    "a segment": (requests.segment_slips, [
        (4096,), (3 * MIB,), (25 * MIB,), (MIB,), (MIB + 512,), (10 * MIB - 512,), (10 * MIB,), (10 * MIB + 512,),
    ]),
    "a shard": (dealing.length_slips, [(10, 4), (12, 3), (15_784_960, 8), (1001, 7), (3, 8), (17, 6)]),
    "ZeRO-1": (ranks.zero_slips, [(GROUPS[0], 13, 1), (GROUPS[1], 5, 1), (GROUPS[0], 2, 1)]),
    "ZeRO-3": (ranks.zero_slips, [(GROUPS[0], 13, 3), (GROUPS[1], 5, 3), (GROUPS[0], 2, 3)]),
    "fully_shard": (ranks.fsdp_slips, [
        *((ranks.shapes_of(gpt(3, 36, 4, 33, 91)), 5, rank) for rank in range(5)),
        *((ranks.shapes_of(gpt(2, 42, 6, 29, 113)), 3, rank) for rank in range(3)),
        *((ranks.shapes_of(gpt(1, 10, 5, 9, 21)), 8, rank) for rank in range(8)),
    ]),
    "a card": (ranks.card_slips, [
        (*ranks.parts_of("llama-2-70b"), 8), (*ranks.parts_of(LAB12), 11), (*ranks.parts_of("llama-7b"), 7),
        (*ranks.parts_of({**LAB12, "num_hidden_layers": 2, "vocab_size": 509}), 3),
        (*ranks.parts_of(gpt(3, 35, 5, 27, 101)), 4),
    ]),
    "a rest": (requests.split_slips, [
        (600 * 1024, 1448 * 1024), (3 * MIB, 17 * MIB), (25 * MIB, MIB), (1536 * 1024, 512 * 1024), (MIB, MIB),
    ]),
    "the default recipe": (byhand.default_slips, [
        (parameters, tensors, tokens, words) for model, tokens in (
            ("smollm2-135m", 700), ("llama-3.2-3b", 8192), ("qwen2.5-0.5b", 333),
        ) for parameters, tensors, words in [byhand.sizes(model)]
    ]),
}  # fmt: skip


# What makes slips and stands above under no name of its own, and why.
ELSEWHERE = {
    "cards.slips": "the first that fits explains a choice, which is a name and no number",
    "storage.bit_mistakes": "below: what mistakes give, as values",
    "counts.regime_mistakes": "below: what mistakes give, as values",
    "training._mistakes": "below: what mistakes weigh the micro-batches with",
    "truths.scales": "below: what mistakes scale with",
    "moments.moment_slips": "a part of storage.state_slips",
    "storage._eight_bit_slips": "a part of storage.state_slips",
    "storage._adamw_slips": "a part of storage.static_slips", "storage._lion_slips": "a part of storage.static_slips",
    "storage._momentum_slips": "a part of storage.static_slips",
    "dealing.part_mistakes": "values; the first that fits explains them", "dealing.join_mistakes": "tensors",
    "keeping.state_values": "values, which stand before any sum of slips",
    "keeping.rank_values": "below: the ranks that mistakes give",
    "projecting._mistakes": "tensors",
    "stays._frozen_slips": "a part of stays.slips", "stays._optimizer_slips": "a part of stays.slips",
    "sizes._added": "what the three of lab 11's sizes are made with",
    "peaking.peak_mistakes": "values; the first that fits explains them",
    "messages._mistakes": "numbers that are read; the first that fits explains them",
    "messages._wrong_sums": "sums of the numbers of one message; the first that fits explains them",
    "fitting.batch_mistakes": "batches that mistakes come to; the first that fits explains them",
    "metering.mistakes": "what other ways of counting give; test_checks_activations tells them apart",
    "accumulating.weightings": "test_checks_activations: what mistakes weigh the micro-batches with",
    # Tensors, compared element by element with random values: the first that fits explains them.
    "packing._pack_slips": "tensors", "packing._unpack_slips": "tensors", "packing._restoring_slips": "tensors",
    "quantizing._table_mistakes": "tensors", "quantizing._slips": "tensors", "quantizing._other_codes": "tensors",
    "adam._moment_mistakes": "tensors", "adam._weight_mistakes": "tensors", "maps._map_mistakes": "tensors",
    "blocks._restoring_mistakes": "tensors", "eight_bit._weight_mistakes": "tensors",
    "quantizing._absmax_slips": "tensors", "nested._code_slips": "tensors", "nested._restored_slips": "tensors",
    "accumulating._wrong": "tensors", "chunks._weightings": "tensors",
    "chunks.rounded": "a loss, rounded to so many decimals; the first that fits explains it",
}  # fmt: skip


def makers() -> set[str]:
    """Every function of a subject that makes a table of hints, by its annotation or by its name."""
    found = set()
    for path in (ROOT / "minigpt" / "checks").glob("**/*.py"):
        if path.parent.name == "checks" and path.stem != "training":
            continue
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            if isinstance(node, ast.FunctionDef):
                gives = ast.unparse(node.returns) if node.returns else ""
                if "Hints" in gives or re.search("slips|mistakes", node.name):
                    found.add(f"{path.stem}.{node.name}")
    return found


def test_every_table_of_slips_is_looked_at_here():
    looked_at = {f"{make.__module__.split('.')[-1]}.{make.__name__}" for make, _ in SUBJECTS.values()}
    assert makers() == looked_at | set(ELSEWHERE) and not looked_at & set(ELSEWHERE)


def tables(slips) -> dict[str, list[naming.Hints]]:
    """By bucket, or the one there is."""
    made = slips if isinstance(slips, dict) else {"": slips}
    return {bucket: naming.groups(table) for bucket, table in made.items()}


def hidden(groups: list[naming.Hints], known: Iterable[str] = ()) -> list[str]:
    """Slips that are the sum of two of other groups; those that a case before tells apart are known."""
    values = [{id: extra for id, (_, extra) in group.items()} for group in groups]
    sums = {}
    for first, second in itertools.combinations(values, 2):
        for one, two in itertools.product(first, second):
            sums.setdefault(first[one] + second[two], f"{one} + {two}")
    return [f"{id} = {sums[extra]}" for group in values for id, extra in group.items()
            if id not in known and extra in sums]  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_slip_of_a_labs_case_is_the_sum_of_two(subject):
    make, cases = SUBJECTS[subject]
    known: dict[str, set[str]] = {}
    for case in cases:
        for bucket, groups in tables(make(*case)).items():
            seen = known.setdefault(bucket, set())
            assert hidden(groups, seen) == [], (case, bucket)
            seen.update(id for group in groups for id in group)


def odd(draw: random.Random, low: int, high: int) -> int:
    """Large and odd, so that two sizes are not in a simple ratio by chance."""
    return draw.randrange(low, high) * 2 + 1


def drawn(subject: str, draw: random.Random) -> tuple:
    """A case of random sizes."""
    heads, kv, layers, rank = draw.choice([10, 14, 22]), 2, odd(draw, 2, 8), odd(draw, 2, 9)
    head_dim = 2 * odd(draw, 4, 9)
    model = gpt(layers, heads * head_dim, heads, odd(draw, 500, 900), odd(draw, 2000, 9000))
    llama = dict(
        model_type="llama", vocab_size=odd(draw, 2000, 9000), hidden_size=heads * head_dim, num_hidden_layers=layers,
        intermediate_size=odd(draw, 300, 900), num_attention_heads=heads, num_key_value_heads=kv,
        head_dim=head_dim + 2, max_position_embeddings=odd(draw, 500, 900), tie_word_embeddings=draw.random() < 0.5,
    )  # fmt: skip
    targets = draw.sample(SEVEN, draw.randint(1, 7))
    batch, seq_len = odd(draw, 2, 9), odd(draw, 20, 90)
    groups = [*[odd(draw, 30_000, 90_000)] * layers, odd(draw, 3000, 9000)]
    return {
        "a MiniGPT": (model,), "a llama": (llama,), "pure bf16": (*sizes(llama), "bf16"),
        "autocast": (*sizes(llama), "bf16-autocast"), "float32": (model,), "a block": (model, batch, seq_len),
        "activations": (model, batch, seq_len, "fake"), "an eager block": (model, batch, seq_len),
        "a llama's block": ({**llama, "head_dim": head_dim + 10}, batch, seq_len), "adapters": (llama, rank, targets),
        "LoRA": (llama, rank, targets), "plain NF4": (odd(draw, 40_000, 90_000), 64, False),
        "double NF4": (odd(draw, 400_000, 900_000), 64, True),
        "GaLore's state": ([(odd(draw, 900, 1400), odd(draw, 900, 1400)) for _ in range(layers)], odd(draw, 3000, 9000),
                           rank, 4),
        "an SVD": (odd(draw, 100, 900), odd(draw, 100, 900), 4),
        "an SVD in 16 bits": (odd(draw, 100, 900), odd(draw, 100, 900), 2),
        "a request": (odd(draw, 3000, 90_000),), "a segment": (512 * odd(draw, 30_000, 90_000),),
        "a rest": (512 * odd(draw, 3000, 9000), 512 * odd(draw, 3000, 9000)),
        "a shard": (1000 * odd(draw, 300, 900) + 7, odd(draw, 4, 9)),
        "ZeRO-1": (groups, odd(draw, 4, 9), 1), "ZeRO-3": (groups, odd(draw, 4, 9), 3),
        "fully_shard": (ranks.shapes_of(model), odd(draw, 4, 9), 0),
        "a card": (*ranks.parts_of(llama), odd(draw, 4, 9)),
        "the default recipe": (odd(draw, 10**6, 10**7), odd(draw, 50, 300), batch * seq_len, odd(draw, 2000, 9000)),
        "QLoRA": ([(odd(draw, 900, 1400), odd(draw, 900, 1400)) for _ in range(layers)], odd(draw, 3000, 9000), rank),
        "8-bit state": ([odd(draw, 3000, 90_000), odd(draw, 50, 1500)],),
        **{kind: (states.shapes_of(model), kind, draw.choice(["fp32", "bf16", "bf16-autocast"]))
           for kind in ("adamw", "adamw8bit", "lion", "sgd_momentum")},
    }[subject]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_slip_of_random_sizes_is_the_sum_of_two(subject):
    for seed in range(2):
        case = drawn(subject, random.Random(seed))
        for bucket, groups in tables(SUBJECTS[subject][0](*case)).items():
            assert hidden(groups) == [], (case, bucket)


def alike(values: dict[str, float], right: float) -> list[tuple[str, str]]:
    """Mistakes that give one value, or the right one, as the checks compare it."""
    values = {"right": right, **values}
    return [(a, b) for a, b in itertools.combinations(values, 2) if values[a] == pytest.approx(values[b], rel=1e-5)]


@pytest.mark.parametrize("block", [64, 128, 256])
def test_no_two_mistakes_about_the_scales_give_one_value(block):
    weights = Architecture.of("llama-7b").linear_parameters
    right, mistakes = storage.scale_bits(weights, block), storage.bit_mistakes(weights, block)
    for key, value in right.items():
        given = {id: values[key] for id, (_, values) in mistakes.items() if key in values}
        same_here = {"blocks-of-64"} if block == 64 else set()
        assert alike({id: other for id, other in given.items() if id not in same_here}, value) == [], (block, key)


def test_no_two_mistakes_about_a_budget_give_one_rank():
    """In the case that a student sees first; large budgets meet the cap of the smallest side."""
    given = keeping.rank_values(*keeping.parts(gpt(2, 48, 4, 40, 100)), 4, 700_000)
    assert len({rank for _, rank in given.values()}) == len(given) == 7  # "not-capped" is right here


@pytest.mark.parametrize("case", [("llama-13b", 16), ("llama-7b", 8), ("llama-3-8b", 64)])
def test_no_two_mistakes_about_a_regime_give_one_value(case):
    right, mistakes = counts.kept(*case), counts.regime_mistakes(*counts.sizes_of(*case))
    for regime, value in right.items():
        given = {id: values[regime] for id, (_, values) in mistakes.items() if regime in values}
        assert alike(given, value) == [], (case, regime)


@pytest.mark.parametrize("rank, alpha", [(3, 12), (5, 2), (8, 10), (4, 10), (3, 10), (5, 8)])
def test_no_two_scalings_of_a_labs_case_are_one(rank, alpha):
    """Hidden cases with alpha 1, where alpha and no scaling are one, come after these."""
    assert alike({id: scale for id, (_, scale) in truths.scales(rank, alpha).items()}, alpha / rank) == []


@pytest.mark.parametrize("sizes", [(11, 2, 5), (1, 9, 3, 3, 20)])
def test_no_two_weightings_of_the_micro_batches_are_one(sizes):
    torch.manual_seed(0)
    batches = training.micro_batches(sizes)
    weights = {id: tuple(shares) for id, (_, shares) in training._mistakes(batches).items()}
    assert tuple(training._shares(batches)) not in weights.values() and len(set(weights.values())) == len(weights)
