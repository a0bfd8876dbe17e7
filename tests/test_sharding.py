"""Ranks that share a training make the updates of one process; what each holds is what its stage says.

For two ranks the sum of two gradients has one order, so all weights are equal to the last bit. For three, gloo adds in
another order than autograd, and 1 / 3 is rounded: float32 numbers agree to 1e-5.
"""

import pytest

from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.together import run_ranks
from minigpt.model import GPT
from minigpt.sharding import kinds
from minigpt.sharding.run import run_alone
from tests.ranked import CONFIG, STEPS, Batches, told

RUNS = (*kinds.KINDS, "bucket view", "kept", "ZeroRedundancyOptimizer")
PARAMETERS = [p.numel() for p in GPT(CONFIG).parameters()]
BLOCK, REST = 12 * 20 * 20 + 2 * 20, (31 + 9) * 20 + 20  # numbers in a block and in what is in no block


@pytest.fixture(scope="module")
def of_ranks():
    return run_ranks(Call("tests.ranked:train_all", {"groups": [2, 3]}), 3)


@pytest.fixture(params=[2, 3])
def trained(request, of_ranks):
    """What each rank says, and what one process says."""
    ranks = request.param
    return ranks, [found[str(ranks)] for found in of_ranks[:ranks]], told(run_alone(CONFIG, Batches(), STEPS, ranks))


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_losses_and_weights_are_those_of_one_process(trained, kind):
    ranks, found, alone = trained
    for of_rank in found:
        assert of_rank[kind]["digest"] == found[0][kind]["digest"]  # the ranks agree to the last bit
        assert of_rank[kind]["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        assert of_rank[kind]["sums"] == pytest.approx(alone["sums"], rel=1e-5, abs=1e-5)
        if ranks == 2:
            assert of_rank[kind]["digest"] == alone["digest"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_rank_holds_what_its_stage_says(trained, kind):
    ranks, found, _ = trained
    whole = 4 * sum(PARAMETERS)
    flat = sum(4 * -(-n // ranks) for n in (BLOCK, BLOCK, BLOCK, REST))  # a rank's shards of the four groups
    rows = sum(-(-p.shape[0] // ranks) * 4 * p[0].numel() for p in GPT(CONFIG).parameters())  # and of fully_shard's
    expected = {
        "zero1": (ranks * flat, whole, 2 * flat + 4 * 4),
        "zero2": (ranks * flat, flat, 2 * flat + 4 * 4),
        "zero3": (flat, flat, 2 * flat + 4 * 4),
        "fsdp2": (rows, rows, None),
        "kept": (rows, rows, None),
        "ZeroRedundancyOptimizer": (whole, whole, None),
    }.get(kind, (whole, whole, 2 * whole + 4 * len(PARAMETERS)))
    for of_rank in found:
        held = of_rank[kind]["held"]
        assert (held["weights"], held["gradients"]) == expected[:2]
        assert expected[2] is None or held["optimizer"] == expected[2]
    states = sum(of_rank[kind]["held"]["optimizer"] for of_rank in found)
    if kind in ("fsdp2", "kept"):  # padding has no state, and each rank counts the steps of each tensor
        assert states == 2 * whole + 4 * len(PARAMETERS) * ranks
    if kind == "ZeroRedundancyOptimizer":
        assert states == 2 * whole + 4 * len(PARAMETERS)
