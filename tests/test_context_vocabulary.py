"""Vocabulary slicing: kept texts become the same words, kept logits the same numbers; what is not known is refused."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import minigpt
from minigpt.context.vocabulary import parameters_saved, renumber, slice_model, slice_tokenizer

TEXT = "\n".join(path.read_text() for path in sorted(Path(minigpt.__file__).parent.glob("*.py")))
KEPT = [TEXT[:3000], TEXT[9000:9500]]
END, START = "<|end|>", "<|start|>"


@cache
def trained(words: int = 700) -> str:
    """A byte-level BPE tokenizer of MiniGPT's own files, with a template as Llama-3's has; as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=words, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens([START])  # a number of its own, behind the model's: as Llama-3's are
    number = tokenizer.token_to_id(START)
    template = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, number)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer.to_str()


def tokenizer_of(**changes) -> Tokenizer:
    spec = json.loads(trained())
    spec["model"] |= changes
    return Tokenizer.from_str(json.dumps(spec))


def llama(words: int, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=words, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied, bos_token_id=700, eos_token_id=[0, 700], pad_token_id=0,
    )).double()  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(begin=st.integers(0, len(TEXT) - 900), size=st.integers(1, 900), other=st.text(max_size=40))
def test_kept_text_has_the_same_words_and_any_other_comes_back(begin, size, other):
    """Every piece of a text is merged as before, special tokens included; what was never seen is spelled in bytes."""
    before, text = tokenizer_of(), TEXT[begin : begin + size]
    after, old = slice_tokenizer(before, [text])
    one, two = before.encode(text + END), after.encode(text + END)
    assert one.tokens == two.tokens and one.tokens[0] == START
    assert two.ids == renumber(torch.tensor(one.ids), old).tolist()
    assert after.decode(after.encode(other).ids) == before.decode(before.encode(other).ids)
    assert after.get_vocab_size() == len(old)


def test_numbers_are_dense_and_in_the_old_order():
    before = tokenizer_of()
    after, old = slice_tokenizer(before, KEPT)
    assert 258 < len(old) < before.get_vocab_size() and sorted(after.get_vocab().values()) == list(range(len(old)))
    assert all(before.id_to_token(int(n)) == after.id_to_token(i) for i, n in enumerate(old))
    again, same = slice_tokenizer(after, KEPT)
    assert again.to_str() == after.to_str() and same.tolist() == list(range(len(old)))


def test_halves_are_needed():
    """Without them a kept text falls apart, which is why the closure is there: the merges that lack a half are gone."""
    before = tokenizer_of()
    kept = {token for text in KEPT for token in before.encode(text).tokens}
    spec = json.loads(before.to_str())
    spec["model"]["merges"] = [[a, b] for a, b in spec["model"]["merges"] if {a, b, a + b} <= kept]
    broken = Tokenizer.from_str(json.dumps(spec))
    count = {name: sum(len(each.encode(text).ids) for text in KEPT) for name, each in (("no", broken), ("yes", before))}
    assert count["no"] > 1.2 * count["yes"]
    after, _ = slice_tokenizer(before, KEPT)
    assert sum(len(after.encode(text).ids) for text in KEPT) == count["yes"]


def test_words_that_are_never_merged_to():
    """ignore_merges, as Llama-3 has it: a whole word is looked up first."""
    before = tokenizer_of(ignore_merges=True)
    after, _ = slice_tokenizer(before, KEPT)
    assert all(before.encode(text).tokens == after.encode(text).tokens for text in KEPT)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_kept_words_and_the_loss_over_them(tied):
    tokenizer = tokenizer_of()
    full = llama(tokenizer.get_vocab_size() + 3, tied)  # rows that no word has, as Qwen's are
    after, old = slice_tokenizer(tokenizer, KEPT)
    sliced = copy.deepcopy(full)
    slice_model(sliced, old)
    tokens = torch.tensor([tokenizer.encode(KEPT[0]).ids[:80]])
    new = renumber(tokens, old)
    with torch.no_grad():
        kept = full(tokens).logits[..., old]
        found = sliced(new, labels=new)
    assert torch.allclose(found.logits, kept, rtol=0, atol=1e-14)
    assert torch.allclose(
        found.loss, F.cross_entropy(kept[0, :-1].float(), new[0, 1:]), atol=1e-6
    )  # transformers': float32
    assert full(tokens, labels=tokens).loss > found.loss + 0.01
    counts = [sum(p.numel() for p in model.parameters()) for model in (full, sliced)]
    assert counts[0] - counts[1] == parameters_saved(full.config.vocab_size, len(old), 32, tied)
    embedding, head = sliced.get_input_embeddings(), sliced.get_output_embeddings()
    assert (embedding.weight.data_ptr() == head.weight.data_ptr()) is tied
    last = len(old) - 1  # START's number; END's is 0 in both
    for config in (sliced.config, sliced.generation_config):
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (last, [0, last], 0)
    assert sliced.config.vocab_size == len(old) and embedding.padding_idx == 0


def test_what_is_not_known_is_refused():
    spec = json.loads(trained())
    cases = {
        "WordPiece; allowed": {"model": {"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##",
                                         "max_input_chars_per_word": 9, "vocab": {"x": 0}}},
        "dropout 0.1": {"model": spec["model"] | {"dropout": 0.1}},
        "byte_fallback True": {"model": spec["model"] | {"byte_fallback": True}},
        "255 of the 256 bytes": {"model": {**spec["model"], "merges": [], "vocab": {
            w: n for w, n in spec["model"]["vocab"].items() if len(w) == 1 and w != "Z"}}, "post_processor": None,
            "added_tokens": []},
        "pre_tokenizer must have ByteLevel": {"pre_tokenizer": {"type": "Whitespace"}},
        "post_processor 'RobertaProcessing'": {"post_processor": {
            "type": "RobertaProcessing", "sep": [END, 0], "cls": [END, 0], "trim_offsets": True,
            "add_prefix_space": False}},
    }  # fmt: skip
    for words, changes in cases.items():
        with pytest.raises(ValueError, match=words):
            slice_tokenizer(Tokenizer.from_str(json.dumps(spec | changes)), KEPT)
    padding = tokenizer_of()
    padding.enable_padding()
    with pytest.raises(ValueError, match="pads by itself"):
        slice_tokenizer(padding, KEPT)


def test_rows_and_words_that_are_not_there():
    model = llama(701, tied=False)
    with pytest.raises(ValueError, match="old goes up to 701; the embedding has 701 rows"):
        slice_model(model, torch.tensor([0, 700, 701]))
    with pytest.raises(ValueError, match="bos_token_id is 700, a word that is dropped"):
        slice_model(model, torch.tensor([0, 1, 2]))
    assert model.config.vocab_size == 701  # refused before anything changes
    old = torch.tensor([0, 3, 5])
    assert renumber(torch.tensor([[5, -100, 0]]), old).tolist() == [[2, -100, 0]]
    with pytest.raises(ValueError, match="old is empty"):
        renumber(torch.tensor([1]), old[:0])
    for name, wrong in (("kept", 11), ("kept", 1.5), ("vocab_size", -1), ("width", None), ("tied", "yes")):
        with pytest.raises(ValueError, match=f"{name} is"):
            parameters_saved(**{**dict(vocab_size=10, kept=4, width=8, tied=True), name: wrong})
    for word in (4, 6, -1):
        with pytest.raises(ValueError, match=f"tokens has {word}, a word that is dropped"):
            renumber(torch.tensor([3, word]), old)
