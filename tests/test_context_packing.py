"""Packing against trl's, and a packed row's loss against each example's by itself."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from trl import pack_dataset

from minigpt.context.packing import pack, packed_row


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), max_size=60), row=st.integers(50, 120))
def test_every_example_lies_in_one_row_and_no_two_rows_fit_into_one(lengths, row):
    rows = pack(lengths, row)
    assert sorted(i for each in rows for i in each) == list(range(len(lengths)))
    filled = sorted(sum(lengths[i] for i in each) for each in rows)
    assert all(0 < size <= row for size in filled)
    assert len(filled) < 2 or filled[0] + filled[1] > row


def test_rows_are_those_of_trl():
    random = torch.Generator().manual_seed(0)
    for spread in (30, 64):
        lengths = torch.randint(1, spread + 1, (200,), generator=random).tolist()
        theirs = pack_dataset(Dataset.from_dict({"input_ids": [[0] * n for n in lengths]}), 64, "bfd")["seq_lengths"]
        assert [[lengths[i] for i in each] for each in pack(lengths, 64)] == [list(each) for each in theirs]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_packed_row_has_the_losses_of_its_examples(attention):
    """No token sees another example, and none is asked for the next example's first. With a cache they do see it."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        attn_implementation=attention, pad_token_id=None,
    ))  # fmt: skip
    examples = [torch.randint(0, 50, (n,)) for n in (7, 1, 12, 4)]
    kept = [each.clone() for each in examples]
    alone = [model(each[None], labels=each[None]).loss * (len(each) - 1) for each in examples if len(each) > 1]
    row = packed_row(examples)
    together = model(**row, use_cache=False).loss
    assert torch.allclose(together, sum(alone) / 20, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(examples, kept)) and row["position_ids"].shape == (1, 24)
    for seen in (dict(row, use_cache=True), dict(input_ids=row["input_ids"], labels=row["labels"], use_cache=False)):
        assert (model(**seen).loss - together).abs() > 1e-4


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"lengths\[1\] is 9; it must be at most 8"):
        pack([8, 9], 8)
    with pytest.raises(ValueError, match=r"lengths\[0\] is 0"):
        pack([0], 8)
    with pytest.raises(ValueError, match="row is 0"):
        pack([1], 0)
    for examples in (
        [[1, 2]],
        [torch.ones(2)],
        [torch.ones(1, 2, dtype=torch.int64)],
        [torch.ones(0, dtype=torch.int64)],
    ):
        with pytest.raises(ValueError, match=r"examples\[0\] is .*; it must be a tensor of tokens"):
            packed_row(examples)
    with pytest.raises(ValueError, match="examples is empty"):
        packed_row([])
