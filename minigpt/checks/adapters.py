"""Judging a LoRA layer that a student wrote; the truth is peft's layer on the same weights.

    layer(LoRALinear, n_in, n_out, rank, alpha)        the parts, the start, the output, the gradients
    merging(LoRALinear, merge, unmerge, ...)           W + s B A, once; then W again

B is zero at the start, where every mistake in the scale hides, so outputs and gradients are judged with other values.
The sizes should be chosen so that nothing else hides: alpha apart from the rank, no square matrix.

Left out: dropout, rsLoRA, DoRA, 4-bit bases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.checks.calling import call
from minigpt.checks.comparing import close, same, show


def layer(
    cls: Callable, n_in: int, n_out: int, rank: int, alpha: float, *, bias=False, dtype=torch.float32, seed: int = 0
) -> None:
    """``cls(base, rank, alpha)`` on a fresh ``nn.Linear(n_in, n_out)`` in ``dtype``."""
    what = f"a {str(dtype)[6:]} base {n_in} -> {n_out}{' with a bias' * bias}, rank {rank}, alpha {alpha:g}"
    torch.manual_seed(seed)
    base = nn.Linear(n_in, n_out, bias=bias, dtype=dtype)
    start, x = copy.deepcopy(base), torch.randn(2, 5, n_in, dtype=dtype)
    made = call(cls, base, rank, alpha, twice=False, untouched=False)
    _parts(made, base, start, rank, what)
    _start(cls, made, start, x, what)
    fill(made)
    _outputs(made, start, x, rank, alpha, what)


def merging(
    cls: Callable, merge: Callable, unmerge: Callable, n_in: int, n_out: int, rank: int, alpha: float, *, bias=False,
    seed: int = 0,
) -> None:  # fmt: skip
    """``merge(layer)`` and ``unmerge(layer)`` on a layer whose adapter is not zero."""
    what = f"a base {n_in} -> {n_out}, rank {rank}, alpha {alpha:g}"
    torch.manual_seed(seed)
    base = nn.Linear(n_in, n_out, bias=bias)
    W, x = base.weight.detach().clone(), torch.randn(3, n_in)
    made = call(cls, base, rank, alpha, twice=False, untouched=False)
    A, B = fill(made)
    y = made(x).detach()
    peft = _peft(base, rank, alpha, A, B)
    peft.merge()
    truth, BA = peft.base_layer.weight, B @ A
    wrong = {m: W + scale * BA for m, scale in scales(rank, alpha).items()}
    wrong |= {"the base's weight is lost: W' = W + s B A": alpha / rank * BA, "it is still W: nothing is merged": W,
              "the adapter is taken away from W, not added": W - alpha / rank * BA,
              "W is scaled as well": alpha / rank * (W + BA),
              "the adapter is in it twice; refuse before you write": W + 2 * alpha / rank * BA}  # fmt: skip
    loose = dict(rtol=1e-5, atol=1e-5)

    def check_merged(which: str) -> None:
        close(made.base.weight, truth, f"{what}: the base's weight {which}", wrong=wrong, **loose)
        if made.base.weight.requires_grad:
            raise AssertionError(f"{what}: {which}, base.weight takes a gradient; work under torch.no_grad()")
        if made.merged is not True:
            raise AssertionError(f"{what}: {which}, layer.merged is {show(made.merged)}; forward asks it: True")
        if not same([made.lora_A, made.lora_B], [A, B]):
            raise AssertionError(f"{what}: {which}, the adapter is changed; unmerge needs it as it was")
        close(made(x), y, f"{what}: the output {which}", **loose)

    def check_apart(which: str, weight: Tensor) -> None:
        wrong = {"it is still merged: nothing is taken away": weight + alpha / rank * BA,
                 "the adapter is added once more, not taken away": weight + 2 * alpha / rank * BA}  # fmt: skip
        wrong |= {f"unmerge: {m}": weight + (alpha / rank - scale) * BA for m, scale in scales(rank, alpha).items()}
        if not same(weight, W):
            wrong["an old copy of W comes back; what was added since is lost, and a copy costs what LoRA saves"] = W
        close(made.base.weight, weight, f"{what}: the base's weight {which}", wrong=wrong, **loose)
        if made.merged is not False:
            raise AssertionError(f"{what}: {which}, layer.merged is {show(made.merged)}; forward asks it: False")

    quiet = dict(twice=False, untouched=False, none_ok=True)
    try:
        call(merge, made, **quiet)
    except AssertionError as error:
        if "leaf" in str(error):
            raise AssertionError(f"{error}: autograd is watching; work under torch.no_grad()") from error
        raise
    check_merged("after merge")
    refused(merge, made, why=f"{what}: merging twice adds the adapter twice")
    check_merged("after a second merge, which is refused")
    call(unmerge, made, **quiet)
    check_apart("after unmerge", W)
    close(made(x), y, f"{what}: the output after unmerge", **loose)
    refused(unmerge, made, why=f"{what}: unmerging what is not merged takes the adapter away from W")
    check_apart("after a second unmerge, which is refused", W)
    call(merge, made, **quiet)
    made.base.weight.data += 0.5
    call(unmerge, made, **quiet)
    check_apart("after merge, a change of the merged weight by 0.5, and unmerge", W + 0.5)


# ---------------------------------------------------------------- one layer


def own(made, what: str) -> None:
    """It is a module, and written here."""
    if not isinstance(made, nn.Module):
        raise AssertionError(f"{what}: LoRALinear is not an nn.Module, so its parameters are not found")
    kinds = {kind.__module__ for module in made.modules() for kind in type(module).__mro__}
    if foreign := [name for name in kinds if name.startswith(("minigpt.", "peft."))]:
        raise AssertionError(f"{what}: that is the layer of {min(foreign)}; write your own")


def _parts(made, base: nn.Linear, start: nn.Linear, rank: int, what: str) -> None:
    own(made, what)
    shapes = {"lora_A": (rank, base.in_features), "lora_B": (base.out_features, rank)}
    found = {name: getattr(made, name, None) for name in shapes}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise AssertionError(f"{what}: {name} is {type(value).__name__}; an nn.Parameter is asked for")
    sizes = {name: tuple(value.shape) for name, value in found.items()}
    swapped = sizes["lora_A"] in (shapes["lora_B"], shapes["lora_B"][::-1])
    for name, shape in shapes.items():
        if sizes[name] != shape:
            turned = "; A reads the input (in), B writes the output (out): are they swapped?" if swapped else ""
            turned = "; it is transposed" if sizes[name] == shape[::-1] else turned
            raise AssertionError(f"{what}: {name} has the shape {sizes[name]}, not {shape}{turned}")
        if not isinstance(found[name], nn.Parameter):
            raise AssertionError(f"{what}: {name} is a plain tensor, which no optimizer finds; make it an nn.Parameter")
        if found[name].dtype != torch.float32:
            raise AssertionError(f"{what}: {name} is {found[name].dtype}; adapters are float32 on any base")
    if getattr(made, "base", None) is not base:
        raise AssertionError(f"{what}: layer.base is not the layer that was given; a copy costs its memory again")
    for name, parameter in start.named_parameters():
        if not same(getattr(base, name).detach(), parameter.detach()):
            raise AssertionError(f"{what}: base.{name} is changed; only the adapter is new")
    frozen(made, {"lora_A", "lora_B"}, what)


def frozen(module: nn.Module, adapters: set[str], what: str) -> None:
    """Exactly the parameters called ``adapters`` take a gradient."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if extra := sorted(trained - adapters):
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        verb = "still take" if more else "still takes"
        raise AssertionError(f"{what}: {extra[0]}{more} {verb} a gradient; everything but the adapters is frozen")
    if missing := sorted(adapters - trained):
        raise AssertionError(f"{what}: {missing[0]} takes no gradient; freeze first, and then make the adapters")


