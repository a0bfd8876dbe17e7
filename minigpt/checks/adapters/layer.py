"""Judging a LoRA layer that a student wrote; the truth is peft's layer on the same weights.

    starts(LoRALinear, case)          the parts, and what they are before training
    outputs(LoRALinear, case)         the output and the gradients, against peft's

B is zero at the start, where every mistake in the scale hides, so outputs and gradients are judged with other values,
and then once more with others again, which on a 16-bit base nearly cancel: in 16 bits nothing is right of what is left.
A layer on the meta device shows where A and B are made, and a count of living tensors what it keeps.

The sizes should be chosen so that nothing else hides: alpha apart from the rank, no square matrix. A case with a bias
has an input and a weight that are not contiguous.

Left out: dropout, rsLoRA, DoRA, 4-bit bases.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.truths import fill, peft_layer, scales, turned, values
from minigpt.checks.calling import explained
from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close, same
from minigpt.checks.naming import given
from minigpt.checks.probes import layers, unless_wrong
from minigpt.checks.verdict import Wrong
from minigpt.lora import LoRALinear

__all__ = ["fill", "peft_layer", "scales", "turned", "values"]  # for who judges layers, too
knows(__name__, "minigpt.lora.injection", "minigpt.lora.layer", LoRALinear.forward)
WEIGHTS = "A weight is (out, in): F.linear(x, weight) is x @ weight.T, and the update of W is B A"
CAST = "Promise 1: forward casts x to float32 for A and B, and the sum back to the type of the base's output"
FINE = 256.0  # what bfloat16, with its 8 bits, cannot tell from 256 and a bit
TECHNICAL = {  # by the id of the verdict: what an error of forward says, and what it means here
    "shapes-do-not-fit": {"shapes cannot be multiplied": WEIGHTS, "must match the size": WEIGHTS},
    "no-cast": {"have the same dtype": CAST},
}


class Case(NamedTuple):
    """A linear layer, and the adapter that it gets."""

    n_in: int
    n_out: int
    rank: int
    alpha: float
    bias: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def text(self) -> str:
        bias = " with a bias" * self.bias
        return (f"a {str(self.dtype)[6:]} base {self.n_in} -> {self.n_out}{bias}, rank {self.rank}, "
                f"alpha {self.alpha:g}")  # fmt: skip


def starts(cls: Callable, case: Case) -> None:
    """``cls(base, rank, alpha)``: its parts are as asked for, and its output is the base's."""
    base, x = _inputs(case)
    with _technical():
        said = layers.start(cls, copy.deepcopy(base), case.rank, case.alpha, x)
    _parts(said, base, case)
    _on_its_device(cls, case)
    _zero(said["lora_A"], said["lora_B"], case.text)
    close(said["y"], base(x), f"{case.text}: the output at the start", rtol=1e-5, atol=1e-6)
    _draws([layers.start(cls, nn.Linear(400, 60), 50, 100)["lora_A"].detach() for _ in range(2)])


