"""Text for training, found on every machine: the standard library of the running Python, read as bytes.

A token is a byte of UTF-8, so the vocabulary has 256 entries and needs no tokenizer file. Byte 0 ends a
document; it never occurs in source code. Two data sets are made from the same files:

    pre-training   whole files, each ended with byte 0, cut into windows
    fine-tuning    signature -> first sentence of the docstring; only the answer's tokens count in the loss

The split into train and validation is by top-level module, so that no function of a validation module was ever
seen, and it is decided by a hash, so that it is the same on every machine.

A data set here is anything with ``batches[i] -> (tokens, targets)``, both (B, T) int64: batch number i is a function
of the seed and i alone. So a resumed run needs no state of an iterator, and a plain list of batches works too.

Left out: tokenizers, packing several examples into one row, streaming from disk.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from minigpt.memory.collector import at_rest
from minigpt.model import IGNORE
from minigpt.values import check_choice, check_counts

END = 0  # the byte that ends a document or an answer
SPLITS = ("train", "validation")
SPLIT_SEED = 1  # puts 8% of the bytes in validation: 22 modules of different kinds, as Python 3.11 has them
VALIDATION_SHARE = 0.1  # of the top-level modules, not of the bytes
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")  # written when this Python was built: paths of one machine
ADDED = {"sitecustomize", "_distutils_system_mod"}  # Debian's own, in the folder of the library

Batch = tuple[Tensor, Tensor]


def encode(text: str) -> Tensor:
    """Text to tokens: (T,) int64, the bytes of its UTF-8."""
    return torch.tensor(list(text.encode()), dtype=torch.long)


def decode(tokens: Tensor | Sequence[int]) -> str:
    """Tokens to text, up to the first END; bytes that are no UTF-8 become the replacement character."""
    return bytes(int(token) for token in tokens).split(bytes([END]))[0].decode(errors="replace")


@cache
def library_sources() -> tuple[tuple[str, str], ...]:
    """(module name, text) of each file of the standard library, in the order of the names.

    Left out: installed packages, tests, files that are empty or not UTF-8.
    """
    root = Path(sysconfig.get_path("stdlib"))
    sources = []
    files = sorted(root.rglob("*.py"))
    for path in tqdm(files, desc="reading the standard library", unit="file", leave=False, delay=10):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or parts[0].startswith(SKIPPED_PREFIXES) or parts[0] in ADDED:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text and "\0" not in text:
            sources.append((".".join(parts).removesuffix(".__init__"), text))
    return tuple(sources)


def split_of(module: str, seed: int = SPLIT_SEED) -> str:
    """The split of a module, decided by its top-level package: ``json.decoder`` goes where ``json`` goes."""
    digest = hashlib.sha256(f"{seed}:{module.split('.')[0]}".encode()).digest()
    return "validation" if int.from_bytes(digest[:8], "big") < VALIDATION_SHARE * 2**64 else "train"


@cache
def pretraining_text(split: str, seed: int = SPLIT_SEED) -> Tensor:
    """Every file of one split, each ended with END: (N,) uint8. Raises ValueError for an unknown split."""
    check_choice(SPLITS, split=split)
    texts = [text.encode() + bytes([END]) for module, text in library_sources() if split_of(module, seed) == split]
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)


@dataclass(frozen=True)
class Example:
    """A prompt and the answer to learn. The END after the answer is added when it becomes tokens."""

    prompt: str
    answer: str

    def __post_init__(self) -> None:
        for name in ("prompt", "answer"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; an example needs at least one byte of it")

    def tokens(self) -> Batch:
        """(tokens, targets), both (T,): the targets are the next tokens, and IGNORE inside the prompt."""
        prompt, answer = encode(self.prompt), encode(self.answer)
        text = torch.cat([prompt, answer, torch.tensor([END])])
        targets = text[1:].clone()
        targets[: len(prompt) - 1] = IGNORE  # the last prompt token predicts the first token of the answer
        return text[:-1], targets

    def __len__(self) -> int:
        """Tokens that the model sees: all bytes but the last."""
        return len(self.prompt.encode()) + len(self.answer.encode())


def prompt_for(signature: str) -> str:
    """The prompt of the fine-tuning set: ``prompt_for("def area(radius):")``."""
    if not signature.strip():
        raise ValueError("signature is empty; give a line such as 'def area(radius):'")
    return f'{signature}\n    """'


@cache
def docstring_pairs(split: str, seq_len: int = 256, seed: int = SPLIT_SEED) -> tuple[Example, ...]:
    """Signature -> first docstring sentence, for every documented function of one split that fits ``seq_len``.

    A pair that occurs twice is kept once, and a prompt of the train split never occurs in validation.
    """
    check_choice(SPLITS, split=split)
    pairs = {pair: None for module, pair in _all_pairs() if split_of(module, seed) == split and len(pair) <= seq_len}
    if split == "validation":
        seen = {pair.prompt for module, pair in _all_pairs() if split_of(module, seed) == "train"}
        pairs = {pair: None for pair in pairs if pair.prompt not in seen}
    return tuple(pairs)


