"""Judging a dynamic map that a student wrote: the truth is bitsandbytes'.

dynamic(dynamic_map, signed)      (256,) float32, ascending
"""

from __future__ import annotations

from collections.abc import Callable

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.four_bits.asking import vector
from minigpt.checks.naming import Hints
from minigpt.checks.optimizers.asking import ask
from minigpt.checks.verdict import Wrong

knows(__name__)
DECADES = 7
MAPS = {"signed": bnb.create_dynamic_map(), "unsigned": bnb.create_dynamic_map(signed=False)}


def dynamic(dynamic_map: Callable, signed: bool) -> None:
    kind = "signed" if signed else "unsigned"
    what = f"dynamic_map({signed})"
    counts = {
        "no-ends": ("zero and 1 belong to it as well", 254),
        "one-end-missing": ("zero, or 1, is missing", 255),
        "six-decades": ("a decade is missing: k = 0 ... 6 are seven", 128),
        "eight-decades": ("there is a decade too many: k = 0 ... 6 are seven", 512),
    } | ({
        "one-side": ("only one side of zero", 129), "minus-one": ("-1 is in it; only the centres have a negative", 257),
        "parts-doubled": ("with a sign a decade has 2^k parts, not 2^(k+1)", 510),
        "edges": ("the edges of the parts are in it; their centres are asked for", 270),
    } if signed else {
        "parts-halved": ("without a sign a decade has 2^(k+1) parts, not 2^k", 129),
        "both-sides": ("v has no sign, and its map no negative values", 510),
        "edges": ("the edges of the parts are in it; their centres are asked for", 263),
    })  # fmt: skip
    values = vector(ask(dynamic_map, signed), 256, torch.float32, what, counts)
    if not (values[1:] >= values[:-1]).all():
        raise Wrong("not-ascending", f"{what}: the values are not in ascending order")
    close(values, MAPS[kind], what, rtol=2e-5, atol=1e-12, wrong=_map_mistakes(signed))


def built(
    signed: bool, *, decades=range(DECADES), low=0.1, where=lambda low, high: (low + high) / 2, shift=DECADES - 1
) -> Tensor:
    """The map, or one with a slip: ``where`` in each part its value lies."""
    values = [0.0, 1.0]
    for k, parts in zip(range(DECADES), decades):
        edges = torch.linspace(low, 1, 2 ** (parts + (not signed)) + 1, dtype=torch.float64)
        found = where(edges[:-1], edges[1:]) * 10.0 ** (k - shift)
        values += found.tolist() + (-found).tolist() * signed
    return torch.tensor(sorted(values), dtype=torch.float64)


def _map_mistakes(signed: bool) -> Hints:
    right = MAPS["signed" if signed else "unsigned"]
    return {
        "other-map": (f"that is the map for numbers with{'out' * signed} a sign",
                      MAPS["unsigned" if signed else "signed"]),
        "decades-reversed": ("the smallest decade has the most values; the largest, next to 1, has them",
                             built(signed, decades=range(DECADES)[::-1])),
        "left-ends": ("each part gives its lower end; its centre is asked for",
                      built(signed, where=lambda low, high: low)),
        "right-ends": ("each part gives its upper end; its centre is asked for",
                       built(signed, where=lambda low, high: high)),
        "geometric": ("each part gives its geometric mean; its centre is asked for",
                      built(signed, where=lambda low, high: (low * high).sqrt())),
        "from-zero": ("the decades begin at zero; each is cut from 0.1 to 1", built(signed, low=0.0)),
        "decade-low": ("all decades lie ten times too low: the largest, k = 6, goes up to 1",
                       built(signed, shift=DECADES)),
        "decade-high": ("the decades lie ten times too high: the largest, k = 6, goes up to 1",
                        built(signed, shift=DECADES - 2)),
        "part-offset": ("the parts begin at zero; a decade is cut from 0.1 to 1",
                        built(signed, where=lambda low, high: (low + high) / 2 - 0.1)),
        "linear": ("that is a linear map: all distances are equal",
                   torch.linspace(-1 if signed else 0, 1, 256)),
        "no-one": ("1 is missing: the largest number of a block, which is its absmax, would not be itself",
                   torch.cat([right[:-1], torch.zeros(1)]).sort().values),
        "minus-one-for-one": ("-1 is in it, and 1 is missing", torch.cat([-torch.ones(1), right[:-1]])),
        "no-zero": ("zero is missing", torch.cat([right[right != 0], torch.ones(1)]).sort().values),
    }  # fmt: skip
