"""Functions of a notebook in processes of their own: what a lab's ranks run.

    def mean_of_ranks():
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x

    run_told(mean_of_ranks, ranks=2)         [[0.5], [0.5]]

A process cannot import a notebook, so the function goes there as its text, with the cells and imports that it uses
(``sending``). The ranks have joined each other before it is called. Tensors come back as lists, what ``Call`` can carry
(a StepMemory) as it is.

Left out: values that a cell has computed, which are given as arguments instead.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils._pytree import tree_map_only

from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.sending import names_of, source_of
from minigpt.memory.measured.together import run_ranks


def run_told(
    function: Callable, ranks: int, *, arguments: dict | None = None, timeout: float = 300, patience: float = 60
) -> list:
    """What ``function(**arguments)`` returned in each of ``ranks`` joined processes.

    Raises ValueError for what has no text, such as a lambda, and what ``run_ranks`` raises.
    """
    given = {"text": source_of([function]), "name": function.__name__, "ranks": ranks, "arguments": arguments or {}}
    return run_ranks(Call(f"{__name__}:run_text", given), ranks, timeout=timeout, patience=patience)


def run_text(text: str, name: str, ranks: int, arguments: dict, rank: int, meeting: Meeting):
    """In a rank's process: join the others, and call the function ``name`` of ``text``."""
    function = names_of(text)[name]
    with meeting.joined("told", rank, ranks):
        return tree_map_only(Tensor, lambda tensor: tensor.tolist(), function(**arguments))
