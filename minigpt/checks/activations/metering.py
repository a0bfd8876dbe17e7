"""Judging a saved-tensor meter that a student wrote; the truth is the course's MemoryMeter on the same forward pass.

    saves(saved_bytes, scene)      ``saved_bytes(run, known)`` for one of ``scenes.SCENES``, by its name

A mistake is named by what it would give: a list of all that autograd hands over, counted in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from minigpt.checks.activations.asking import MemoryMeter
from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints
from minigpt.checks.probes import scenes
from minigpt.checks.verdict import Wrong

knows(__name__)
HINTS = {
    "unpack_hook expected to be a Tensor": "What the first hook returns is handed to the second, in backward, and that "
    "has to return the tensor",
    "missing 1 required positional argument": "saved_tensors_hooks takes two functions",
    "must match the size of tensor": "`tensor in known` compares element by element; compare the storages' addresses",
    "Boolean value of Tensor": "`tensor in known` compares element by element; compare the storages' addresses",
}


def saves(saved_bytes: Callable, scene: str) -> None:
    run, module, inputs = scenes.SCENES[scene]()
    known: list[Tensor] = list(module.parameters())
    try:
        mine = scenes.saved(saved_bytes, scene)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__
    with MemoryMeter(module, inputs=inputs) as meter:
        run()
    integer(mine, meter.result().ledger.activations, scene, wrong=mistakes(run, known), unit="bytes")


def mistakes(run: Callable, known: list[Tensor]) -> Hints:
    """What other ways of counting would give."""
    handed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        handed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    weights = {_storage(tensor) for tensor in known}
    own = [tensor for tensor in handed if _storage(tensor) not in weights]
    all_of = {_storage(tensor): tensor for tensor in handed}.values()
    last = {_storage(tensor): tensor for tensor in own}
    first = {_storage(tensor): tensor for tensor in reversed(own)}
    by_view = {tensor.data_ptr(): tensor for tensor in own}.values()
    return {
        "handed-over": ("everything that is handed over is counted, as often as it is: parameters, and storages that "
                        "are handed over more than once", sum(tensor.nbytes for tensor in handed)),
        "parameters": ("the parameters are counted; they were there before",
                       sum(_bytes(all_of))),
        "each-time": ("a storage that is handed over twice is counted twice", sum(tensor.nbytes for tensor in own)),
        "storage-each-time": ("a storage counts once for each tensor that looks at it",
                              sum(tensor.untyped_storage().nbytes() for tensor in own)),
        "view-size": ("a view is counted with its own size; it keeps its whole storage alive",
                      sum(tensor.nbytes for tensor in last.values())),
        "first-view-size": ("a view is counted with its own size; it keeps its whole storage alive",
                            sum(tensor.nbytes for tensor in first.values())),
        "view-address": ("two views that begin in two places of one storage are counted as two; ask for the address "
                         "of the storage", sum(tensor.untyped_storage().nbytes() for tensor in by_view)),
        "view-address-and-size": ("views are counted, by their own address and size; it is storages that stay alive",
                                  sum(tensor.nbytes for tensor in by_view)),
        "four-bytes": ("4 bytes are counted for every number; not all are float32: .nbytes, or .element_size()",
                       4 * sum(tensor.numel() for tensor in first.values())),
        "subtracted": ("the bytes of all parameters are subtracted; not each of them is saved, so leave out those that "
                       "are", sum(_bytes(all_of)) - sum({_storage(t): t.nbytes for t in known}.values())),
        "numbers": ("numbers are counted, and not bytes", sum(tensor.numel() for tensor in first.values())),
    }  # fmt: skip


def _bytes(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
