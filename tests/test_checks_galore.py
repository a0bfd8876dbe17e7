"""The checks of lab 10: their own arithmetic against galore-torch's recording and the meter, and the book they close.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

import itertools
import json

import pytest
import torch
from torch import nn

from minigpt.checks.closing import by_hand
from minigpt.checks.galore import keeping, projecting, stepping
from minigpt.checks.galore.projecting import Gradient
from minigpt.checks.galore.stepping import Run
from minigpt.checks.probes import steps
from minigpt.memory import TrainingPlan, predict, predict_static
from minigpt.model import GPTConfig
from minigpt.optim import GaLoreAdamW, adam_step, galore
from tests.judged import refuses, swallow
from tests.record_galore import GAP, OPTIONS, RANK, RECORD, SCALE, SHAPES, STEPS, gradient, signed_svd

RECORDED = {tuple(case["shape"]): case for case in json.loads(RECORD.read_text("utf8")) if case["kind"] == "std"}
TINY, FEW = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16, vocab_size=50), TrainingPlan(seq_len=8)


def only(found: dict) -> torch.Tensor:
    """The one projection that ``std`` makes."""
    (P,) = found.values()
    return P


def side(G: torch.Tensor, P: torch.Tensor) -> dict:
    return {"right" if G.shape[0] >= G.shape[1] else "left": P}


# ---------------------------------------------------------------- the truth


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_steps_are_those_that_galore_torch_recorded(shape):
    run = Run(shape, RANK, GAP, STEPS, OPTIONS["lr"], SCALE)
    gradients = [gradient(shape, step) for step in range(STEPS)]
    factors = [signed_svd(G) for G in gradients]
    made = [Vh[:RANK] if shape[0] >= shape[1] else U[:, :RANK] for U, _, Vh in factors]
    W = gradient(shape, -1).double()
    for update in stepping.updates(gradients, [made[i - i % GAP] for i in range(STEPS)], run):
        W = (W - update) * (1 - OPTIONS["lr"] * OPTIONS["weight_decay"])
    torch.testing.assert_close(W.float(), torch.tensor(RECORDED[shape]["weight"]), rtol=0, atol=3e-4)


@pytest.mark.parametrize(
    "run", [Run((9, 6), gap=3, steps=8), Run((5, 8), rank=3, gap=2, steps=5, betas=(0.8, 0.99), scale=2.0)], ids=str
)
def test_the_courses_optimizer_passes(run):
    def step(W, G, state, lr, rank, gap, scale, betas, eps):
        if id(state) not in kept:  # which keeps the state too, so that no other one gets its id
            parameter = nn.Parameter(W)
            group = dict(params=[parameter], rank=rank, update_proj_gap=gap, scale=scale)
            kept[id(state)] = parameter, GaLoreAdamW([group], lr=lr, betas=betas, eps=eps), state
        parameter, optimizer, _ = kept[id(state)]
        parameter.grad = G
        optimizer.step()
        found = optimizer.state[parameter]
        state.update(P=found.get("left", found.get("right")), m=found["exp_avg"], v=found["exp_avg_sq"])

    with pytest.MonkeyPatch.context() as patch:  # here the course is what is judged
        patch.setattr(
            steps, "by_hand", lambda function, *args, twice, untouched, none_ok, **more: function(*args, **more)
        )
        for name in ("taken", "taken_in_turn"):
            patch.setattr(steps, name, getattr(steps, name).function)
        for judge in (stepping.follows, stepping.renews, stepping.holds):
            kept = {}
            judge(step, run)


def test_every_mistake_about_the_step_is_another_step():
    run = Run((9, 6), gap=3, steps=8)
    gradients = run.gradients()
    made = [projecting.first(G, run.rank) for G in gradients]
    given = gradients, [made[i - i % 3] for i in range(8)], run
    sums = {id: sum(stepping.updates(*given, **way)) for id, (_, way) in stepping.MISTAKES.items()}
    sums["right"] = sum(stepping.updates(*given))
    for one, two in itertools.combinations(sums, 2):
        assert not torch.allclose(sums[one], sums[two], rtol=1e-3, atol=1e-6), (one, two)


@pytest.mark.parametrize("shape, rank", [((12, 8), 3), ((8, 12), 3), ((9, 9), 4), ((5, 11), 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_projection_of_the_course_passes_with_any_signs(shape, rank, dtype):
    case = Gradient(shape, rank, dtype)
    found = only(galore.find_projection(case.tensor(), rank))
    signs = torch.tensor([1.0, -1.0]).repeat(rank)[:rank].to(dtype)
    turned = found * (signs[:, None] if case.tall else signs)
    for P in (found, turned):
        projecting.directions(lambda G, rank, P=P: P, case)


def test_there_and_back_is_the_courses():
    case = Gradient((8, 12), 3)
    G, P = case.tensor(), projecting.first(case.tensor(), 3).float()
    R, back = galore.project(G, left=P), galore.project_back(torch.ones(3, 12), left=P)
    projecting.there_and_back(lambda G, P: R if G.shape == (8, 12) else None, lambda R, P: P @ R, case)
    torch.testing.assert_close(back, P @ torch.ones(3, 12))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_state_is_the_predicted_one_and_a_rank_for_a_budget_fits(precision):
    each, (matrices, others) = keeping.ITEMSIZE[precision], keeping.parts(TINY)
    for rank in (1, 9, 32):
        static, state = keeping.metered(TINY, rank, precision)
        ledger = predict(TINY, TrainingPlan(seq_len=8, optimizer="galore", rank=rank, precision=precision)).ledger
        assert (static, state) == (ledger.weights + ledger.gradients, ledger.optimizer)
        assert state == each * (rank * keeping._per_rank(matrices) + 2 * others)
        assert keeping._largest(TINY, precision, static + state) == rank
        if rank > 1:
            assert keeping._largest(TINY, precision, static + state - 1) == rank - 1


def test_a_meter_that_says_otherwise_stops_the_check(monkeypatch):
    budget = sum(keeping.metered(TINY, 9, "fp32"))
    monkeypatch.setattr(keeping, "metered", lambda *case: (budget, 1))
    with pytest.raises(RuntimeError, match="rank 9 is not the largest that the meter finds"):
        keeping._largest(TINY, "fp32", budget)


@pytest.mark.parametrize("m, n", [(90, 50), (50, 120), (64, 64)])
def test_an_svds_temporaries_are_the_formula(m, n):
    k = min(m, n)
    for itemsize in (2, 4):
        assert keeping.temporaries(m, n, itemsize) == 4 * (m * k + k + k * n) + (4 * m * n if itemsize == 2 else 0)


# ---------------------------------------------------------------- what is refused


def test_a_nan_is_no_direction_and_no_step():
    def step(W, G, state, **_):
        W.fill_(torch.nan)
        state.update(P=torch.ones(2, 6), m=torch.ones(9, 2), v=torch.ones(9, 2))

    with refuses("not-orthonormal"):
        projecting.directions(lambda G, rank: torch.full((3, 8), torch.nan), Gradient((12, 8), 3))
    with refuses("not-finite"):
        stepping.follows(step, Run((9, 6)))


G, P = torch.ones(6, 4), torch.eye(4)[:2]
ASKING = {
    "find_projection": lambda: galore.find_projection(G, 2),
    "project": lambda: galore.project(G, right=P),
    "project_back": lambda: galore.project_back(torch.ones(6, 2), right=P),
    "the optimizer": lambda: GaLoreAdamW._update(None, G, G, {}, {}),
    "adam_step": lambda: adam_step(G, G, G, G, 1),
    "predict": lambda: predict(TINY, FEW),
    "predict_static": lambda: predict_static(TINY, FEW),
    "first": lambda: projecting.first(G, 2),
    "updates": lambda: stepping.updates([G], [P], Run((6, 4))),
    "metered": lambda: keeping.metered(TINY, 2, "fp32"),
    "temporaries": lambda: keeping.temporaries(6, 4, 4),
    "_largest": lambda: keeping._largest(TINY, "fp32", 10**6),
    "rank_values": lambda: keeping.rank_values([(6, 4)], 0, 4, 10**6),
}


@pytest.mark.parametrize("what", ASKING)
def test_the_book_is_closed(what):
    for answer in (ASKING[what], swallow(ASKING[what])):
        with refuses("asks-course", "the answer asks the course's own arithmetic for the result"):
            by_hand(answer)


def test_the_book_is_open_again_after():
    with refuses("asks-course"):
        by_hand(ASKING["project"])
    assert ASKING["project"]().shape == (6, 2) and ASKING["predict"]() is not None
