"""Vocabulary slicing: drop the words that some texts never need, from a tokenizer and from a model.

A BPE tokenizer has words and a ranked list of merges, pairs (a, b) that become the word ab. A text is cut into bytes,
and as long as some neighbours are such a pair, those of the lowest rank are joined. What is kept:

    the words that the texts become      every pair that makes a kept word, so both of its halves, and theirs
    all 256 single bytes                 every special token

Then a kept text becomes the same words as before. A merge is never undone, so each one made on the way lies inside a
final word and is kept; what may be merged in the sliced tokenizer is a part of what might have been before, with the
best of it at every moment; so it makes the same merges, and stops where the other stopped. Any other text still
becomes bytes at worst, and comes back whole: it only takes more tokens.

    saved = (V - V') C elements, twice where the head is not tied to the embedding

The words left have the same logits as before. The loss is another one where dropped words had probability: it is the
full model's loss over the kept columns alone.

Left out: tokenizers that are not byte-level BPE (refused, by name), and choosing words by how often they are met.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minigpt.values import check_counts, check_flags

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

PROCESSORS = {None, "ByteLevel", "TemplateProcessing", "Sequence"}
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
IGNORE = -100


def slice_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Tokenizer, Tensor]:
    """A tokenizer with the words that ``texts`` need, and the old number of each: (V',) int64, ascending.

    ``tokenizer`` is a tokenizers.Tokenizer (of transformers' fast tokenizers: ``backend_tokenizer``), and stays as it
    is. Raises ValueError for one that is not byte-level BPE with all 256 bytes, or has parts that hold numbers of
    words in a form that is not known here.
    """
    from tokenizers import Tokenizer as Made
    from tokenizers import pre_tokenizers

    spec = json.loads(tokenizer.to_str())
    _check_known(spec, pre_tokenizers.ByteLevel.alphabet())
    model, numbers = spec["model"], tokenizer.get_vocab(with_added_tokens=True)
    need = {token["content"] for token in spec["added_tokens"]} | set(pre_tokenizers.ByteLevel.alphabet())
    halves: dict[str, set[str]] = {}
    for a, b in model["merges"]:
        halves.setdefault(a + b, set()).update((a, b))  # a word may be made in several ways
    waiting = {word for text in texts for word in tokenizer.encode(text, add_special_tokens=False).tokens}
    while waiting:
        word = waiting.pop()
        if word not in need:
            need.add(word)
            waiting |= halves.get(word, set())
    old = sorted(numbers[word] for word in need)
    new = {number: n for n, number in enumerate(old)}
    model["vocab"] = {word: new[n] for word, n in model["vocab"].items() if word in need}
    model["merges"] = [[a, b] for a, b in model["merges"] if {a, b, a + b} <= need]
    for token in spec["added_tokens"]:
        token["id"] = new[token["id"]]
    _renumber_template(spec["post_processor"], new)
    made = Made.from_str(json.dumps(spec))
    if made.get_vocab(with_added_tokens=True) != {word: new[numbers[word]] for word in need}:
        raise ValueError("tokenizer has special tokens between the words of its model; those must come first or last")
    return made, torch.tensor(old)


def slice_model(model: PreTrainedModel, old: Tensor) -> None:
    """Keep the rows ``old`` of embedding and head, in place, and renumber the special tokens in the configurations.

    ``old`` (V',) int64 is what ``slice_tokenizer`` returns. Tied weights stay tied. Raises ValueError for rows that
    the embedding does not have, for a special token that is dropped, and for a model of more than one modality.
    """
    if model.config.get_text_config() is not model.config:
        raise ValueError(f"model has a configuration within its own ({model.config.model_type}); text models alone")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding)
    if int(old.max()) >= embedding.num_embeddings:
        raise ValueError(f"old goes up to {int(old.max())}; the embedding has {embedding.num_embeddings} rows")
    configs = [config for config in (model.config, model.generation_config) if config is not None]
    special = [
        (config, name, _special(getattr(config, name, None), name, old)) for config in configs for name in SPECIAL
    ]
    padding = _special(embedding.padding_idx, "padding_idx", old)
    kept = embedding.weight.data[old]
    rows = {name: p.data[old] for name, p in head.named_parameters()} if isinstance(head, nn.Module) else {}
    model.resize_token_embeddings(len(old), mean_resizing=False)  # what is tied stays tied
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    embedding.weight.data.copy_(kept)
    embedding.padding_idx = padding
    head = model.get_output_embeddings()
    for name, p in head.named_parameters() if isinstance(head, nn.Module) else ():
        p.data.copy_(rows[name])
    for config, name, value in special:
        if value is not None:
            setattr(config, name, value)


def renumber(tokens: Tensor, old: Tensor) -> Tensor:
    """The new numbers of ``tokens`` (...) int64; targets of -100 stay. Raises ValueError for a word that is dropped."""
    if not len(old):
        raise ValueError("old is empty; it must have the words that are kept")
    new = torch.searchsorted(old, tokens).clamp(max=len(old) - 1)
    found = (old[new] == tokens) | (tokens == IGNORE)
    if not found.all():
        raise ValueError(
            f"tokens has {int(tokens[~found][0])}, a word that is dropped; allowed: words of old, and -100"
        )
    return new.masked_fill(tokens == IGNORE, IGNORE)


def parameters_saved(vocab_size: int, kept: int, width: int, tied: bool) -> int:
    """Parameters that dropping ``vocab_size - kept`` words takes off a model of this width.

    Raises ValueError for counts below 1, and for more kept than there are.
    """
    check_counts(vocab_size=vocab_size, width=width)
    check_counts(most=vocab_size, kept=kept)
    check_flags(tied=tied)
    return (vocab_size - kept) * width * (1 if tied else 2)


def _special(value: Any, name: str, old: Tensor) -> Any:
    """A special token's new number, or a list of them; None stays."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_special(each, name, old) for each in value]
    found = (old == value).nonzero()
    if not len(found):
        raise ValueError(f"{name} is {value}, a word that is dropped; old must have it")
    return int(found[0, 0])


def _check_known(spec: dict[str, Any], alphabet: list[str]) -> None:
    """Raise ValueError, naming the part, for what ``slice_tokenizer`` would get wrong."""
    model = spec["model"]
    if model["type"] != "BPE":
        raise ValueError(f"tokenizer is {model['type']}; allowed: byte-level BPE")
    odd = [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback")
           if model.get(name)]  # fmt: skip
    if odd:
        raise ValueError(f"tokenizer has {odd[0]} {model[odd[0]]!r}; allowed: byte-level BPE without it")
    if missing := set(alphabet) - set(model["vocab"]):
        raise ValueError(f"tokenizer has {256 - len(missing)} of the 256 bytes; without the others text would vanish")
    if "ByteLevel" not in _types(spec["pre_tokenizer"]):
        raise ValueError("tokenizer does not cut text into bytes; its pre_tokenizer must have ByteLevel")
    if odd := sorted(_types(spec["post_processor"]) - PROCESSORS):
        raise ValueError(f"tokenizer has a post_processor {odd[0]!r}; allowed: ByteLevel, TemplateProcessing")
    if spec["padding"] is not None:
        raise ValueError("tokenizer pads by itself, with a number; call no_padding() first")


def _types(part: dict[str, Any] | None) -> set:
    """The types of a part of a tokenizer, of those inside a sequence, too."""
    if part is None:
        return {None}
    inner = [each for name in ("processors", "pretokenizers") for each in part.get(name) or ()]
    return {part["type"]}.union(*(_types(each) for each in inner))


def _renumber_template(part: dict[str, Any] | None, new: dict[int, int]) -> None:
    """The numbers of special tokens in a template, in place."""
    for inner in (part or {}).get("processors") or ():
        _renumber_template(inner, new)
    if part is not None and part["type"] == "TemplateProcessing":
        for token in part["special_tokens"].values():
            token["ids"] = [new[n] for n in token["ids"]]
