"""Judging a LoRA layer that a student wrote; the truth is peft's layer on the same weights.

    starts(LoRALinear, case)          the parts, and what they are before training
    outputs(LoRALinear, case)         the output and the gradients, against peft's

B is zero at the start, where every mistake in the scale hides, so outputs and gradients are judged with other values.
The sizes should be chosen so that nothing else hides: alpha apart from the rank, no square matrix.

Left out: dropout, rsLoRA, DoRA, 4-bit bases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minigpt.checks.calling import explained
from minigpt.checks.closing import asked_first, by_hand, knows
from minigpt.checks.comparing import close, same
from minigpt.checks.naming import Hints, given
from minigpt.checks.verdict import Wrong

knows(__name__)
WEIGHTS = "A weight is (out, in): F.linear(x, weight) is x @ weight.T, and the update of W is B A"
CAST = "Promise 1: forward casts x to float32 for A and B, and the sum back to the type of the base's output"
TECHNICAL = {  # by the id of the verdict: what an error of forward says, and what it means here
    "shapes-do-not-fit": {"shapes cannot be multiplied": WEIGHTS, "must match the size": WEIGHTS},
    "no-cast": {"have the same dtype": CAST},
}


class Case(NamedTuple):
    """A linear layer, and the adapter that it gets."""

    n_in: int
    n_out: int
    rank: int
    alpha: int
    bias: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def text(self) -> str:
        bias = " with a bias" * self.bias
        return (f"a {str(self.dtype)[6:]} base {self.n_in} -> {self.n_out}{bias}, rank {self.rank}, "
                f"alpha {self.alpha:g}")  # fmt: skip


def starts(cls: Callable, case: Case) -> None:
    """``cls(base, rank, alpha)``: its parts are as asked for, and its output is the base's."""
    base, before, x = _inputs(case)
    made = make(cls, base, case)
    y = _forward(made, x)
    _parts(made, base, before, case)
    A, B = made.lora_A.detach(), made.lora_B.detach()
    _zero(A, B, case.text)
    close(y, before(x), f"{case.text}: the output at the start", rtol=1e-5, atol=1e-6)
    _draws([make(cls, nn.Linear(400, 60), Case(400, 60, 50, 100)).lora_A.detach() for _ in range(2)])


def outputs(cls: Callable, case: Case) -> None:
    """The output and all gradients, with A and B that are not zero."""
    base, before, x = _inputs(case)
    made = make(cls, base, case)
    _parts(made, base, before, case)
    A, B = fill(made)
    mine, pull = x.clone().requires_grad_(), torch.randn(*x.shape[:-1], case.n_out)  # pull: backward starts from it
    asked = asked_first([
        partial(_forward, made, mine), partial(_backward, made, mine, pull), partial(_forward_merged, made, x),
    ])  # fmt: skip
    y = next(asked)
    peft, theirs = peft_layer(before, case, A, B), x.clone().requires_grad_()
    truth = peft(theirs)
    _output(y, truth, before(x).detach().float(), x.float() @ A.T @ B.T, case)
    if not same(mine.detach(), x):
        raise Wrong("changes-arguments", f"{case.text}: forward changes its input")
    if not y.requires_grad:
        raise Wrong("no-graph", f"{case.text}: the output has no graph, so nothing can be trained")
    dA, dB, dx = next(asked)
    (truth.float() * pull).sum().backward()
    lora_A, lora_B = (part["default"].weight.grad for part in (peft.lora_A, peft.lora_B))
    _gradients((dA, dB, dx), (lora_A, lora_B, theirs.grad), pull.to(case.dtype) @ before.weight.detach(), case)
    if made.base.weight.grad is not None:
        raise Wrong("base-gradient", f"{case.text}: the base's weight has a gradient; it is frozen")
    added = {"adapter-although-merged": (
        "the adapter is added all the same; forward must ask self.merged", y.detach())}  # fmt: skip
    close(next(asked), before(x), f"{case.text}: the output where merged is True", rtol=1e-5, atol=1e-6, wrong=added)


# ---------------------------------------------------------------- asking a layer


def _inputs(case: Case) -> tuple[nn.Linear, nn.Linear, Tensor]:
    """A base, a copy of it, and x (2, 5, n_in)."""
    torch.manual_seed(case.n_in)
    base = nn.Linear(case.n_in, case.n_out, bias=case.bias, dtype=case.dtype)
    return base, copy.deepcopy(base), torch.randn(2, 5, case.n_in, dtype=case.dtype)


def make(cls: Callable, base: nn.Linear, case: Case):
    return by_hand(cls, base, case.rank, case.alpha, building=True, twice=False, untouched=False)


def fill(made, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Values for A and B that are not zero; returns copies of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (made.lora_A, made.lora_B):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1]))
    return made.lora_A.detach().clone(), made.lora_B.detach().clone()


