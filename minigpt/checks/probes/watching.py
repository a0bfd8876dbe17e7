"""What an answer makes and keeps, counted beside it: for probes alone, as an answer may have to count that itself.

    with Watch(weights=block.parameters(), inputs=(x,)) as watch:
        y = ...                  in it ``by_hand``
    watch.kept                   bytes saved for backward, at most at a time: each storage once, weights left out
    watch.largest                of the tensors that were made, the largest one's storage
    watch.peak, watch.alive()    bytes of what was made: at most at a time, and now

Left out: what no operation of torch returns, such as a kernel's scratch; ``python_bytes`` counts what numpy and lists
take.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.checks import probes
from minigpt.checks.closing import refuse


class _Saved:
    """Stands for a tensor that autograd saves; it goes when autograd lets go."""

    def __init__(self, tensor: Tensor, watch: Watch) -> None:
        self.tensor = tensor.detach() if tensor.grad_fn is not None else tensor  # else a circle that nothing frees
        self.watch, self.key = watch, tensor.untyped_storage()._cdata
        watch.save(self.key, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        self.watch.let_go(self.key)


class Watch(TorchDispatchMode):
    """See the module. ``weights`` and ``inputs`` were there before; the first count nowhere, the second when saved."""

    def __init__(self, weights: Iterable[Tensor] = (), inputs: Iterable[Tensor] = ()) -> None:
        if not probes.is_probing():
            refuse("asks-course", "the course's own arithmetic")
        super().__init__()
        self.weights = {tensor.untyped_storage()._cdata for tensor in weights}
        self.before = self.weights | {tensor.untyped_storage()._cdata for tensor in inputs}
        self.kept = self.largest = self.peak = self.copied = 0
        self._saved: dict[int, tuple[int, int]] = {}  # how often a storage is saved, and its bytes
        self._alive: dict[int, int] = {}
        self._refs: dict[int, weakref.ref] = {}
        self._saving = saved_tensors_hooks(partial(_Saved, watch=self), lambda saved: saved.tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self.before or self._alive.get(key) == nbytes:
            return
        if key not in self._alive:
            self._refs[key] = weakref.ref(storage, lambda _: self._dies(key))
        self._alive[key] = nbytes
        self.largest, self.peak = max(self.largest, nbytes), max(self.peak, sum(self._alive.values()))

    def _dies(self, key: int) -> None:
        self._alive.pop(key, None), self._refs.pop(key, None)

    def save(self, key: int, nbytes: int) -> None:
        if key not in self.weights:
            times, _ = self._saved.get(key, (0, 0))
            self._saved[key] = times + 1, nbytes
            self.kept = max(self.kept, sum(nbytes for _, nbytes in self._saved.values()))
            made = sum(nbytes for key, (_, nbytes) in self._saved.items() if key not in self.before)
            self.copied = max(self.copied, made)  # of ``kept``, what was not there before

    def let_go(self, key: int) -> None:
        times, nbytes = self._saved.pop(key, (0, 0))
        if times > 1:
            self._saved[key] = times - 1, nbytes

    def alive(self, *but: Tensor | None) -> int:
        """Bytes of what was made and is there now, without the storages of these."""
        gc.collect()
        without = {tensor.untyped_storage()._cdata for tensor in but if isinstance(tensor, Tensor)}
        return sum(nbytes for key, nbytes in self._alive.items() if key not in without)

    def __enter__(self) -> Watch:
        gc.freeze()  # so that ``alive`` looks through what comes after, and not through all that is imported
        self._saving.__enter__()
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        self._saving.__exit__(*exception)
        gc.unfreeze()


def python_bytes(run: Callable):
    """(what ``run()`` gives, bytes that Python has more after it than before: of lists, of numpy's arrays)."""
    run()  # what is imported and remembered at a first run
    gc.freeze()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        given = run()
        gc.collect()
        return given, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.unfreeze()
