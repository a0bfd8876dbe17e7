"""Functions of a notebook in processes of their own: what a lab's ranks run.

    def mean_of_ranks():
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x

    run_told(mean_of_ranks, ranks=2)         [[0.5], [0.5]]

A process cannot import a notebook. So the function goes there as its text, and with it the texts of the functions and
classes that it ``uses``; in every rank they find the names of NAMES, and whatever they import themselves. The ranks
have joined each other before it is called. Tensors come back as lists, what ``Call`` can carry (a StepMemory) as it is.

Left out: values of the notebook, which are given as arguments instead.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.together import run_ranks
from minigpt.model import GPT, GPTConfig

NAMES = {
    "torch": torch, "nn": nn, "F": F, "Tensor": Tensor, "dist": dist, "GPT": GPT, "GPTConfig": GPTConfig,
    "MemoryMeter": MemoryMeter,
}  # fmt: skip
FILE = "<the notebook>"


def run_told(
    function: Callable,
    ranks: int,
    *,
    uses: Iterable[Callable] = (),
    arguments: dict | None = None,
    timeout: float = 300,
    patience: float = 60,
) -> list:
    """What ``function(**arguments)`` returned in each of ``ranks`` joined processes.

    Raises ValueError for what has no text, such as a lambda, and what ``run_ranks`` raises.
    """
    text = "\n\n\n".join(source_of(thing) for thing in (*uses, function))
    given = {"text": text, "name": function.__name__, "ranks": ranks, "arguments": arguments or {}}
    return run_ranks(Call(f"{__name__}:run_text", given), ranks, timeout=timeout, patience=patience)


def run_text(text: str, name: str, ranks: int, arguments: dict, rank: int, meeting: Meeting):
    """In a rank's process: join the others, and call the function ``name`` of ``text``."""
    linecache.cache[FILE] = len(text), None, text.splitlines(keepends=True), FILE  # for the lines of a traceback
    names: dict = dict(NAMES)
    exec(compile(text, FILE, "exec"), names)
    with meeting.joined("told", rank, ranks):
        return tree_map_only(Tensor, lambda tensor: tensor.tolist(), names[name](**arguments))


def source_of(thing: Callable) -> str:
    """The text of a function or a class, from the cell that it stands in. Raises ValueError if there is none."""
    inside = vars(thing).values() if inspect.isclass(thing) else (thing,)
    function = next((value for value in inside if inspect.isfunction(value)), None)
    if function is not None:
        text = "".join(linecache.getlines(function.__code__.co_filename))  # inspect finds no class of a notebook
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == thing.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise ValueError(f"{getattr(thing, '__name__', thing)!r} has no text; it must be a function or class of a cell")
