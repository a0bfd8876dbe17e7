"""ZeRO, stage 2: as stage 1, and a group's gradient is reduced as soon as backward has made it.

    backward     the last gradient of a block is there:  reduce-scatter, keep a shard of the mean, free the rest
    step         update the shard; all-gather the weights

So a rank never has all gradients: between backward and step it keeps 4 P + 4 P / W + 8 P / W bytes, and in backward one
block's gradients come on top. With several micro-batches it reduces in each of them, where stage 1 does so once.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from minigpt.sharding.zero1 import Zero1


class Zero2(Zero1):
    """As ``Zero1``. Every parameter that is trained must get a gradient in every backward."""

    def __init__(self, model: nn.Module, make_optimizer) -> None:
        super().__init__(model, make_optimizer)
        for group, shard in zip(self.groups, self.shards):
            arrived = Arrivals(len(group.parameters), partial(self.reduce, group, shard))
            for parameter in group.parameters:
                parameter.register_post_accumulate_grad_hook(arrived)

    def step(self) -> None:
        self.update()


class Arrivals:
    """Called once for each gradient of a group; at the last one it calls ``then``, and counts anew."""

    def __init__(self, count: int, then) -> None:
        self.count, self.left, self.then = count, count, then

    def __call__(self, parameter: nn.Parameter) -> None:
        self.left -= 1
        if self.left == 0:
            self.left = self.count
            self.then()