def _forward(made, x: Tensor) -> Tensor:
    """made(x), called twice; with a word about shapes or types that do not fit."""

    def forward(x):
        return made(x)

    try:
        return by_hand(forward, x, building=True, untouched=False)
    except Wrong as verdict:
        for id, hints in TECHNICAL.items():
            verdict = explained(verdict, hints, id)
        raise verdict from None


def _backward(made, x: Tensor, pull: Tensor) -> list[Tensor | None]:
    """The gradients of A, B and x."""

    def backward():
        y = made(x)
        if isinstance(y, Tensor) and y.requires_grad:
            (y.float() * pull).sum().backward()

    by_hand(backward, building=True, twice=False, none_ok=True)
    return [made.lora_A.grad, made.lora_B.grad, x.grad]


def _forward_merged(made, x: Tensor) -> Tensor:
    made.merged = True
    try:
        return _forward(made, x)
    finally:
        made.merged = False


# ---------------------------------------------------------------- judging it


def own(made, what: str) -> None:
    """It is a module, written here, with a base and an A and a B."""
    if not isinstance(made, nn.Module) or "_modules" not in vars(made):  # a module that was never set up has none
        raise Wrong("no-module", f"{what}: LoRALinear is not an nn.Module, so its parameters are not found")
    kinds = {kind.__module__ for module in made.modules() for kind in type(module).__mro__}
    if foreign := [name for name in kinds if name.startswith(("minigpt.", "peft."))]:
        raise Wrong("not-your-own", f"{what}: that is the layer of {min(foreign)}; write your own")
    for name in ("lora_A", "lora_B"):
        if not isinstance(getattr(made, name, None), Tensor):
            raise Wrong("no-parameter", f"{what}: layer.{name} is {_what(made, name)}; an nn.Parameter is asked for")
    if not isinstance(getattr(made, "base", None), nn.Linear):
        raise Wrong(
            "no-base-layer", f"{what}: layer.base is {_what(made, 'base')}; the layer that was given is asked for"
        )


def _what(made, name: str) -> str:
    value = getattr(made, name, Tensor)
    return "missing" if value is Tensor else "None" if value is None else f"of type {type(value).__name__}"


def shaped(made, case: Case) -> None:
    """Its A and B are float32 parameters of the right shapes."""
    what = case.text
    own(made, what)
    shapes = {"lora_A": (case.rank, case.n_in), "lora_B": (case.n_out, case.rank)}
    found = {name: getattr(made, name) for name in shapes}
    sizes = {name: tuple(value.shape) for name, value in found.items()}
    swapped = sizes["lora_A"] in (shapes["lora_B"], shapes["lora_B"][::-1])
    for name, shape in shapes.items():
        if sizes[name] != shape:
            id, turned = "wrong-shape", ""
            if swapped:
                id, turned = "swapped", "; A reads the input (in), B writes the output (out): are they swapped?"
            if sizes[name] == shape[::-1]:
                id, turned = "transposed", "; it is transposed"
            raise Wrong(id, f"{what}: {name} has the shape {sizes[name]}, not {shape}{turned}")
        part = found[name]
        if not isinstance(part, nn.Parameter):
            raise Wrong(
                "no-parameter", f"{what}: {name} is a plain tensor, which no optimizer finds; make it an nn.Parameter"
            )
        if part.dtype != torch.float32:
            raise Wrong("wrong-dtype", f"{what}: {name} is {part.dtype}; adapters are float32 on any base")


def _parts(made, base: nn.Linear, before: nn.Linear, case: Case) -> None:
    what = case.text
    shaped(made, case)
    if made.base is not base:
        raise Wrong("base-copied", f"{what}: layer.base is not the layer that was given; a copy costs its memory again")
    for name, parameter in before.named_parameters():
        if not same(getattr(base, name).detach(), parameter.detach()):
            raise Wrong("base-changed", f"{what}: base.{name} is changed; only the adapter is new")
    frozen(made, {"lora_A", "lora_B"}, what)


