"""The data sets: what a token is, what counts in the loss, and that validation was never seen."""

from __future__ import annotations

import ast
import inspect
import json.decoder
import sys

import pytest
import torch

from minigpt.data import (
    END,
    IGNORE,
    Example,
    decode,
    docstring_pairs,
    encode,
    first_sentence,
    functions_documented,
    library_sources,
    pair_batches,
    pretraining_text,
    prompt_for,
    random_windows,
    split_of,
    statements,
    windows_in_order,
)

SOURCE = '''
class Shape:
    """A class is no function."""
    def area(self, scale=1.0):
        """Return the area,
        scaled.  It is never negative.

        More text.
        """
    async def wait(self, *, seconds: int = 3): "Sleep"
    def bare(self): pass
'''


@pytest.fixture(scope="module")
def pairs():
    return [Example(prompt_for(f"def f{i}(x):"), "Return " + "x" * (i % 7) + ".") for i in range(10)]


def test_tokens_are_the_bytes_of_utf8():
    text = "größe = 'π'\n"
    assert encode(text).tolist() == list(text.encode())
    assert decode(encode(text)) == text
    assert decode([104, 105, END, 33]) == "hi"
    assert decode([0xCF]) == "�"


def test_the_library_is_real_source_without_tests_or_foreign_packages():
    sources = dict(library_sources())
    assert sources["json.decoder"] == inspect.getsource(json.decoder)
    top = {name.split(".")[0] for name in sources}
    assert top <= sys.stdlib_module_names | {"_sitebuiltins", "__phello__", "__hello__"}
    assert not any("tests" in name.split(".") or "test" in name.split(".")[:-1] for name in sources)
    assert not any("\0" in text for text in sources.values())
    assert sum(map(len, sources.values())) > 5e6


def test_no_module_is_in_both_splits_and_no_byte_is_lost():
    train, validation = pretraining_text("train"), pretraining_text("validation")
    assert len(train) + len(validation) == sum(len(text.encode()) + 1 for _, text in library_sources())
    assert 0.02 < len(validation) / len(train) < 0.3
    texts = {"train": train.numpy().tobytes(), "validation": validation.numpy().tobytes()}
    documents = {split: set(text.split(b"\0")) for split, text in texts.items()}
    for name, text in library_sources():
        assert text.encode() in documents[split_of(name)]
    tops = {split: {n.split(".")[0] for n, _ in library_sources() if split_of(n) == split} for split in documents}
    assert tops["train"].isdisjoint(tops["validation"])


def test_the_split_follows_the_package_and_the_seed():
    assert split_of("xml.dom.minidom") == split_of("xml")
    names = {name for name, _ in library_sources()}
    assert {n for n in names if split_of(n, 0) == "validation"} != {n for n in names if split_of(n, 1) == "validation"}


def test_pairs_come_from_documented_functions():
    assert list(functions_documented(SOURCE)) == [
        Example('def area(self, scale=1.0):\n    """', "Return the area, scaled."),
        Example('def wait(self, *, seconds: int=3):\n    """', "Sleep"),
    ]
    assert list(functions_documented("def broken(:")) == []
    assert first_sentence("Use e.g. this one.\nThen that.") == "Use e.g. this one."


NESTED = """
if here:
    for i in all(lambda x: x, range(3)):
        def a(): pass
    else:
        async def b(): pass
try:
    with open(1) as file:
        def c(x=[y for y in z]): pass
except* OSError:
    class D:
        def e(self): pass
finally:
    match f:
        case {"g": 1}:
            def h(): pass
        case _:
            while True:
                def k(): pass
"""


@pytest.mark.parametrize("source", [SOURCE, NESTED, inspect.getsource(json.decoder), inspect.getsource(inspect)])
def test_statements_come_in_the_order_of_ast_walk(source):
    tree = ast.parse(source)
    kinds = (ast.stmt, ast.ExceptHandler, ast.match_case)
    assert list(statements(tree)) == [node for node in ast.walk(tree) if isinstance(node, (*kinds, ast.Module))]


@pytest.mark.parametrize("source", ["def f(:", "x = '\0'", "-" * 100_000 + "1", "(" * 1000], ids=lambda text: text[:9])
def test_a_file_that_is_no_valid_python_has_no_pairs(source):
    assert list(functions_documented(source)) == []


