"""Judging a checkpoint that a student wrote: a block that keeps its input and runs again, beside the plain block.

    backward(Checkpoint, case)      ``Checkpoint.apply(run, x, *parameters)``: output, gradients, random numbers
    keeps(Checkpoint)               by the meter: the input, and nothing else

Between forward and backward other random numbers are drawn, so that a block whose dropout draws anew shows.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minigpt.checks.activations.asking import listening, metered
from minigpt.checks.calling import explained
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import close
from minigpt.checks.verdict import Wrong

knows(__name__)
STATE = 8192  # bytes that may be kept beside the input: a CPU's state of random numbers is 5,056
HINTS = {
    "returned an incorrect number of gradients": "backward returns one for each argument of forward: None for run, "
    "x's, then each parameter's",
    "does not require grad": "In backward nothing is recorded unless it says `with torch.enable_grad():`",
    "does not have a grad_fn": "In backward nothing is recorded unless it says `with torch.enable_grad():`",
    "appears to not have been used in the graph": "What is differentiated must be made from the very x that is asked "
    "about: detach it first, then run",
    "second time": "What forward records inside is gone or stale; run again in backward",
}


class Case(NamedTuple):
    """A block that is ``width`` wide, the share that its dropout drops, whether its input takes a gradient."""

    width: int
    dropout: float = 0.0
    trained_input: bool = True
    frozen: bool = False  # its first matrix

    @property
    def text(self) -> str:
        parts = [f"a block {self.width} wide"]
        parts += [f"dropout {self.dropout:g}"] * bool(self.dropout)
        parts += ["an input that takes no gradient"] * (not self.trained_input)
        parts += ["a frozen matrix"] * self.frozen
        return ", ".join(parts)


class Plain(nn.Module):
    """A small block with a residual stream. In and out: (n, width)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.width
        self.norm, self.drop = nn.LayerNorm(width, bias=False), nn.Dropout(case.dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.up.weight.requires_grad_(not case.frozen)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(nn.functional.gelu(self.up(self.norm(x)))))


def backward(checkpoint: Any, case: Case) -> None:
    block, x, pull = _made(case)
    names, parameters = zip(*block.named_parameters())
    mine, asked = copy.deepcopy(block), x.clone().requires_grad_(case.trained_input)
    (y, drawn), returned = _ask(checkpoint, mine, asked, pull)
    found = {"x": asked.grad} if case.trained_input else {}
    found |= {name: parameter.grad for name, parameter in mine.named_parameters()}

    x.requires_grad_(case.trained_input)
    torch.manual_seed(1)
    plain = block(x)
    torch.rand(5)
    wanted = [tensor for tensor in (x, *parameters) if tensor.requires_grad]
    truth = dict(zip(["x"] * case.trained_input + [n for n, p in zip(names, parameters) if p.requires_grad],
                     torch.autograd.grad(plain, wanted, pull)))  # fmt: skip
    after = torch.rand(5)
    close(y, plain, f"{case.text}: the output", rtol=1e-5, atol=1e-6)
    missing = [name for name in truth if found[name] is None]
    if len(missing) == len(truth):
        raise Wrong("no-gradients", f"{case.text}: nothing gets a gradient")
    if missing:
        who = "x, so no block before this one is trained" if "x" in missing else f"{missing[0]}, so it is not trained"
        raise Wrong("no-input-gradient" if "x" in missing else "no-parameter-gradient",
                    f"{case.text}: there is no gradient of {who}")  # fmt: skip
    if extra := [name for name in found if name not in truth and found[name] is not None]:
        raise Wrong("frozen-gradient", f"{case.text}: {extra[0]} is frozen, and gets a gradient")
    _gradients(found, truth, block, x, pull, case)
    if case.frozen or not case.trained_input:
        _returned(returned, ["x", *names], [asked, *mine.parameters()], case)
    if not torch.equal(after, drawn):
        raise Wrong(
            "generator-left",
            f"{case.text}: after backward the random numbers go on from another place than without a checkpoint; set "
            "the generator's state back when the second run is done",
        )