def _start(cls: Callable, made, start: nn.Linear, x: Tensor, what: str) -> None:
    """B is zeros, A uniform in +-1/sqrt(in), new in each layer, and the output is the base's."""
    A, B = made.lora_A.detach(), made.lora_B.detach()
    zero = [not tensor.any().item() for tensor in (A, B)]
    if zero == [True, False]:
        raise AssertionError(f"{what}: A starts at zeros and B at random; it is A that is random, and B zeros")
    if zero == [True, True]:
        raise AssertionError(f"{what}: A and B are both zeros at the start: then neither ever gets a gradient")
    if zero == [False, False]:
        raise AssertionError(f"{what}: B is not zeros at the start, so training does not start from the base model")
    close(_forward(made, x), start(x), f"{what}: the output at the start", rtol=1e-5, atol=1e-6)
    wide, rank = nn.Linear(400, 60), 50
    draws = [call(cls, wide, rank, 100.0, twice=False, untouched=False).lora_A.detach() for _ in range(2)]
    if same(*draws):
        raise AssertionError(f"{what}: two layers start with the same A; it must be drawn anew")
    bound = 1 / math.sqrt(400)
    largest, spread = draws[0].abs().max().item(), draws[0].std().item() * math.sqrt(3)  # both are the bound if uniform
    if 0.99 * bound < largest <= 1.0001 * bound and 0.97 < spread / bound < 1.03:
        return
    if largest > 1.3 * spread:
        hint = "it is drawn from a normal distribution"
    elif abs(spread / bound - math.sqrt(6)) < 0.1:
        hint = "sqrt(6) times too wide: kaiming_uniform_ without a=math.sqrt(5)"
    elif abs(spread * math.sqrt(rank) - 1) < 0.05:
        hint = "the bound is 1/sqrt(rank): A is (rank, in), and its fan is in"
    else:
        hint = f"{spread / bound:.2f} times as wide"
    raise AssertionError(f"{what}: A does not start uniform in +-1/sqrt(in): {hint}")