def frozen(module: nn.Module, adapters: set[str], what: str) -> None:
    """Exactly the parameters called ``adapters`` take a gradient."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if extra := sorted(trained - adapters):
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        verb = "still take" if more else "still takes"
        raise Wrong("not-frozen", f"{what}: {extra[0]}{more} {verb} a gradient; everything but the adapters is frozen")
    if missing := sorted(adapters - trained):
        raise Wrong(
            "adapters-frozen", f"{what}: {missing[0]} takes no gradient; freeze first, and then make the adapters"
        )


def _zero(A: Tensor, B: Tensor, what: str) -> None:
    zero = [not tensor.any().item() for tensor in (A, B)]
    if zero == [True, False]:
        raise Wrong("a-zero", f"{what}: A starts at zeros and B at random; it is A that is random, and B zeros")
    if zero == [True, True]:
        raise Wrong("both-zero", f"{what}: A and B are both zeros at the start: then neither ever gets a gradient")
    if zero == [False, False]:
        raise Wrong(
            "b-not-zero", f"{what}: B is not zeros at the start, so training does not start from the base model"
        )


def _draws(draws: list[Tensor]) -> None:
    """Two A's of (50, 400): different, and uniform in +-1/sqrt(in)."""
    if same(*draws):
        raise Wrong("same-draw", "two layers start with the same A; it must be drawn anew")
    (rank, n_in), what = draws[0].shape, "A does not start uniform in +-1/sqrt(in)"
    bound = 1 / math.sqrt(n_in)
    largest, spread = draws[0].abs().max().item(), draws[0].std().item() * math.sqrt(3)  # both are the bound if uniform
    if 0.99 * bound < largest <= 1.0001 * bound and 0.97 < spread / bound < 1.03:
        return
    if largest > 1.3 * spread:
        raise Wrong("normal-draw", f"{what}: it is drawn from a normal distribution")
    if abs(spread / bound - math.sqrt(6)) < 0.1:
        raise Wrong("kaiming-without-a", f"{what}: sqrt(6) times too wide: kaiming_uniform_ without a=math.sqrt(5)")
    if abs(spread * math.sqrt(rank) - 1) < 0.05:
        raise Wrong("bound-of-rank", f"{what}: its bound is 1/sqrt(rank); A is (rank, in), and in is its fan-in")
    raise Wrong("wrong-width", f"{what}: it is {spread / bound:.2f} times as wide")


def _output(y, truth: Tensor, Wx: Tensor, BAx: Tensor, case: Case) -> None:
    right = case.alpha / case.rank
    wrong = given(scales(case.rank, case.alpha), lambda scale: Wx + scale * BAx)
    wrong |= {"base-scaled": ("the base's output is scaled as well", right * (Wx + BAx)),
              "no-base": ("the base's output is missing", right * BAx),
              "no-adapter": ("the adapter's part is missing", Wx),
              "subtracted": ("the adapter's part is taken away", Wx - right * BAx)}  # fmt: skip
    near = dict(rtol=1e-4, atol=1e-5) if case.dtype == torch.float32 else dict(rtol=1e-2, atol=5e-2)
    close(y, truth, f"{case.text}: the output", dtype=case.dtype, wrong=wrong, **near)


def _gradients(found, truths, flat: Tensor, case: Case) -> None:
    """``flat``: the base's part of the input's gradient."""
    wrong = {"adapter-detached": ("the adapter's part is missing: is its input detached?", flat),
             "base-detached": ("the base's part is missing: is its output detached?", truths[2] - flat)}  # fmt: skip
    near = dict(rtol=1e-4, atol=1e-4) if case.dtype == torch.float32 else dict(rtol=2e-2, atol=0.3)
    for name, mine, truth in zip(("lora_A", "lora_B", "the input"), found, truths):
        hints = wrong if name == "the input" else None
        close(mine, truth, f"{case.text}: the gradient of {name}", wrong=hints, **near)


def scales(rank: int, alpha: float) -> Hints:
    """What people multiply B A with instead of alpha / rank."""
    right = alpha / rank
    scales = {
        "no-scale": ("the scaling alpha / rank is forgotten", 1.0),
        "scale-alpha": ("scaled by alpha, not divided by the rank", alpha),
        "scale-product": ("scaled by alpha * rank; it is alpha / rank", alpha * rank),
        "scale-inverse": ("scaled by rank / alpha; it is alpha / rank", rank / alpha),
        "scale-root": ("scaled by alpha / sqrt(rank): that is rsLoRA", alpha / math.sqrt(rank)),
        "scale-twice": ("scaled twice", right * right),
        "scale-no-alpha": ("scaled by 1 / rank: alpha is forgotten", 1 / rank),
        "scale-whole": ("scaled by alpha // rank, which loses what is behind the point", float(alpha // rank)),
    }
    others = {id: (sentence, scale) for id, (sentence, scale) in scales.items() if not math.isclose(scale, right)}
    return {id: hint for id, hint in others.items() if hint[1]}  # with zero nothing is left to see


def peft_layer(base: nn.Linear, case: Case, A: Tensor, B: Tensor) -> Any:
    """peft's LoRA layer around a copy of ``base``, with these A and B."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=case.rank, lora_alpha=case.alpha, target_modules=["0"])
    made: Any = get_peft_model(nn.Sequential(copy.deepcopy(base)), config).base_model.get_submodule("model.0")
    with torch.no_grad():
        made.lora_A["default"].weight.copy_(A)
        made.lora_B["default"].weight.copy_(B)
    return made
