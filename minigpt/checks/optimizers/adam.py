"""Judging a step of AdamW that a student wrote: the truth is torch.optim.AdamW on a CPU.

    moments(adam_step, case)      the new m and v
    moved(adam_step, case)        the new weight

``adam_step(weight, grad, m, v, t, lr, betas, eps, decay)`` -> (weight, m, v), new tensors. The rate, epsilon and the
decay of a case are large, so that a step shows where they went.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.naming import Hints, given
from minigpt.checks.optimizers.asking import ask, fields
from minigpt.checks.verdict import Wrong

knows(__name__)
NAMES = ("weight", "m", "v")


class Step(NamedTuple):
    """Step ``t`` of a random weight with random moments, which are zeros before the first."""

    t: int
    decay: float = 0.0
    shape: tuple[int, ...] = (6, 5)
    lr: float = 0.1
    betas: tuple[float, float] = (0.8, 0.95)
    eps: float = 1e-2
    seed: int = 0

    @property
    def text(self) -> str:
        return f"step {self.t} with decay {self.decay:g}"

    @property
    def options(self) -> tuple:
        return self.lr, self.betas, self.eps, self.decay

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight, gradient, m and v, all of one shape, float32."""
        generator = torch.Generator().manual_seed(self.seed)
        weight, grad, m, v = torch.randn((4, *self.shape), generator=generator).unbind()
        before = self.t > 1
        return weight, 0.1 * grad, 0.05 * m * before, 0.02 * (0.1 + v.square()) * before


def moments(adam_step: Callable, step: Step) -> None:
    mine, truth = _asked(adam_step, step), by_torch(step)
    wrong = _moment_mistakes(step)
    for name in ("m", "v"):
        close(mine[name], truth[name], f"{step.text}: {name}", rtol=1e-5, atol=1e-8, dtype=torch.float32,
              wrong=wrong[name])  # fmt: skip


def moved(adam_step: Callable, step: Step) -> None:
    mine, truth = _asked(adam_step, step), by_torch(step)
    wrong = _weight_mistakes(step)
    close(mine["weight"], truth["weight"], f"{step.text}: the weight", rtol=1e-5, atol=1e-6, dtype=torch.float32,
          wrong=wrong)  # fmt: skip


def _asked(adam_step: Callable, step: Step) -> dict[str, Tensor]:
    mine = fields(ask(adam_step, *step.tensors(), step.t, *step.options), NAMES, step.text)
    right = by_torch(step)
    others = {name: right[other] for name, other in zip(NAMES, ("m", "v", "weight"))}
    if all(_alike(mine[name], others[name]) for name in NAMES):
        raise Wrong("order", f"{step.text}: (m, v, weight) is returned; the weight comes first")
    return mine


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double())


def by_torch(step: Step) -> dict[str, Tensor]:
    """What torch's AdamW makes of the step."""
    weight, grad, m, v = step.tensors()
    parameter = nn.Parameter(weight)
    optimizer = torch.optim.AdamW(
        [parameter], lr=step.lr, betas=step.betas, eps=step.eps, weight_decay=step.decay, foreach=False
    )
    if step.t > 1:
        optimizer.state[parameter] = {"step": torch.tensor(step.t - 1.0), "exp_avg": m, "exp_avg_sq": v}
    parameter.grad = grad
    optimizer.step()
    state = optimizer.state[parameter]
    return {"weight": parameter.detach(), "m": state["exp_avg"], "v": state["exp_avg_sq"]}


# ---------------------------------------------------------------- slips


def _means(step: Step, grad: Tensor) -> tuple[Tensor, Tensor]:
    _, _, m, v = step.tensors()
    b1, b2 = step.betas
    return b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2