def _outputs(made, start: nn.Linear, x: Tensor, rank: int, alpha: float, what: str) -> None:
    """The output and all gradients, against peft's layer with the same A and B."""
    A, B = made.lora_A.detach().clone(), made.lora_B.detach().clone()
    peft = _peft(start, rank, alpha, A, B)
    low = x.dtype != torch.float32
    near = dict(rtol=1e-2, atol=5e-2) if low else dict(rtol=1e-4, atol=1e-5)
    Wx, BAx = start(x).detach().float(), x.float() @ A.T @ B.T
    wrong = {mistake: Wx + scale * BAx for mistake, scale in scales(rank, alpha).items()}
    wrong |= {"the base's output is scaled as well": alpha / rank * (Wx + BAx),
              "the base's output is missing": alpha / rank * BAx,
              "the adapter's part is missing": Wx,
              "the adapter's part is taken away": Wx - alpha / rank * BAx}  # fmt: skip
    mine, given = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, truth = _forward(made, mine), peft(given)
    close(y, truth, f"{what}: the output", dtype=x.dtype, wrong=wrong, **near)
    if not same(mine.detach(), x):
        raise AssertionError(f"{what}: forward changes its input")
    if not y.requires_grad:
        raise AssertionError(f"{what}: the output has no graph, so nothing can be trained")
    pull = torch.randn(y.shape, dtype=torch.float32)  # what backward starts from
    (y.float() * pull).sum().backward()
    (truth.float() * pull).sum().backward()
    flat = given.grad - pull.to(x.dtype) @ start.weight.detach()  # the adapter's part
    hints = {"the adapter's part is missing: is its input detached?": given.grad - flat,
             "the base's part is missing: is its output detached?": flat}  # fmt: skip
    near = dict(rtol=2e-2, atol=0.3) if low else dict(rtol=1e-4, atol=1e-4)
    close(made.lora_A.grad, peft.lora_A["default"].weight.grad, f"{what}: the gradient of lora_A", **near)
    close(made.lora_B.grad, peft.lora_B["default"].weight.grad, f"{what}: the gradient of lora_B", **near)
    close(mine.grad, given.grad, f"{what}: the gradient of the input", wrong=hints, **near)
    if made.base.weight.grad is not None:
        raise AssertionError(f"{what}: the base's weight has a gradient; it is frozen")
    made.merged = True
    wrong = {"the adapter is added all the same; forward must ask self.merged": y.detach()}
    close(_forward(made, x), start(x), f"{what}: the output where merged is True", rtol=1e-5, atol=1e-6, wrong=wrong)
    made.merged = False


def _forward(made, x: Tensor) -> Tensor:
    """made(x), called twice; with a word about shapes where they do not fit."""

    def forward(x):
        return made(x)

    try:
        return call(forward, x, untouched=False)
    except AssertionError as error:
        if "shapes cannot be multiplied" in str(error) or "must match the size" in str(error):
            raise AssertionError(f"{error}. A weight is (out, in): F.linear(x, weight) is x @ weight.T, and the update "
                                 "of W is B A, (out, rank) times (rank, in)") from error  # fmt: skip
        raise


def scales(rank: int, alpha: float) -> dict[str, float]:
    """What people multiply B A with instead of alpha / rank."""
    right = alpha / rank
    scales = {
        "the scaling alpha / rank is forgotten": 1.0, "scaled by alpha, not divided by the rank": alpha,
        "scaled by alpha * rank; it is alpha / rank": alpha * rank,
        "scaled by rank / alpha; it is alpha / rank": rank / alpha,
        "scaled by alpha / sqrt(rank): that is rsLoRA": alpha / math.sqrt(rank),
        "scaled twice": right * right, "scaled by 1 / rank: alpha is forgotten": 1 / rank,
    }  # fmt: skip
    return {mistake: scale for mistake, scale in scales.items() if not math.isclose(scale, right)}


def fill(made, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Values for A and B that are not zero; returns copies of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (made.lora_A, made.lora_B):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1]))
    return made.lora_A.detach().clone(), made.lora_B.detach().clone()


def _peft(base: nn.Linear, rank: int, alpha: float, A: Tensor, B: Tensor) -> nn.Module:
    """peft's LoRA layer around a copy of ``base``, with these A and B."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["0"])
    made = get_peft_model(nn.Sequential(copy.deepcopy(base)), config).base_model.model[0]
    with torch.no_grad():
        made.lora_A["default"].weight.copy_(A)
        made.lora_B["default"].weight.copy_(B)
    return made


def refused(function: Callable, *args, why: str) -> None:
    """It must raise ValueError."""
    try:
        call(function, *args, twice=False, untouched=False, none_ok=True)
    except AssertionError as error:
        if isinstance(error.__cause__, ValueError):
            return
        raise
    raise AssertionError(f"{why}; a ValueError is asked for, and nothing is raised")
