"""Sizes in checks: no two that count different things are alike in a case, so that one taken for another shows.

The oracle is each check itself, run to the point where it would judge: its cases, visible and hidden, as they are.
Left out: sizes in the values of one list or shape, such as the target tokens of micro-batches.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from minigpt import checks
from minigpt.model import GPTConfig
from tools import ROOT, bank
from tools.bank_lab import Lab

PUBLISHED = {GPTConfig.preset(name) for name in ("nano", "micro", "small")}  # real models have the sizes that they have
ALIKE = {  # a check, and two sizes that are alike in it: why
    ("lab05-activations, check-largest-batch", "context", "seq_len"): "a sequence as long as the context is the rule",
    ("lab05-activations, check-largest-batch", "n_layer", "n_head"): "the answer is no formula; the meter tries it",
    ("lab09-qlora, check-qlora-stays", "head_dim", "max_position_embeddings"): "no context takes memory in a llama",
    ("lab09-qlora, check-qlora-stays", "num_hidden_layers", "num_attention_heads"): "the matrices are given by size",
    ("lab09-qlora, check-assemble", "n_layer", "n_head"): "nothing is counted: the logits are compared",
    ("lab10-galore, check-galore-bytes", "n_embd", "case[1]"): "a rank as large as the matrix: the limit is the case",
    ("lab11-allocator, check-cures", "n_embd", "context"): "no formula of the student's reads the model",
}  # fmt: skip


@pytest.fixture(scope="module", params=bank.banks(), ids=lambda path: path.stem)
def cells(request) -> dict[str, list]:
    """The cases of each check of an exercise."""
    lab, found = Lab(ROOT / request.param), {}
    with pytest.MonkeyPatch.context() as patch:
        for name, source in zip(lab.check_names.values(), lab.checks.values()):
            cases: list = []
            patch.setattr(checks, "part", lambda *_, each=None, cases=cases, **__: cases.extend(each or ()))
            patch.setattr(checks, "score", lambda *_, **__: None)
            patch.setattr(checks, "check", lambda judge: judge(**dict.fromkeys(_parameters(judge))))
            exec(source, {})
            found[f"{lab.name}, {name}"] = cases
    return found


def _parameters(judge) -> tuple[str, ...]:
    code = judge.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def sizes(case: object) -> dict[str, int]:
    """The whole numbers above 1 of a case with a model in it, by their names; none where the model was published."""
    if isinstance(case, GPTConfig):
        return {} if case in PUBLISHED else sizes(dataclasses.asdict(case))
    if hasattr(case, "_asdict"):
        items = list(case._asdict().items())
    elif isinstance(case, dict):
        items = [] if case.get("hidden_size", 0) >= 2048 else list(case.items())
    elif isinstance(case, (tuple, list)):
        items = [(f"case[{i}]", value) for i, value in enumerate(case)]
    else:
        return {}
    found = {str(key): value for key, value in items if type(value) is int and value > 1}
    for _, value in items:
        if isinstance(value, (GPTConfig, dict)):
            found |= sizes(value)
    return found if {"n_embd", "hidden_size"} & {*found} else {}


def test_no_two_sizes_of_a_case_are_alike(cells):
    found = set()
    for cell, cases in cells.items():
        for case in cases:
            for (a, x), (b, y) in itertools.combinations(sizes(case).items(), 2):
                if x == y and not {(cell, a, b), (cell, b, a)} & {*ALIKE}:
                    found.add(f"{cell}: {a} and {b} are {x}")
    assert not found, "\n".join(sorted(found))


def test_the_models_of_a_check_differ_in_their_layers_and_are_not_all_of_round_width(cells):
    for cell, cases in cells.items():
        models = [own for case in cases if (own := sizes(case))]
        if len({tuple(own.items()) for own in models}) < 2 or cell in ROUND:
            continue
        layers = {own["n_layer" if "n_layer" in own else "num_hidden_layers"] for own in models if _layered(own)}
        assert len(layers) != 1, f"{cell}: every model has {layers.pop()} layers"
        widths = {own.get("n_embd", own.get("hidden_size")) for own in models}
        assert any(width % 64 for width in widths), f"{cell}: every width is a multiple of 64: {widths}"


ROUND = {  # a check: why its models may be alike in that
    "lab09-qlora, check-qlora-stays": "bitsandbytes' blocks have 64 weights, and other widths are a case of lab 08",
    "lab11-allocator, check-cures": "what fits where was tried out for these sizes",
    "lab11-allocator, check-peaks": "what the two pools hold was chosen for these sizes",
}


def _layered(own: dict) -> bool:
    return bool({"n_layer", "num_hidden_layers"} & {*own})
