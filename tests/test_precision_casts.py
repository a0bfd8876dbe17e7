"""Autocast's casts, seen from torch; its lists, held to torch's own header and to the predictor's tape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minigpt.memory import TrainingPlan
from minigpt.memory.measured.step import measure
from minigpt.model import GPT, GPTConfig
from minigpt.precision import Cast, casts, result_dtypes
from minigpt.precision.casts import OPERATIONS

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
TINY = GPTConfig(n_layer=2, n_embd=16, n_head=2, context=8, vocab_size=32)
# What the header calls the operations that go by another name here.
NAMES = {"attention": "scaled_dot_product_attention", "power": "pow", "cross_entropy": "nll_loss"}


def shown(made: list[Cast]) -> list[tuple[str, bool]]:
    return [(cast.of, cast.kept) for cast in made]


def twice(layer: nn.Module, x: torch.Tensor):
    return lambda: layer(layer(x))


def test_a_trained_weight_is_cast_once_and_kept_for_the_inputs_gradient():
    layer = nn.Linear(4, 4, bias=False)
    made = casts(layer, twice(layer, torch.ones(2, 4)))
    assert shown(made) == [("weight", True), ("", True)]  # the second input is in 16 bits already
    assert made[0] == Cast("weight", (4, 4), torch.float32, torch.bfloat16, True)
    assert made[0].nbytes == 4 * 4 * 2


def test_a_frozen_weight_is_cast_at_each_use():
    layer = nn.Linear(4, 4, bias=False).requires_grad_(False)
    assert shown(casts(layer, twice(layer, torch.ones(2, 4)))) == [("weight", False), ("", False), ("weight", False)]
    trained_below = (torch.ones(2, 4, requires_grad=True) * 1.0,)
    assert shown(casts(layer, twice(layer, *trained_below))) == [("weight", True), ("", False), ("weight", True)]


def test_a_cast_that_no_gradient_needs_is_not_kept():
    layer = nn.Linear(4, 4, bias=False)
    assert shown(casts(layer, lambda: layer(torch.ones(2, 4)))) == [("weight", False), ("", True)]
    with torch.no_grad():
        assert not any(cast.kept for cast in casts(layer, lambda: layer(torch.ones(2, 4))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_minigpts_casts(dtype):
    """One copy of each matrix, kept; of inputs one for q, k and v each; the logits go up again for the loss."""
    torch.manual_seed(0)
    model, tokens = GPT(TINY), torch.randint(0, 32, (2, 8))
    made = casts(model, lambda: model(tokens, tokens), dtype)
    matrices = {name for name, p in model.named_parameters() if p.dim() == 2 and name != "position_embedding.weight"}
    assert [cast.of for cast in made if cast.of] == [n for n in dict(model.named_parameters()) if "proj" in n] + [
        "token_embedding.weight"
    ]
    assert {cast.of for cast in made if cast.of} == matrices
    assert all(cast.kept and cast.target == dtype for cast in made if cast.of)
    up = [cast for cast in made if cast.target == torch.float32]
    assert [(cast.source, cast.shape[-1], cast.kept) for cast in up] == [(dtype, 32, False)]
    inputs = [cast for cast in made if not cast.of and cast.target == dtype]
    assert len(inputs) == TINY.n_layer * (3 + 1) + 1 and all(cast.kept for cast in inputs)


def test_the_kept_copies_are_what_the_meter_finds_under_autocast_alone():
    """Activations hold the matrices once more, in 16 bits: the part of them that does not grow with the batch."""
    torch.manual_seed(0)
    model, tokens = GPT(TINY), torch.randint(0, 32, (1, 8))
    kept = sum(cast.nbytes for cast in casts(model, lambda: model(tokens, tokens)) if cast.of)

    def fixed(precision: str) -> float:
        plans = (TrainingPlan(batch=batch, seq_len=8, precision=precision) for batch in (1, 2))
        one, two = (measure(TINY, plan, device="cpu").ledger.activations for plan in plans)
        return 2 * one - two

    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "position" not in name)
    assert fixed("bf16-autocast") - fixed("fp32") == kept == 2 * matrices


# ------------------------------------------------------------ where autocast stops


def header_list(name: str) -> set[str]:
    body = re.search(rf"#define {name}\(_\)((?:.*\\\n)*.*\n)", HEADER.read_text(encoding="utf8"))
    assert body, f"{HEADER} has no {name}"
    return set(re.findall(r"_\((\w+)", body[1]))


def test_cudas_lists_are_those_of_torchs_header():
    lowered = header_list("AT_FORALL_LOWER_PRECISION_FP")
    raised = header_list("AT_FORALL_FP32") | header_list("AT_FORALL_FP32_SET_OPT_DTYPE")
    given16, given32 = result_dtypes("cuda"), result_dtypes("cuda", torch.float32)
    for name in OPERATIONS:
        called = NAMES.get(name, name)
        assert (given16[name] == torch.float32) == (called in raised), name
        assert (given32[name] == torch.bfloat16) == (called in lowered), name


def test_a_cpu_raises_losses_alone_and_lowers_products():
    given16, given32 = result_dtypes("cpu"), result_dtypes("cpu", torch.float32)
    assert {name for name, dtype in given16.items() if dtype == torch.float32} == {"cross_entropy", "mse_loss"}
    assert {name for name, dtype in given32.items() if dtype != torch.float32} == {"linear", "matmul", "attention"}
    with torch.autocast("cpu", torch.bfloat16):  # as the context has it, without our switches
        x = torch.ones(8, 8, dtype=torch.bfloat16)
        assert F.layer_norm(x, (8,)).dtype == given16["layer_norm"]


def test_autocast_is_left_as_it_was():
    before = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    for device in ("cpu", "cuda"):
        result_dtypes(device, half=torch.float16)
    assert before == [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="device is 'mps'; allowed: cpu, cuda"):
        result_dtypes("mps")