def keeps(checkpoint: Any) -> None:
    case = Case(48)
    block, x = Plain(case), torch.randn(400, case.width).requires_grad_()
    reading = metered(partial(checkpoint.apply, block, x, *block.parameters()), block, (x,))
    y = reading.given
    if not isinstance(y, Tensor) or not y.requires_grad:
        raise Wrong("no-graph", f"{case.text}: the output has no graph, so nothing before it can be trained")
    if reading.kept > x.nbytes + STATE:
        raise Wrong("keeps-more", f"{case.text}: {reading.kept:,} bytes are saved for backward; the input, which is "
                                  f"all that is to be kept, has {x.nbytes:,}")  # fmt: skip
    if reading.kept < x.nbytes:
        raise Wrong("not-saved", f"{case.text}: {reading.kept:,} bytes are saved for backward, and the input has "
                                 f"{x.nbytes:,}: hand it to ctx.save_for_backward, which hooks and the meter see, "
                                 "and which backward frees")  # fmt: skip


def _ask(checkpoint: Any, block: nn.Module, x: Tensor, pull: Tensor) -> tuple[tuple[Tensor, Tensor], tuple]:
    """((output, five random numbers after backward), what backward returned)."""
    returned: list[tuple] = []

    def run():
        torch.manual_seed(1)
        y = twin.apply(block, x, *block.parameters())
        torch.rand(5)
        y.backward(pull)
        return y.detach(), torch.rand(5)

    if not isinstance(checkpoint, type) or not issubclass(checkpoint, torch.autograd.Function):
        raise Wrong("wrong-type", "the answer is no class that is a torch.autograd.Function")
    twin, run.__name__ = listening(checkpoint, returned.append), checkpoint.__name__
    try:
        return by_hand(run, building=True, twice=False, untouched=False), returned[-1] if returned else ()
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__


def _returned(returned: tuple, names: list[str], tensors: list[Tensor], case: Case) -> None:
    """One gradient for each argument that needs one, and none for the others."""
    for name, tensor, gradient in zip(names, tensors, returned[1:]):
        if tensor.requires_grad and gradient is None:
            raise Wrong("adds-itself", f"{case.text}: backward returns None for {name}, and fills its .grad past "
                                       "autograd, as y.backward() does; torch.autograd.grad hands you the gradients: "
                                       "return them")  # fmt: skip
        if not tensor.requires_grad and gradient is not None:
            raise Wrong("needless-gradient", f"{case.text}: backward returns a gradient for {name}, which needs none: "
                                             "return None, and leave it out of what is asked for")  # fmt: skip


def _made(case: Case) -> tuple[Plain, Tensor, Tensor]:
    """A block, its input (6, width), and the gradient that backward begins with."""
    torch.manual_seed(case.width)
    return Plain(case), torch.randn(6, case.width), torch.randn(6, case.width)


def _gradients(found: dict, truth: dict[str, Tensor], block: Plain, x: Tensor, pull: Tensor, case: Case) -> None:
    """Other draws, other gradients that backward begins with: what each would give."""
    wanted = [x] * ("x" in truth) + [p for name, p in block.named_parameters() if name in truth]

    def other(pull: Tensor, drawn: int | None = None, train: bool = True) -> dict[str, Tensor]:
        """Backward's own run begins as forward did, or where forward ended and so many more numbers were drawn."""
        torch.manual_seed(1)
        if drawn is not None:
            block(x)
            torch.rand(drawn)
        y = block.train(train)(x)
        block.train()
        return dict(zip(truth, torch.autograd.grad(y, wanted, pull)))

    wrong = {"ones": ("backward begins with ones, or with a sum; it begins with the gradient that it is given",
                      other(torch.ones_like(pull)))}  # fmt: skip
    if case.dropout:
        draws = "backward draws another dropout mask than forward did; keep the generator's state, and set it back"
        wrong |= {
            "other-draw": (draws, other(pull, drawn=5)),
            "late-state": ("the generator's state is taken after the first run; take it before", other(pull, drawn=0)),
            "no-dropout": ("backward runs the block without its dropout", other(pull, train=False)),
        }
    close(found, truth, f"{case.text}: the gradient", rtol=1e-4, atol=1e-6, wrong=wrong)
