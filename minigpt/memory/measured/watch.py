"""Watch: the births, savings and deaths of storages, in order and by name. The meter's idea, without its books.

Lesson 02 reads a step with it. A storage is known by the address of its C++ object; names are the operation that made
it and a number. Left out, and done by the meter: buckets, phases, when autograd lets go of what it saved, and sums of
gradients that autograd makes in place when nobody looks on.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SHORT = {
    "native_layer_norm": "norm",
    "native_layer_norm_backward": "norm_backward",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention_backward",
}


class Life(NamedTuple):
    """One storage: its name, its bytes, the events of its birth and its death, and whether autograd saved it."""

    name: str
    nbytes: int
    born: int
    died: int  # the number of events, if it is still alive
    saved: bool


class Watch(TorchDispatchMode):
    """Note what happens to storages while the code inside ``with`` runs.

        with Watch(x=x, weight=layer.weight) as watch:
            layer(x).sum().backward()
        watch.events     # ("saved", "x", 4096), ("born", "mm #1", 8192), ("died", "mm #1", 0) ...

    Tensors that are there already are given by name.
    """

    def __init__(self, **known: torch.Tensor) -> None:
        super().__init__()
        self.events: list[tuple[str, str, int]] = []  # what, name, bytes; a death has 0
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in known.items()}
        self._sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in known.items()}
        self._references: list[weakref.ref] = []
        self._hooks = saved_tensors_hooks(self._saved, lambda tensor: tensor)

    def __enter__(self):
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self._hooks.__exit__(*error)

    def lives(self) -> list[Life]:
        """Every storage that was given or seen, in the order of births."""
        lives = {name: Life(name, nbytes, 0, len(self.events), False) for name, nbytes in self._sizes.items()}
        for i, (what, name, nbytes) in enumerate(self.events):
            if what == "born":
                lives[name] = Life(name, nbytes, i, len(self.events), False)
            else:
                lives[name] = lives[name]._replace(**({"died": i} if what == "died" else {"saved": True}))
        return list(lives.values())

    def saved_bytes(self) -> dict[str, int]:
        """Bytes of each storage that autograd saved, once each."""
        return {life.name: life.nbytes for life in self.lives() if life.saved}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._seen(tensor.untyped_storage(), operation.overloadpacket.__name__)
        return out

    def _seen(self, storage: torch.UntypedStorage, operation: str) -> None:
        address = storage._cdata
        if address in self._names:  # a view of a storage that is there already
            return
        name = f"{SHORT.get(operation, operation)} #{len(self._references) + 1}"
        self._names[address] = name
        self.events.append(("born", name, storage.nbytes()))
        self._references.append(weakref.ref(storage, lambda _: self._died(address)))

    def _died(self, address: int) -> None:
        self.events.append(("died", self._names.pop(address), 0))

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.events.append(("saved", self._names[storage._cdata], storage.nbytes()))
        return tensor