@pytest.mark.slow
def test_pairs_fit_differ_and_do_not_leak():
    train, validation = docstring_pairs("train", 128), docstring_pairs("validation", 128)
    assert len(train) > 2000 and len(validation) > 100
    assert max(len(pair) for pair in train) <= 128
    assert len(set(train)) == len(train)
    assert {pair.prompt for pair in train}.isdisjoint(pair.prompt for pair in validation)


def test_only_the_answer_and_its_end_are_targets():
    tokens, targets = Example("ab", "xyz").tokens()
    assert tokens.tolist() == list(b"abxyz")
    assert targets.tolist() == [IGNORE, *b"xyz", END]
    assert len(Example("ab", "xyz")) == len(tokens)
    assert len(Example("é", "ü")) == len(Example("é", "ü").tokens()[0])


def test_a_batch_of_pairs_is_its_examples_padded(pairs):
    for pad_to_longest in (False, True):
        tokens, targets = pair_batches(pairs, 4, 64, seed=None, pad_to_longest=pad_to_longest)[1]
        width = max(len(pair) for pair in pairs[4:8]) if pad_to_longest else 64
        assert tokens.shape == targets.shape == (4, width)
        for row, pair in enumerate(pairs[4:8]):
            n = len(pair)
            assert tokens[row, :n].equal(pair.tokens()[0]) and targets[row, :n].equal(pair.tokens()[1])
            assert (targets[row, n:] == IGNORE).all()


def test_an_epoch_takes_each_example_once_and_the_next_is_shuffled_anew(pairs):
    batches = pair_batches(pairs, 5, 64, seed=3)
    assert len(batches) == 2 and len(list(batches)) == 2
    epochs = [[decode(row) for i in (e, e + 1) for row in batches[i][0]] for e in (0, 2)]
    everything = sorted(pair.prompt + pair.answer for pair in pairs)
    assert sorted(epochs[0]) == sorted(epochs[1]) == everything
    assert epochs[0] != epochs[1]


def test_windows_are_pieces_of_the_text_and_their_next_tokens():
    text = torch.arange(200, dtype=torch.uint8)
    batches = random_windows(text, 8, 16, seed=5)
    tokens, targets = batches[3]
    assert tokens.dtype == torch.long and tokens.shape == (8, 16)
    assert targets.equal(tokens + 1) and (tokens.diff() == 1).all()
    assert batches[3][0].equal(tokens) and not batches[4][0].equal(tokens)
    starts = torch.cat([batches[i][0][:, 0] for i in range(400)])
    assert starts.min() == 0 and starts.max() == 200 - 17  # the first and the last window that fit


def test_windows_in_order_cover_the_text_once():
    text = torch.arange(100, dtype=torch.uint8)
    batches = windows_in_order(text, 2, 8)
    assert torch.cat([tokens.flatten() for tokens, _ in batches]).equal(torch.arange(96))
    assert all(targets.equal(tokens + 1) for tokens, targets in batches)
    assert len(windows_in_order(text, 2, 8, limit=3)) == 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda pairs: pretraining_text("test"), "split is 'test'; allowed: train, validation"),
        (lambda pairs: docstring_pairs("all"), "split is 'all'"),
        (lambda pairs: Example("", "x"), "prompt is empty"),
        (lambda pairs: Example("x", ""), "answer is empty"),
        (lambda pairs: prompt_for(" "), "signature is empty"),
        (lambda pairs: random_windows(torch.zeros(16), 1, 16), "one batch needs at least 17 tokens"),
        (lambda pairs: random_windows(torch.zeros(99), 0, 16), "batch is 0; it must be an integer of at least 1"),
        (lambda pairs: random_windows(torch.zeros(99), True, 16), "batch is True"),
        (lambda pairs: windows_in_order(torch.zeros(99), 2, 16, limit=-1), "limit is -1"),
        (lambda pairs: windows_in_order(torch.zeros(99), 2, 16, limit=1.5), "limit is 1.5"),
        (lambda pairs: windows_in_order(torch.zeros(32), 2, 16), "one batch needs at least 33 tokens"),
        (lambda pairs: pair_batches(pairs, 11, 64), "batch is 11, but there are only 10 examples"),
        (lambda pairs: pair_batches(pairs, 2, 20), "seq_len is 20, but the longest example has"),
    ],
)
def test_bad_input_is_named(pairs, call, message):
    with pytest.raises(ValueError, match=message):
        call(pairs)
