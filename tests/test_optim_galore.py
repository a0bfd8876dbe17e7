"""GaLore against what galore-torch did (recorded), against numpy, and its state against the formula."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minigpt.model import GPT, GPTConfig
from minigpt.optim import GaLoreAdamW, galore_groups
from minigpt.optim.galore import KINDS, find_projection, project, project_back
from tests.record_galore import GAP, OPTIONS, RANK, RECORD, SCALE, SHAPES, STEPS, gradient, signed, trained

FAR = 3e-4  # an SVD in float32 is that exact; one step moves a weight by up to lr * SCALE = 0.025
RECORDED = json.loads(RECORD.read_text(encoding="utf8"))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['kind']}-{case['shape'][0]}x{case['shape'][1]}")
def test_weights_after_eight_steps_and_three_projections_are_galore_torchs(case):
    shape, kind = tuple(case["shape"]), case["kind"]
    weight, state = trained(GaLoreAdamW, shape, kind)
    torch.testing.assert_close(weight, torch.tensor(case["weight"]), rtol=0, atol=FAR)
    assert [list(state[name].shape) for name in ("exp_avg", "exp_avg_sq")] == case["moments"]


def test_every_kind_and_shape_was_recorded():
    assert {(tuple(case["shape"]), case["kind"]) for case in RECORDED} == {(s, k) for s in SHAPES for k in KINDS}


def test_galore_torch_keeps_all_of_the_svd_and_we_do_not():
    """Its projection is a view in float32, and a view keeps its whole storage alive."""
    for case in RECORDED:
        (m, n), least = case["shape"], min(case["shape"])
        state = trained(GaLoreAdamW, (m, n), case["kind"])[1]
        ours = [state[name].untyped_storage().nbytes() // 4 for name in ("left", "right") if name in state]
        sides = [m if "left" in state else 0, n if "right" in state else 0]
        assert ours == [RANK * side for side in sides if side]
        assert case["stored"] == [least * side for side in sides if side]


def numpy_galore(shape: tuple[int, int], kind: str) -> np.ndarray:
    """The same, written a second time, in float64: with one projector P for each side, G P P^T style."""
    w = gradient(shape, -1).double().numpy()
    m = v = 0.0
    left = right = np.empty(0)
    for step in range(STEPS):
        G = gradient(shape, step).double().numpy()
        if step % GAP == 0:
            U, _, Vt = np.linalg.svd(G, full_matrices=False)
            U, Vt = signed(U, Vt)
            tall = shape[0] >= shape[1]
            use = {"std": "R" if tall else "L", "reverse_std": "L" if tall else "R", "left": "L", "right": "R"}
            use["full"] = "LR"
            left = U[:, :RANK] if "L" in use[kind] else np.eye(shape[0])
            right = Vt[:RANK].T if "R" in use[kind] else np.eye(shape[1])
        R = left.T @ G @ right
        m, v = 0.9 * m + 0.1 * R, 0.999 * v + 0.001 * R * R
        t = step + 1
        D = m / (np.sqrt(v) + 1e-6) * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - OPTIONS["lr"] * SCALE * left @ D @ right.T
        w = w - OPTIONS["lr"] * OPTIONS["weight_decay"] * w
    return w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_are_those_of_a_second_writing_in_float64(shape, kind):
    weight, _ = trained(GaLoreAdamW, shape, kind)
    np.testing.assert_allclose(weight.numpy(), numpy_galore(shape, kind), rtol=0, atol=FAR)


@given(m=st.integers(1, 12), n=st.integers(1, 12), kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_projection_is_the_best_of_its_rank(m, n, kind, data):
    """Eckart and Young: what is lost has the norm of the singular values left out."""
    r = data.draw(st.integers(1, min(m, n)))
    G = torch.randn(m, n, generator=torch.Generator().manual_seed(m * 100 + n))
    sides = find_projection(G, r, kind)
    back = project_back(project(G, **sides), **sides)
    lost = torch.linalg.svdvals(G)[r:].square().sum().sqrt()
    torch.testing.assert_close((G - back).norm(), lost, atol=1e-4, rtol=1e-3)
    for name, P in sides.items():
        gram = P.T @ P if name == "left" else P @ P.T
        torch.testing.assert_close(gram, torch.eye(r), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (32, 32)], ids=str)
def test_state_is_min_r_and_2_max_r_elements_in_the_gradients_dtype(shape, dtype):
    p = nn.Parameter(torch.randn(shape).to(dtype))
    optimizer = GaLoreAdamW([dict(params=[p], rank=8)])
    p.grad = torch.randn_like(p)
    optimizer.step()
    kept = [t for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
    assert sum(t.untyped_storage().nbytes() for t in kept) == (8 * min(shape) + 2 * 8 * max(shape)) * dtype.itemsize


def test_the_projection_changes_every_gap_steps_and_the_moments_stay():
    p = nn.Parameter(torch.randn(12, 8))
    optimizer = GaLoreAdamW([dict(params=[p], rank=2, update_proj_gap=3)])
    seen = []
    for step in range(7):
        p.grad = gradient((12, 8), step)
        before = optimizer.state[p].get("exp_avg_sq", torch.zeros(12, 2)).clone()
        optimizer.step()
        assert (optimizer.state[p]["exp_avg_sq"] >= 0.999 * before).all(), "v was reset or rotated"
        seen.append(optimizer.state[p]["right"])
    changed = [step for step in range(1, 7) if not seen[step].equal(seen[step - 1])]
    assert changed == [3, 6]


def test_a_group_without_a_rank_is_plain_adamw():
    ours, theirs = (nn.Parameter(gradient((6, 4), -1)) for _ in range(2))
    optimizer = GaLoreAdamW([ours], lr=1e-2, eps=1e-30)
    reference = torch.optim.AdamW([theirs], lr=1e-2, eps=1e-30, weight_decay=0)  # eps means another thing there
    for step in range(10):
        for p, steps in ((ours, optimizer), (theirs, reference)):
            p.grad = gradient((6, 4), step)
            steps.step()
    torch.testing.assert_close(ours, theirs)


def test_state_survives_saving(tmp_path):
    def steps(p, optimizer, which):
        for step in which:
            p.grad = gradient((6, 4), step)
            optimizer.step()

    p, q = (nn.Parameter(gradient((6, 4), -1)) for _ in range(2))
    make = lambda p: GaLoreAdamW([dict(params=[p], rank=2, update_proj_gap=3)])  # noqa: E731
    first, again = make(p), make(q)
    steps(p, first, range(4))
    torch.save(first.state_dict(), tmp_path / "optimizer.pt")
    with torch.no_grad():
        q.copy_(p)
    again.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    steps(p, first, range(4, 8))
    steps(q, again, range(4, 8))
    assert p.equal(q)


def test_groups_project_the_blocks_matrices_and_nothing_else():
    model = GPT(GPTConfig(n_layer=2, n_embd=32, n_head=2, context=8))
    model.blocks[0].mlp.up_proj.weight.requires_grad_(False)
    matrices, others = galore_groups(model, rank=4)
    assert len(matrices["params"]) == 2 * 6 - 1 and matrices["scale"] == 0.25
    assert {p.ndim for p in others["params"]} == {1, 2}  # norms and embeddings
    everything = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in matrices["params"] + others["params"]} == everything
    named, _ = galore_groups(model, rank=4, targets=["q_proj"])
    assert len(named["params"]) == 2
    tokens = torch.zeros(1, 8, dtype=torch.long)
    model(tokens, tokens).backward()
    GaLoreAdamW([matrices, others]).step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rank=0), "rank is 0; it must be an integer of at least 1"),
        (dict(rank=5), "rank is 5; it must be an integer from 1 to 4 for a gradient of shape \\(6, 4\\)"),
        (dict(rank=2, update_proj_gap=0), "update_proj_gap is 0; it must be an integer of at least 1"),
        (dict(rank=2, scale=0), "scale is 0; it must be a number above 0"),
        (dict(rank=2, proj_type="svd"), "proj_type is 'svd'; allowed: std, reverse_std, left, right, full"),
    ],
)
def test_bad_options_are_named(options, message):
    p = nn.Parameter(torch.ones(6, 4))
    p.grad = gradient((6, 4), 0)
    with pytest.raises(ValueError, match=message):
        GaLoreAdamW([dict(params=[p], **options)]).step()


def test_what_is_no_matrix_or_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\); GaLore projects matrices"):
        find_projection(torch.ones(3), 1)
    with pytest.raises(ValueError, match=r"a gradient of shape \(3, 2\) holds NaN or infinity"):
        find_projection(torch.full((3, 2), math.nan), 1)