def outputs(cls: Callable, case: Case) -> None:
    """The output and all gradients, with A and B that are not zero."""
    base, x = _inputs(case)
    A, B = (values(shape) for shape in ((case.rank, case.n_in), (case.n_out, case.rank)))
    pull = torch.randn(*x.shape[:-1], case.n_out)  # backward starts from it
    if case.bias and case.dtype == torch.float32:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    again = _other_values(case)
    one = torch.randn(1, case.n_in, dtype=case.dtype)
    asked = asked_first(
        [partial(layers.run, cls, copy.deepcopy(base), case.rank, case.alpha, x, A, B, pull, again),
         partial(layers.held, cls, copy.deepcopy(base), case.rank, case.alpha, one)]
    )  # fmt: skip
    said = next(asked)
    _parts(said, base, case)
    y = _given(said, "y")
    peft, theirs = peft_layer(base, case, A, B), x.clone().requires_grad_()
    truth = peft(theirs)
    _output(y, truth, base(x).detach().float(), x.float() @ A.T @ B.T, case)
    if not same(_given(said, "x"), x):
        raise Wrong("changes-arguments", f"{case.text}: forward changes its input")
    if not y.requires_grad:
        raise Wrong("no-graph", f"{case.text}: the output has no graph, so nothing can be trained")
    gradients = _given(said, "gradients")
    (truth.float() * pull).sum().backward()
    lora_A, lora_B = (part["default"].weight.grad for part in (peft.lora_A, peft.lora_B))
    _gradients(gradients, (lora_A, lora_B, theirs.grad), pull.to(case.dtype) @ base.weight.detach(), case)
    if _given(said, "base_gradient") is not None:
        raise Wrong("base-gradient", f"{case.text}: the base's weight has a gradient; it is frozen")
    added = {"adapter-although-merged": (
        "the adapter is added all the same; forward must ask self.merged", y.detach())}  # fmt: skip
    merged = _given(said, "merged")
    close(merged, base(x), f"{case.text}: the output where merged is True", rtol=1e-5, atol=1e-6, wrong=added)
    _again(_given(said, "again"), again, base, case, A, B)
    held = next(asked)
    if held >= base.weight.numel():  # bytes: even with one for each number
        kept = f"after a step {held:,} bytes are there beside base, A, B and their gradients"
        raise Wrong(
            "kept-on-the-layer", f"{case.text}: {kept}: does the layer keep W or B A? LoRA is to save these bytes"
        )


# ---------------------------------------------------------------- asking a layer


def _inputs(case: Case) -> tuple[nn.Linear, Tensor]:
    """A base, and x (2, 5, n_in)."""
    torch.manual_seed(case.n_in)
    base = nn.Linear(case.n_in, case.n_out, bias=case.bias, dtype=case.dtype)
    if case.dtype != torch.float32:
        base.weight.data[:, 1] = base.weight.data[:, 0]  # see _other_values
    return turned(base) if case.bias else base, torch.randn(2, 5, case.n_in, dtype=case.dtype)


