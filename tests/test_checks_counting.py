"""The truths, the slips and the choices of the counting labs."""

from __future__ import annotations

import pytest

from minigpt.checks import naming
from minigpt.checks.counting import cards, parameters
from minigpt.memory import Architecture
from minigpt.model import GPT, GPTConfig
from tests.judged import TINY, refuses


@pytest.mark.parametrize("model", [TINY, "llama-3-8b", "llama-7b", "qwen2.5-0.5b", "qwen3-8b"])
def test_slips_are_differences_from_the_right_count(model):
    a = Architecture.of(model)
    slips = {id: extra for group in naming.groups(parameters.count_slips(a)) for id, (_, extra) in group.items()}
    head = a.vocab_size * a.n_embd
    assert (slips["tied-head-twice"] == head) if a.tied else (slips["no-head"] == -head)
    assert ("wide-kv" in slips) == (a.n_kv_head != a.n_head)
    if "wide-kv" in slips:
        qkv_bias = any(t.name.endswith("k.bias") for t in a.block_tensors())
        assert slips["wide-kv"] == 2 * a.n_layer * (a.n_embd + qkv_bias) * a.head_dim * (a.n_head - a.n_kv_head)


def test_measured_is_the_meters_reading_of_both_families():
    count = sum(parameter.numel() for parameter in GPT(TINY).parameters())
    assert parameters.measured(TINY).trainable == 4 * count == 4 * parameters.counted(TINY)
    assert parameters.measured(TINY, "bf16").trainable == 2 * count
    assert parameters.measured(TINY) is parameters.measured(GPTConfig(**TINY.__dict__))  # measured once


def test_a_chosen_card_is_explained_by_the_first_mistake_that_chooses_it():
    shop = {"D": (80, "GB"), "C": (24, "GB"), "B": (16, "GiB"), "A": (16, "GB")}
    for nbytes, choice, id in ((17e9, "A", "gb-as-gib"), (17e9, "C", "gib-as-gb"), (17e9, "D", "first"),
                               (16e9, "B", "exact-fit"), (17e9, None, "none"), (81e9, "D", "gb-as-gib"),
                               (100e9, "D", "largest"), (15e9, "C", "wrong-choice")):  # fmt: skip
        with refuses(id):
            cards.smallest(lambda *_, choice=choice: choice, (int(nbytes), shop))
