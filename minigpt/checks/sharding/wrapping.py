"""Judging which modules are handed to fully_shard, in which order, and with what.

wraps(wrap, (config, reshard))      ``wrap(model, fully_shard, reshard_after_forward)``: each block, then the model

The root's weights stay from forward to backward by themselves, so no word, None and False are one there.
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.closing import knows
from minigpt.checks.probes import sharding as probes
from minigpt.checks.sharding import asking  # noqa: F401  closes the book
from minigpt.checks.verdict import Wrong
from minigpt.model import GPTConfig

knows(__name__)
ROOT = "the model"


def wraps(wrap: Callable, case: tuple[GPTConfig, bool]) -> None:
    config, reshard = case
    said = probes.wrapped(wrap, config, reshard)
    calls = [(str(name), how) for name, how in said["calls"]]
    names, blocks = [name for name, _ in calls], [f"blocks.{i}" for i in range(config.n_layer)]
    what = f"a MiniGPT of {config.n_layer} blocks, reshard_after_forward={reshard}"
    if not calls:
        raise Wrong("not-wrapped", f"{what}: fully_shard is never called")
    if ROOT not in names:
        raise Wrong("no-root", f"{what}: the model itself is not wrapped, so embeddings, last norm and head stay whole "
                    "on every rank")  # fmt: skip
    if not set(blocks) & set(names):
        raise Wrong("root-alone", f"{what}: no block is wrapped: all weights are one group, which is gathered at once")
    if extra := [name for name in names if name not in (*blocks, ROOT)]:
        raise Wrong(
            "other-modules", f"{what}: {extra[0]} is wrapped, too; each block is one group, and the rest the root's"
        )
    if missing := [name for name in blocks if name not in names]:
        raise Wrong("blocks-missing", f"{what}: {missing[0]} is not wrapped, so its weights are the root's, and stay")
    if len(set(names)) != len(names):
        raise Wrong("wrapped-twice", f"{what}: {max(names, key=names.count)} is wrapped more than once")
    if names[-1] != ROOT:
        raise Wrong("root-first", f"{what}: the model is wrapped before {names[-1]}: a root takes all that is in no "
                    "group yet, so it comes last")  # fmt: skip
    for name, how in calls:
        kept = how is False or name == ROOT and how in (None, "no word")
        freed = how is True or name != ROOT and how in (None, "no word")
        if name == ROOT and not kept:
            raise Wrong(
                "root-freed", f"{what}: the root is told {how!r}; it stays gathered, which is fully_shard's default"
            )
        if name != ROOT and not (freed if reshard else kept):
            raise Wrong("other-reshard", f"{what}: {name} is told {_said(how)}")
    if not said["itself"]:
        raise Wrong("returns-other", f"{what}: the model itself is to be returned")


def _said(how) -> str:
    return "nothing, which means True" if how in (None, "no word") else f"{how!r}"