def _other_values(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Another x, A and B. On a 16-bit base the first two inputs nearly cancel, and so do the first two ranks."""
    x, A, B = torch.randn(4, case.n_in), values((case.rank, case.n_in), 1), values((case.n_out, case.rank), 1)
    if case.dtype != torch.float32:
        A[1] = A[0] + A[1] / FINE
        A[:, 1] = A[:, 0] + A[:, 1] / FINE
        B[:, 0] *= FINE
        B[:, 1] = -B[:, 0]
        x[:, 0] *= FINE
        x[:, 1] = -x[:, 0]
    return x.to(case.dtype), A, B


def _given(said: dict, name: str):
    """What a probe says of ``name``. Raises the Wrong that stands in its place, with a word about shapes and types."""
    with _technical():
        return unless_wrong(said.get(name))


@contextlib.contextmanager
def _technical() -> Iterator[None]:
    try:
        yield
    except Wrong as verdict:
        for id, hints in TECHNICAL.items():
            verdict = explained(verdict, hints, id)
        raise verdict from None


# ---------------------------------------------------------------- judging it


def own(said: dict, what: str) -> None:
    """It is a module, written here, with a base and an A and a B. ``said``: its ``layers.parts``."""
    if said["module"] is not True:
        raise Wrong("no-module", f"{what}: LoRALinear is not an nn.Module, so its parameters are not found")
    if foreign := [name for name in said["kinds"] if name.startswith(("minigpt.", "peft."))]:
        raise Wrong("not-your-own", f"{what}: that is the layer of {min(foreign)}; write your own")
    for name in ("lora_A", "lora_B"):
        if not isinstance(said[name], Tensor):
            raise Wrong("no-parameter", f"{what}: layer.{name} is {said[name]}; an nn.Parameter is asked for")
    if said["base"]:
        raise Wrong("no-base-layer", f"{what}: layer.base is {said['base']}; the layer that was given is asked for")


def shaped(said: dict, case: Case) -> None:
    """Its A and B are float32 parameters of the right shapes. ``said``: its ``layers.parts``."""
    what = case.text
    own(said, what)
    shapes = {"lora_A": (case.rank, case.n_in), "lora_B": (case.n_out, case.rank)}
    sizes = {name: tuple(said[name].shape) for name in shapes}
    swapped = sizes["lora_A"] in (shapes["lora_B"], shapes["lora_B"][::-1])
    for name, shape in shapes.items():
        if sizes[name] != shape:
            id, turned = "wrong-shape", ""
            if swapped:
                id, turned = "swapped", "; A reads the input (in), B writes the output (out): are they swapped?"
            if sizes[name] == shape[::-1]:
                id, turned = "transposed", "; it is transposed"
            raise Wrong(id, f"{what}: {name} has the shape {sizes[name]}, not {shape}{turned}")
        part = said[name]
        if not isinstance(part, nn.Parameter):
            raise Wrong(
                "no-parameter", f"{what}: {name} is a plain tensor, which no optimizer finds; make it an nn.Parameter"
            )
        if part.dtype != torch.float32:
            raise Wrong("wrong-dtype", f"{what}: {name} is {part.dtype}; adapters are float32 on any base")


def _parts(said: dict, base: nn.Linear, case: Case) -> None:
    what = case.text
    shaped(said, case)
    if said["base_given"] is not True:
        raise Wrong("base-copied", f"{what}: layer.base is not the layer that was given; a copy costs its memory again")
    for name, parameter in base.named_parameters():
        if not same(said["base_parameters"].get(name), parameter):
            raise Wrong("base-changed", f"{what}: base.{name} is changed; only the adapter is new")
    frozen(said["trained"], {"lora_A", "lora_B"}, what)


def frozen(trained: Iterable[str], adapters: set[str], what: str) -> None:
    """Exactly the parameters called ``adapters`` take a gradient."""
    trained = set(trained)
    if extra := sorted(trained - adapters):
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        verb = "still take" if more else "still takes"
        raise Wrong("not-frozen", f"{what}: {extra[0]}{more} {verb} a gradient; everything but the adapters is frozen")
    if missing := sorted(adapters - trained):
        raise Wrong(
            "adapters-frozen", f"{what}: {missing[0]} takes no gradient; freeze first, and then make the adapters"
        )


def _on_its_device(cls: Callable, case: Case) -> None:
    base = nn.Linear(case.n_in, case.n_out, bias=case.bias, dtype=case.dtype, device="meta")
    said = layers.start(cls, base, case.rank, case.alpha)
    for name in ("lora_A", "lora_B"):
        if said[name].device != base.weight.device:
            where = f"with a base on the device meta, {name} is on {said[name].device}"
            raise Wrong("other-device", f"{case.text}: {where}; make it on base.weight.device")


def _again(y, again: tuple[Tensor, Tensor, Tensor], base: nn.Linear, case: Case, A: Tensor, B: Tensor) -> None:
    """The output of the same layer for another x, A and B."""
    x, *AB = again
    stale = base(x) + case.alpha / case.rank * (x.float() @ A.T @ B.T).to(case.dtype)
    wrong = {"stale-update": ("it is that of the A and B before: forward must look at them in each call", stale)}
    near = dict(rtol=1e-4, atol=1e-5) if case.dtype == torch.float32 else dict(rtol=1e-2, atol=5e-2)
    what = f"{case.text}: the output with another A, B and input"
    try:
        close(y, peft_layer(base, case, *AB)(x), what, dtype=case.dtype, wrong=wrong, **near)
    except Wrong as verdict:
        if verdict.id != "differs" or case.dtype == torch.float32:
            raise
        raise Wrong("low-precision", f"{what}: the adapter's part has lost digits: cast x to float32, A and B are it "
                    "already, and cast only the sum back") from None  # fmt: skip


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