def _moment_mistakes(step: Step) -> dict[str, Hints]:
    weight, g, m, v = step.tensors()
    (b1, b2), t = step.betas, step.t
    new_m, new_v = _means(step, g)
    coupled = _means(step, g + step.decay * weight)
    say_coupled = "the decay is added to the gradient, as in plain Adam; AdamW takes it off the weight"
    return {
        "m": {
            "sum-not-mean": ("g is added whole; a running mean takes 1 - beta of it", b1 * m + g),
            "betas-swapped": ("it is made with the second beta; m has the first", b2 * m + (1 - b2) * g),
            "shares-swapped": ("the shares are swapped: beta belongs to what was there", (1 - b1) * m + b1 * g),
            "corrected-kept": ("it is divided by 1 - beta^t; that is for the move alone, m itself stays as it is",
                               new_m / (1 - b1**t)),
            "old-moment": ("that is the old m", m),
            "coupled-decay": (say_coupled, coupled[0]),
        },
        "v": {
            "sum-not-mean": ("the square is added whole; a running mean takes 1 - beta of it", b2 * v + g**2),
            "not-squared": ("the gradient is not squared", b2 * v + (1 - b2) * g),
            "absolute": ("that is a mean of |g|; v is a mean of the square", b2 * v + (1 - b2) * g.abs()),
            "square-of-all": ("1 - beta is squared with the gradient", b2 * v + ((1 - b2) * g) ** 2),
            "square-of-m": ("that is a mean of the square of m; v is one of the gradient's",
                            b2 * v + (1 - b2) * new_m**2),
            "betas-swapped": ("it is made with the first beta; v has the second", b1 * v + (1 - b1) * g**2),
            "shares-swapped": ("the shares are swapped: beta belongs to what was there", (1 - b2) * v + b2 * g**2),
            "corrected-kept": ("it is divided by 1 - beta^t; that is for the move alone, v itself stays as it is",
                               new_v / (1 - b2**t)),
            "root-kept": ("that is the root; v itself is asked for", new_v.sqrt()),
            "old-moment": ("that is the old v", v),
            "coupled-decay": (say_coupled, coupled[1]),
        },
    }  # fmt: skip


def _weight_mistakes(step: Step) -> Hints:
    """The weight that each mistake leaves."""
    weight, g, old_m, old_v = step.tensors()
    lr, (b1, b2), eps, decay = step.options
    t, (m, v) = step.t, _means(step, g)
    c1, c2 = 1 - b1**t, 1 - b2**t
    m_hat, v_hat = m / c1, v / c2
    right = m_hat / (v_hat.sqrt() + eps)

    def toward(m: Tensor, v: Tensor) -> Tensor:
        return m / (v.sqrt() + eps)

    directions = {
        "not-corrected": ("m and v are not divided by 1 - beta^t", toward(m, v)),
        "m-not-corrected": ("m is not divided by 1 - beta1^t", toward(m, v_hat)),
        "v-not-corrected": ("v is not divided by 1 - beta2^t", toward(m_hat, v)),
        "corrections-swapped": ("the corrections are swapped: beta1 belongs to m, beta2 to v", toward(m / c2, v / c1)),
        "no-power": ("it is divided by 1 - beta; in step t it is 1 - beta^t", toward(m / (1 - b1), v / (1 - b2))),
        "one-ahead": ("the power is t + 1; t is 1 in the first step",
                      toward(m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1)))),
        "one-behind": ("the power is t - 1; t is 1 in the first step",
                       toward(m / (1 - b1 ** (t - 1)), v / (1 - b2 ** (t - 1))) if t > 1 else toward(m, v)),
        "corrected-by-product": ("it is multiplied by 1 - beta^t; it is to be divided", toward(m * c1, v * c2)),
        "old-moments": ("the weight is moved by the old m and v; take the new ones", toward(old_m / c1, old_v / c2)),
        "no-root": ("v stands under no root", m_hat / (v_hat + eps)),
        "eps-in-root": ("eps stands under the root; it is added to the root", m_hat / (v_hat + eps).sqrt()),
        "eps-corrected": ("eps is divided by the root of 1 - beta2^t, too; add it after the correction",
                          m_hat / ((v.sqrt() + eps) / c2**0.5)),
        "no-eps": ("eps is forgotten", m_hat / v_hat.sqrt()),
        "gradient-for-m": ("the gradient is in the place of m", g / (v_hat.sqrt() + eps)),
        "ascends": ("it moves up the gradient: the sign is turned round", -right),
        "no-lr": ("lr is forgotten", right / lr),
        "sgd": ("that is lr times the gradient, as SGD moves", g),
    }  # fmt: skip
    shrunk = weight * (1 - lr * decay)
    mistakes = given(directions, lambda direction: shrunk - lr * direction)
    if decay:
        grown_m, grown_v = _means(step, g + decay * weight)
        mistakes |= {
            "no-decay": ("the decay is forgotten", weight - lr * right),
            "coupled-decay": ("the decay is added to the gradient, as in plain Adam; AdamW takes it off the weight",
                              weight - lr * toward(grown_m / c1, grown_v / c2)),
            "decay-without-lr": ("decay is taken off without lr; it is lr times decay",
                                 weight * (1 - decay) - lr * right),
            "decay-after": ("the moved weight is shrunk; shrink first, then move",
                            (weight - lr * right) * (1 - lr * decay)),
            "decay-grows": ("the weight grows: the sign of the decay is turned round",
                            weight * (1 + lr * decay) - lr * right),
            "decay-alone": ("lr times decay is taken off, not that share of the weight",
                            weight - lr * decay - lr * right),
        }  # fmt: skip
    return mistakes
