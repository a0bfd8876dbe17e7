"""Judging a step of 8-bit AdamW that a student put together: the truth is minigpt.optim.AdamW8bit.

    steps(adam8bit_step, case)      one step of one tensor, from the state that the right steps before it left

``adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay)`` -> (weight, state). The tests hold AdamW8bit to
bitsandbytes, whose CPU kernel looks codes up in a coarse table; here a code may be off by one in 0.5% of the places,
where rounding decides. What a code says in a block of zeros does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.four_bits import quantizing
from minigpt.checks.four_bits.asking import tensor, vector
from minigpt.checks.naming import Hints
from minigpt.checks.optimizers.asking import ask
from minigpt.checks.optimizers.blocks import restored
from minigpt.checks.optimizers.maps import MAPS
from minigpt.checks.optimizers.moments import SMALL
from minigpt.checks.verdict import Wrong
from minigpt.optim import AdamW8bit, adam_step
from minigpt.optim.blockwise import linear_map

knows(__name__)
TABLES = {"dynamic": MAPS, "linear": {"signed": linear_map(True), "unsigned": linear_map(False)}}
OFF = 0.005  # share of codes that may be off by one
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.99), 1e-8, 0.1


class Case(NamedTuple):
    """Step ``t`` of a tensor. ``kind``: of the maps handed over. ``unused``: a block whose gradient is zero."""

    shape: tuple[int, ...]
    t: int
    seed: int = 0
    kind: str = "dynamic"
    unused: bool = False

    @property
    def text(self) -> str:
        more = ", with two other maps" * (self.kind != "dynamic") + ", a block of it never used" * self.unused
        return f"a tensor of {tuple(self.shape)}, step {self.t}{more}"

    @property
    def maps(self) -> dict[str, Tensor]:
        return TABLES[self.kind]

    def gradient(self, t: int) -> Tensor:
        """Of step ``t``: some elements are far under their block's largest."""
        generator = torch.Generator().manual_seed(1000 * self.seed + t)
        sizes = 10 ** torch.empty(self.shape).uniform_(-5, -1, generator=torch.Generator().manual_seed(self.seed))
        gradient = sizes * torch.randn(self.shape, generator=generator)
        if self.unused:
            gradient.view(-1)[256:512] = 0
        return gradient


def steps(adam8bit_step: Callable, case: Case) -> None:
    weight, state = _after(case, case.t - 1)
    asked = asked_first([partial(_asked, adam8bit_step, case), partial(_after_another, adam8bit_step, case)])
    got, what = next(asked), case.text
    moved, new = pair(got, what)
    right, kept = _after(case, case.t)
    _keys(new, kept, what)
    close(moved, right, f"{what}: the weight", rtol=1e-4, atol=1e-5, dtype=torch.float32,
          wrong=_weight_mistakes(case, weight, state))  # fmt: skip
    for name in ("m", "v"):
        if len(kept) == 2:
            close(new[name], kept[name], f"{what}: {name}", rtol=1e-4, atol=1e-12, dtype=torch.float32)
        else:
            _stored(new, kept, name, case)
    if case.t > 1 and not same(next(asked), got):
        raise Wrong(
            "remembers",
            f"{case.text}: after steps of another tensor of this shape, the same arguments give another result: "
            "something is kept outside of state, and every tensor needs its own",
        )


def _asked(adam8bit_step: Callable, case: Case):
    weight, state = _after(case, case.t - 1)
    got = ask(adam8bit_step, weight, case.gradient(case.t), state, case.t, case.maps, LR, BETAS, EPS, DECAY)
    return tree_map_only(Tensor, _copied, got)  # the answer is asked for more before this is looked at


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone() if type(tensor) is Tensor else tensor


def _after_another(adam8bit_step: Callable, case: Case):
    """The same once more, after steps of another tensor of this shape."""
    for t in range(1, case.t):
        _asked(adam8bit_step, case._replace(seed=case.seed + 50, t=t))
    return _asked(adam8bit_step, case) if case.t > 1 else None


def pair(got, what: str) -> tuple[Tensor, Mapping]:
    """What a step returned: the weight, and a dictionary."""
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not isinstance(got[1], Mapping):
        raise Wrong("no-pair", f"{what}: it returns {show(got)}; (weight, state) are asked for, state a dictionary")
    return tensor(got[0], f"{what}: the weight"), got[1]