@cache
def _all_pairs() -> tuple[tuple[str, Example], ...]:
    progress = tqdm(library_sources(), desc="reading docstrings", unit="file", leave=False, delay=10)
    with at_rest():  # a file's tree is many thousand objects, no cycle among them
        return tuple((module, pair) for module, text in progress for pair in functions_documented(text))


def functions_documented(source: str) -> Iterator[Example]:
    """The pairs of one file, from top to bottom; none if it is no valid Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: nested beyond the parser's depth
        return
    for node in statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            sentence = first_sentence(ast.get_docstring(node) or "")
            if sentence:
                yield Example(prompt_for(f"def {node.name}({ast.unparse(node.args)}):"), sentence)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """What ``ast.walk`` goes through, in its order, without expressions: they are most of it and hold no function."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, field, ()))
        yield node


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring's first paragraph, on one line; may be empty."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s(?=[A-Z])", paragraph)[0]


@dataclass(frozen=True)
class RandomWindows:
    """Endless batches of random windows of a text; see :func:`random_windows`."""

    text: Tensor
    batch: int
    seq_len: int
    seed: int

    def __getitem__(self, i: int) -> Batch:
        starts = torch.randint(len(self.text) - self.seq_len, (self.batch, 1), generator=_generator(self.seed, i))
        windows = self.text[starts + torch.arange(self.seq_len + 1)].long()  # (B, T + 1)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def random_windows(text: Tensor, batch: int, seq_len: int, seed: int = 0) -> RandomWindows:
    """Batches for pre-training, from tokens (N,): ``random_windows(...)[i]`` is (tokens, targets), each (B, T).

    Raises ValueError if the text is shorter than one window and its next token.
    """
    check_counts(batch=batch, seq_len=seq_len)
    _check_length(text, seq_len + 1)
    return RandomWindows(text, batch, seq_len, seed)


def windows_in_order(text: Tensor, batch: int, seq_len: int, limit: int | None = None) -> list[Batch]:
    """The text from its start as windows that do not overlap, for validation: at most ``limit`` batches (B, T).

    The rest that does not fill a batch is left out.
    """
    check_counts(batch=batch, seq_len=seq_len)
    if limit is not None:
        check_counts(least=0, limit=limit)
    size = batch * seq_len
    _check_length(text, size + 1)
    count = (len(text) - 1) // size if limit is None else min(limit, (len(text) - 1) // size)
    inputs, nexts = text[: count * size].long(), text[1 : count * size + 1].long()
    return list(zip(inputs.view(count, batch, seq_len), nexts.view(count, batch, seq_len)))


@dataclass(frozen=True)
class PairBatches:
    """Batches of examples, shuffled anew in every epoch; see :func:`pair_batches`."""

    examples: tuple[Example, ...]
    batch: int
    seq_len: int
    seed: int | None
    pad_to_longest: bool

    def __len__(self) -> int:
        """Batches in one epoch."""
        return len(self.examples) // self.batch

    def __getitem__(self, i: int) -> Batch:
        epoch, place = divmod(i, len(self))
        order = _order(len(self.examples), self.seed, epoch)
        rows = [self.examples[j].tokens() for j in order[place * self.batch : (place + 1) * self.batch]]
        width = max(len(tokens) for tokens, _ in rows) if self.pad_to_longest else self.seq_len
        tokens = torch.full((self.batch, width), END)  # (B, T)
        targets = torch.full((self.batch, width), IGNORE)  # (B, T)
        for row, (row_tokens, row_targets) in enumerate(rows):
            tokens[row, : len(row_tokens)] = row_tokens
            targets[row, : len(row_tokens)] = row_targets
        return tokens, targets

    def __iter__(self) -> Iterator[Batch]:
        """One epoch, the first: for validation."""
        return (self[i] for i in range(len(self)))


def pair_batches(
    examples: Sequence[Example], batch: int, seq_len: int, seed: int | None = 0, pad_to_longest: bool = False
) -> PairBatches:
    """Batches for fine-tuning: (tokens, targets), each (B, T), prompt and padding masked with IGNORE.

    ``len()`` is the number of batches in an epoch; an index beyond it belongs to the next epoch. T is ``seq_len``, or
    with ``pad_to_longest`` the longest example of the batch: faster, but memory changes from batch to batch.
    ``seed`` None keeps the order. Examples that do not fill a batch are left out of an epoch.
    Raises ValueError if an example is longer than ``seq_len``, or if there are fewer examples than ``batch``.
    """
    check_counts(batch=batch, seq_len=seq_len)
    if len(examples) < batch:
        raise ValueError(f"batch is {batch}, but there are only {len(examples)} examples")
    longest = max(len(example) for example in examples)
    if longest > seq_len:
        raise ValueError(f"seq_len is {seq_len}, but the longest example has {longest} tokens")
    return PairBatches(tuple(examples), batch, seq_len, seed, pad_to_longest)


@cache
def _order(count: int, seed: int | None, epoch: int) -> list[int]:
    return list(range(count)) if seed is None else torch.randperm(count, generator=_generator(seed, epoch)).tolist()


def _generator(seed: int, i: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + i)


def _check_length(text: Tensor, needed: int) -> None:
    if text.ndim != 1 or len(text) < needed:
        raise ValueError(f"the text has shape {tuple(text.shape)}; one batch needs at least {needed} tokens in a row")
