"""Judging a checkpoint that a student wrote: a block that keeps its input and runs again, beside the plain block.

    backward(Checkpoint, case)      ``Checkpoint.apply(run, x, *parameters)``: output, gradients, random numbers;
                                    of several blocks, too, one after the other
    keeps(Checkpoint)               the input, and nothing else, wherever it may be kept

Between forward and backward other random numbers are drawn, so that a block whose dropout draws anew shows.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same
from minigpt.checks.probes import functions
from minigpt.checks.probes.functions import Plain, named
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
ON_CTX = ("with one checkpoint all is right, and with several one after the other it is not: what forward leaves for "
          "backward belongs on ctx, since on the class, or outside, the next one overwrites it")  # fmt: skip


class Case(NamedTuple):
    """A block that is ``width`` wide, the share that its dropout drops, whether its input takes a gradient."""

    width: int
    dropout: float = 0.0
    trained_input: bool = True
    frozen: bool = False  # its first matrix
    rows: tuple[int, ...] = (6,)  # the input's sizes before its width
    blocks: int = 1

    @property
    def text(self) -> str:
        parts = [f"{f'{self.blocks} blocks' if self.blocks > 1 else 'a block'} {self.width} wide"]
        parts += [f"dropout {self.dropout:g}"] * bool(self.dropout)
        parts += ["an input that takes no gradient"] * (not self.trained_input)
        parts += ["a frozen matrix"] * self.frozen
        parts += [f"x of {(*self.rows, self.width)}"] * (len(self.rows) > 1)
        return ", ".join(parts)


def backward(checkpoint: Any, case: Case) -> None:
    try:
        _backward(checkpoint, case)
    except Wrong as wrong:
        if case.blocks > 1 and (wrong.id in ("differs", "missing", "not-finite") or wrong.id.startswith("raises-")):
            raise Wrong("not-on-ctx", f"{case.text}: {ON_CTX}") from None
        raise


def _backward(checkpoint: Any, case: Case) -> None:
    blocks, x, pull = _made(case)
    said = _ask(checkpoint, blocks, x.clone().requires_grad_(case.trained_input), pull)
    found = _found(said, case)
    y, truth, drawn = _truth(blocks, x, pull, case)
    if not isinstance(said["y"], Tensor):
        raise Wrong("wrong-type", f"{case.text}: forward returns no tensor")
    close(said["y"], y, f"{case.text}: the output", rtol=1e-5, atol=1e-6)
    _left_alone(said, blocks, case)
    missing = [name for name in truth if found[name] is None]
    if len(missing) == len(truth):
        raise Wrong("no-gradients", f"{case.text}: nothing gets a gradient")
    if missing:
        who = "x, so no block before this one is trained" if "x" in missing else f"{missing[0]}, so it is not trained"
        raise Wrong("no-input-gradient" if "x" in missing else "no-parameter-gradient",
                    f"{case.text}: there is no gradient of {who}")  # fmt: skip
    if extra := [name for name in found if name not in truth and found[name] is not None]:
        raise Wrong("frozen-gradient", f"{case.text}: {extra[0]} is frozen, and gets a gradient")
    wrong = _other_gradients(truth, blocks[0], x, pull, case) if case.blocks == 1 else {}
    close(found, truth, f"{case.text}: the gradient", rtol=1e-4, atol=1e-6, wrong=wrong)
    if case.frozen or not case.trained_input:
        _returned(said["returned"], [x, *blocks[0].parameters()], list(found), case)
    if not torch.equal(drawn, said["drawn"]):
        raise Wrong(
            "generator-left",
            f"{case.text}: after backward the random numbers go on from another place than without a checkpoint; set "
            "the generator's state back when the second run is done",
        )


def keeps(checkpoint: Any) -> None:
    case = Case(48, rows=(400,))
    [block], x, pull = _made(case)
    said = functions.checkpoint_keeps(checkpoint, block, x.clone().requires_grad_(), pull)
    if not said["function"] or not said["graph"]:
        raise Wrong("no-graph", f"{case.text}: the output has no graph, so nothing before it can be trained")
    if said["kept"] > x.nbytes + STATE:
        raise Wrong("keeps-more", f"{case.text}: {said['kept']:,} bytes are saved for backward; the input, which is "
                                  f"all that is to be kept, has {x.nbytes:,}")  # fmt: skip
    if said["kept"] < x.nbytes:
        raise Wrong("not-saved", f"{case.text}: {said['kept']:,} bytes are saved for backward, and the input has "
                                 f"{x.nbytes:,}: hand it to ctx.save_for_backward, which hooks and the meter see, "
                                 "and which backward frees")  # fmt: skip
    if said["copied"] > STATE:
        raise Wrong("copies-input", f"{case.text}: a copy of x is saved, while x itself is there as well; save x, and "
                                    "detach it in backward, which copies nothing")  # fmt: skip
    if said["beside"] > STATE:
        raise Wrong("keeps-beside", f"{case.text}: beside x, which is saved, {said['beside']:,} bytes of what the "
                                    "block makes are still there after forward, on ctx or elsewhere")  # fmt: skip
    if said["aside"] > x.nbytes / 4:
        raise Wrong("keeps-aside", f"{case.text}: beside x, which is saved, {said['aside']:,} bytes are kept outside "
                                   "of tensors, as numpy's arrays or lists")  # fmt: skip
    if said["after"] > STATE:
        raise Wrong("leaks", f"{case.text}: after backward, when all gradients are handed over, {said['after']:,} "
                             "bytes of the second run are still there; leave nothing of it on the class or in a "
                             "list")  # fmt: skip


def _found(said: dict, case: Case) -> dict[str, Tensor | None]:
    """Gradients by name, in the order in which backward returns them."""
    return ({"x": said["x"]} if case.trained_input else {}) | said["gradients"]


def _truth(blocks: list[Plain], x: Tensor, pull: Tensor, case: Case) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """(output, gradients by name, five random numbers after backward) of plain blocks."""
    x.requires_grad_(case.trained_input)
    torch.manual_seed(1)
    y = x
    for block in blocks:
        y = block(y)
        torch.rand(5)
    wanted: dict[str, Tensor] = {"x": x} if case.trained_input else {}
    wanted |= {name: p for name, p in named(blocks).items() if p.requires_grad}
    truth = dict(zip(wanted, torch.autograd.grad(y, list(wanted.values()), pull)))
    return y, truth, torch.rand(5)


def _ask(checkpoint: Any, blocks: list[Plain], x: Tensor, pull: Tensor) -> dict:
    try:
        said = functions.checkpointed(checkpoint, copy.deepcopy(blocks), x, pull)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__
    if not said["function"]:
        raise Wrong("wrong-type", "the answer is no class that is a torch.autograd.Function")
    return said


def _left_alone(said: dict, blocks: list[Plain], case: Case) -> None:
    """What a checkpoint only reads."""
    parameters = named(blocks)
    if not said["kept_x"] or not same(said["weights"], {name: p.detach() for name, p in parameters.items()}):
        what = "the block's weights are" if said["kept_x"] else "x is"
        raise Wrong("changes-arguments", f"{case.text}: {what} changed; run reads them, and so does backward")
    if not said["training"]:
        raise Wrong("other-mode", f"{case.text}: the block is left in evaluation mode, so its dropout is off from then "
                                  "on; it was in training mode before")  # fmt: skip
    if said["frozen"] != [name for name, p in parameters.items() if not p.requires_grad]:
        raise Wrong("left-frozen", f"{case.text}: parameters take a gradient that took none, or none any more")


def _returned(returned: list[bool], tensors: list[Tensor], names: list[str], case: Case) -> None:
    """One gradient for each argument that needs one, and none for the others."""
    for name, tensor, is_there in zip(["x"] * (len(tensors) > len(names)) + names, tensors, returned[1:]):
        if tensor.requires_grad and not is_there:
            raise Wrong("adds-itself", f"{case.text}: backward returns None for {name}, and fills its .grad past "
                                       "autograd, as y.backward() does; torch.autograd.grad hands you the gradients: "
                                       "return them")  # fmt: skip
        if not tensor.requires_grad and is_there:
            raise Wrong("needless-gradient", f"{case.text}: backward returns a gradient for {name}, which needs none: "
                                             "return None, and leave it out of what is asked for")  # fmt: skip


def _made(case: Case) -> tuple[list[Plain], Tensor, Tensor]:
    """Blocks, their input (*rows, width), laid out the other way round, and the gradient that backward begins with."""
    torch.manual_seed(case.width)
    blocks = [Plain(case.width, case.dropout, case.frozen) for _ in range(case.blocks)]
    x = torch.randn(*case.rows, case.width)
    return blocks, x if len(case.rows) == 1 else x.mT.contiguous().mT, torch.randn(*case.rows, case.width)


def _other_gradients(truth: dict[str, Tensor], block: Plain, x: Tensor, pull: Tensor, case: Case) -> dict:
    """Other draws, other gradients that backward begins with: what each would give."""
    wanted = [x] * ("x" in truth) + [p for p in block.parameters() if p.requires_grad]

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
    return wrong