def _after(case: Case, t: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Weight and state after ``t`` right steps; no state before the first. Codes are flat."""
    start = torch.randn(case.shape, generator=torch.Generator().manual_seed(case.seed + 7))
    parameter = nn.Parameter(start)
    optimizer = AdamW8bit([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, kind=case.kind)
    for step in range(1, t + 1):
        parameter.grad = case.gradient(step)
        optimizer.step()
    state = {name: x for name, x in optimizer.state[parameter].items() if isinstance(x, Tensor)}
    flat = {name: x.flatten() if x.dtype == torch.uint8 else x for name, x in state.items()}
    return parameter.detach().clone(), {name: flat[name] for name in sorted(flat)}


def _keys(got: Mapping, kept: dict, what: str) -> None:
    """The state has the right tensors, of the right kinds."""
    small = len(kept) == 2
    if getattr(got.get("m_absmax"), "dtype", None) == torch.uint8:
        raise Wrong("swapped", f"{what}: the state has codes as m_absmax; codes are m and v")
    if small and "m_absmax" in got or not small and getattr(got.get("m"), "dtype", None) == torch.float32:
        n, edge = ("fewer than 4,096", "float32") if small else ("4,096 or more", "8-bit")
        raise Wrong("small-in-8-bits" if small else "large-in-float32", f"{what}: {n} elements; such a state is {edge}")
    lacking = [name for name in kept if name not in got]
    more = [show(name) for name in got if name not in kept]
    if lacking or more:
        said = f"it lacks {', '.join(lacking)}" if lacking else f"it has {', '.join(more)}"
        raise Wrong("wrong-keys", f"{what}: the state: {said}; asked for are {', '.join(kept)}")


def _stored(got: Mapping, kept: dict, name: str, case: Case) -> None:
    """Codes and scales of one moment."""
    own, sibling = ("signed", "unsigned") if name == "m" else ("unsigned", "signed")
    what, values, other = case.text, case.maps[own], case.maps[sibling]
    truth, scale = kept[name].long(), kept[f"{name}_absmax"]
    codes = vector(got[name], len(truth), torch.uint8, f"{what}: {name}")
    absmax = vector(got[f"{name}_absmax"], len(scale), torch.float32, f"{what}: {name}_absmax")
    close(absmax, scale, f"{what}: {name}_absmax", rtol=1e-4, atol=0)
    used = scale.repeat_interleave(256)[: len(truth)] > 0
    if _near(codes[used], truth[used]):
        return
    x = restored(truth, scale, values)
    if case.maps is not MAPS and _like(restored(codes, scale, MAPS[own]), x):
        raise Wrong("own-maps", f"{what}: {name}: its codes point into a map of yours; take those of the argument maps")
    if _like(restored(codes, scale, other), x):
        raise Wrong("other-map", f"{what}: {name}: its codes point into the map of {'v' if name == 'm' else 'm'}")
    raise Wrong("differs", f"{what}: {name}: {(codes != truth).sum():,} of {len(truth):,} codes differ")


def _like(read: Tensor, x: Tensor) -> bool:
    return bool((read - x)[x > 0].norm() < 0.05 * x[x > 0].norm())


def _near(codes: Tensor, truth: Tensor) -> bool:
    apart = (codes - truth).abs()
    return bool(apart.max() <= 1 and (apart > 0).float().mean() < OFF)


def _weight_mistakes(case: Case, weight: Tensor, state: dict[str, Tensor]) -> Hints:
    """The weight that each mistake leaves."""
    zero = torch.zeros(case.shape)

    def stepped(m: Tensor, v: Tensor, decay: float = DECAY, t: int = case.t) -> tuple[Tensor, Tensor, Tensor]:
        return adam_step(weight, case.gradient(case.t), m, v, t, lr=LR, betas=BETAS, eps=EPS, weight_decay=decay)

    def decoded(name: str, kind: str, maps: dict[str, Tensor] = case.maps) -> Tensor:
        return restored(state[name], state[f"{name}_absmax"], maps[kind]).view(case.shape)

    large = "m_absmax" in state
    m, v = (decoded("m", "signed"), decoded("v", "unsigned")) if large else (state.get("m", zero), state.get("v", zero))
    later = "the correction is that of step {}; t is handed on as it is"
    mistakes: Hints = {
        "no-decay": ("the decay is forgotten", stepped(m, v, decay=0.0)[0]),
        "t-plus-one": (later.format("t + 1"), stepped(m, v, t=case.t + 1)[0]),
        "always-first": (later.format(1), stepped(m, v, t=1)[0]),
    }
    if case.t == 1:
        del mistakes["always-first"]
    if weight.numel() >= SMALL:
        _, new_m, new_v = stepped(m, v)
        rounded_m, rounded_v = (
            restored(*quantizing.rounded(x, case.maps[kind], 256), case.maps[kind]).view(case.shape)
            for x, kind in ((new_m, "signed"), (new_v, "unsigned"))
        )
        c1, c2 = (1 - beta**case.t for beta in BETAS)
        shrunk, below = weight * (1 - LR * DECAY), (rounded_v / c2).sqrt() + EPS
        first = "m and v are rounded before the weight is moved; move it by the new ones as they are, then round"
        mistakes |= {
            "rounded-first": (first, shrunk - LR * (rounded_m / c1) / below),
            "rounded-v-first": (first, shrunk - LR * (new_m / c1) / below),
        }
    if case.t > 1:
        mistakes["state-forgotten"] = ("the state of the step before is not used", stepped(zero, zero)[0])
    if large:
        m_unsigned, v_signed = decoded("m", "unsigned"), decoded("v", "signed").clamp(min=0)
        m_codes, v_codes = (state[name].view(case.shape).float() for name in "mv")
        mistakes |= {
            "maps-swapped": ("the two maps are swapped: m has a sign, v has none", stepped(m_unsigned, v_signed)[0]),
            "m-unsigned": ("m is decoded with the map of v", stepped(m_unsigned, v)[0]),
            "v-signed": ("v is decoded with the map of m", stepped(m, v_signed)[0]),
            "codes-as-numbers": (
                "the codes themselves are taken for m and v; decode them",
                stepped(m_codes, v_codes)[0],
            ),
        }
        if case.maps is not MAPS:
            own = stepped(decoded("m", "signed", MAPS), decoded("v", "unsigned", MAPS))[0]
            mistakes["own-maps"] = ("it is decoded with maps of yours; take those of the argument maps", own)
    return mistakes
