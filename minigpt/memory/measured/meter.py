"""MemoryMeter: the buckets of a running training step, measured storage by storage.

Three hooks see everything that a step does with memory:

    a dispatch mode       every tensor that an operation returns; a new storage is a birth
    a weak reference      the storage's death
    saved-tensor hooks    autograd saving a storage for backward, and letting go of it

So it works the same on real CPU tensors, on fake tensors (any size, no memory) and on CUDA. Each storage
counts once, however many tensors view it. A storage that becomes a parameter's ``.grad``, or optimizer
state, counts as that from its birth; a saved one is an activation only while it is saved.

Left out: scratch that a kernel allocates and frees inside one operation, because no operation returns it.
On CPU torch's profiler sees it; on CUDA it is part of ``unattributed``.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.measured.collectives import Ranks, first_hook, is_freed, local, resizes
from minigpt.memory.measured.in_place import ADD, WRITES, holders, last_reference, sums_in_place, writes_in_place
from minigpt.memory.measured.kept import kept_by_checkpoints
from minigpt.memory.measured.quantized import scales
from minigpt.memory.measured.storages import ACTIVATIONS, GRADIENTS, OPTIMIZER, TEMPORARY, WEIGHTS, Saved, Storage

DEVICE = torch.ops.prim.device.default  # autograd asks a fake tensor for its device, more often than it computes


class Optimizer(Protocol):
    """What the meter asks of an optimizer: its tensors, by parameter and name."""

    @property
    def state(self) -> Mapping[torch.Tensor, dict[str, Any]]: ...


@dataclass(frozen=True)
class CudaReading:
    """The CUDA caching allocator's own counters over the metered region, in bytes."""

    peak_allocated: int  # torch.cuda.max_memory_allocated
    peak_reserved: int  # torch.cuda.max_memory_reserved: what the process holds, apart from the CUDA context
    unattributed: int  # peak_allocated less the meter's peak: kernel workspaces, tensors the meter never saw


class MemoryMeter(TorchDispatchMode):
    """Measure the code inside ``with``.

        with MemoryMeter(model, optimizer, inputs=(tokens, targets)) as meter:
            meter.mark("forward");   loss = model(tokens, targets)
            meter.mark("backward");  loss.backward()
            meter.mark("step");      optimizer.step()
        meter.result().peak.total        # bytes

    ``inputs`` are tensors alive before the region that are neither weights nor state. With fake tensors,
    enter ``FakeTensorMode`` first. Meter a *second* step to see a steady state: the first has no optimizer
    state until its end. Raises ValueError if ``inputs`` is anything but tensors in a tuple or a list.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: Optimizer | None = None,
        inputs: tuple[torch.Tensor, ...] = (),
    ) -> None:
        super().__init__()
        if not isinstance(inputs, (tuple, list)) or not all(isinstance(item, torch.Tensor) for item in inputs):
            raise ValueError(f"inputs is a {type(inputs).__name__}; it must be a tuple or a list of tensors")
        self.model, self.optimizer, self.inputs = model, optimizer, inputs
        self.phase = "before"
        self.live = self.peak = 0  # bytes
        self._last_reference = last_reference()
        self._peak_event, self._peak_at = 0, ("before", "")  # how many events came before the peak, and what it was in
        self._operation = ""
        self._events: list[tuple[str, Storage, int, int | None]] = []  # (phase, storage, change in bytes, saved?)
        self._storages: dict[int, Storage] = {}  # by the address of the C++ storage
        self._hooks: list = []
        self._ranks = Ranks() if dist.is_available() and dist.is_initialized() else None
        self.cuda: CudaReading | None = None

    def mark(self, phase: str) -> None:
        """Name what happens from here on: "forward", "backward", "step"."""
        self._book_shards()
        self.phase = phase

    def alive(self) -> tuple[torch.Tensor, ...]:
        """A tensor of each storage that lives, inside the region: for the ``inputs`` of another one."""
        found = [storage.ref() for storage in self._storages.values() if storage.ref is not None]
        return tuple(torch.empty(0, dtype=torch.uint8).set_(untyped) for untyped in found if untyped is not None)

    # ---------------------------------------------------------------- births, deaths, saves

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap the method below against its compiler, which costs more than the method itself."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is DEVICE and (device := getattr(args[0], "fake_device", None)) is not None:
            return device  # here, and not after a way through two modes
        if self._ranks and self._ranks.passes_on(types):
            return NotImplemented
        self._operation = func
        out = func(*args, **(kwargs or {}))
        if self._ranks and self._ranks.settle(func, out):
            return out
        if (func is ADD and sums_in_place(args, holders(args[0]), self._last_reference)) or (
            func in WRITES and writes_in_place(func)
        ):
            self._replace(args[0], out)
            return out
        if isinstance(out, torch.Tensor):
            self._see(out)
        elif isinstance(out, (tuple, list)):  # anything else is a number, a dtype or a device
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self._see(leaf)
        return out

    def _see(self, tensor: torch.Tensor) -> Storage:
        untyped = tensor.untyped_storage()
        address = untyped._cdata
        storage = self._storages.get(address)
        if storage is None:
            storage = self._born(untyped, self._size(tensor, untyped))
        elif storage.nbytes != untyped.nbytes():
            self._grow(storage, self._size(tensor, untyped))
        return storage

    def _born(self, untyped: torch.UntypedStorage, nbytes: int) -> Storage:
        storage = Storage(nbytes)
        self._watch(storage, untyped)
        self._change(storage, nbytes)
        return storage

    def _grow(self, storage: Storage, nbytes: int) -> None:
        if nbytes != storage.nbytes:
            change, storage.nbytes = nbytes - storage.nbytes, nbytes
            self._change(storage, change)

    def _resized(self, untyped: torch.UntypedStorage, before: int) -> None:
        """Outside of any operation: the storage comes and goes as it is needed, as weights of other ranks do."""
        storage = self._storages.get(untyped._cdata) or self._born(untyped, before)
        storage.bucket = TEMPORARY if storage.bucket is None else storage.bucket
        self._operation = "resize_"
        self._grow(storage, untyped.nbytes())

    def _watch(self, storage: Storage, untyped: torch.UntypedStorage) -> None:
        """``storage`` is that of torch's ``untyped``, and dies with it."""
        address = untyped._cdata
        self._storages[address] = storage
        storage.ref = weakref.ref(untyped, partial(self._die, address))

    def _size(self, tensor: torch.Tensor, untyped: torch.UntypedStorage) -> int:
        if "meta" in (tensor.device.type, self._ranks and untyped.device.type):  # the second: DTensor asks for shapes
            return 0
        nbytes = untyped.nbytes()
        return -(-nbytes // 512) * 512 if tensor.device.type == "cuda" else nbytes  # the CUDA allocator's blocks

    def _change(self, storage: Storage, nbytes: int) -> None:
        self._events.append((self.phase, storage, nbytes, None))
        self.live += nbytes
        if self.live > self.peak:
            self.peak, self._peak_event = self.live, len(self._events)
            self._peak_at = (self.phase, self._operation)

    def _die(self, address: int, _ref: object) -> None:
        storage = self._storages.pop(address, None)
        if storage is not None:
            self._change(storage, -storage.nbytes)

    def _replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Book ``new`` as the storage of ``old``, which without the meter is written in place."""
        storage, untyped = self._see(old), new.untyped_storage()
        del self._storages[old.untyped_storage()._cdata]
        self._watch(storage, untyped)
        self._see(new)  # if it has another size

    def _pack(self, tensor: torch.Tensor) -> Saved:
        storage = self._see(tensor)
        storage.saved += 1
        if storage.saved == 1:
            self._events.append((self.phase, storage, 0, ACTIVATIONS))
        # An output is saved by the node that it holds itself: keeping it would be a circle that nothing frees.
        return Saved(tensor.detach() if tensor.grad_fn is not None else tensor, storage, self)

    # ---------------------------------------------------------------- buckets

    def _book(self, tensor: torch.Tensor, bucket: int, frozen: bool = False) -> None:
        if (storage := self._see(local(tensor))).bucket is None:
            storage.bucket, storage.frozen = bucket, frozen

    def _book_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._book(parameter.grad, GRADIENTS)

    def _book_shards(self) -> None:
        """Gradients that autograd, which calls the hooks, has not made: a rank's shard of the sum over all ranks."""
        for parameter in self.model.parameters() if self._ranks and self.model is not None else ():
            self._book_gradient(parameter)

    def _book_state(self) -> None:
        for state in self.optimizer.state.values() if self.optimizer is not None else ():
            for name, value in state.items():
                for tensor in tree_leaves(value):
                    if isinstance(tensor, torch.Tensor):
                        self._book(tensor, GRADIENTS if name == "gradient" else OPTIMIZER)

    def _book_late_state(self) -> None:
        """At the end. State that no operation made, such as bitsandbytes' tables in a first step, was there before."""
        ran, peak = self._events, (self.peak, self._peak_event, self._peak_at)
        self._events, self.phase = [], "before"
        self._book_state()
        self.peak, self._peak_event, self._peak_at = peak
        self.peak += sum(change for _, _, change, _ in self._events)
        self._peak_event += len(self._events)
        self._events += ran

    def __enter__(self):
        if self.model is not None:
            for parameter in self.model.parameters():
                if is_freed(parameter):
                    continue
                self._book(parameter, WEIGHTS, frozen=not parameter.requires_grad)
                self._book_gradient(parameter)
                if parameter.requires_grad:
                    self._hooks.append(first_hook(parameter, self._book_gradient))
            for buffer in self.model.buffers():
                self._book(buffer, WEIGHTS, frozen=True)
            for module in self.model.modules():
                for tensor in scales(module):
                    self._book(tensor, WEIGHTS, frozen=True)
        self._book_state()
        for tensor in self.inputs:
            self._see(tensor)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        saving = saved_tensors_hooks(self._pack, lambda saved: saved.tensor), kept_by_checkpoints(self._pack)
        self._seeing = *saving, resizes(self._resized)
        for seen in self._seeing:
            seen.__enter__()
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        for seen in reversed(self._seeing):
            seen.__exit__(*exception)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._book_shards()
        self._book_late_state()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            allocated = torch.cuda.max_memory_allocated()
            self.cuda = CudaReading(allocated, torch.cuda.max_memory_reserved(), allocated - self.peak)
        self._seen = len(self._events)  # what dies after the region is not part of it
        for storage in self._storages.values():
            storage.ref = None

    # ---------------------------------------------------------------- the account

    def result(self) -> StepMemory:
        """The region's account. Raises RuntimeError inside the region: a bucket is known only at its end."""
        if not hasattr(self, "_seen"):
            raise RuntimeError("the meter is still running; call result() after its with-block")
        totals, largest = [0] * len(BUCKETS), [0] * len(BUCKETS)
        place: dict[Storage, int] = {}  # the bucket each live storage is counted in
        events, peak, frozen = [], Ledger(), 0
        for count, (phase, storage, change, saved) in enumerate(self._events[: self._seen], start=1):
            here = place.get(storage, TEMPORARY)
            if saved is None:  # born, resized or dead
                bucket = here if storage.bucket is None else storage.bucket
                moves = [(bucket, change)]
                frozen += change if storage.frozen else 0
            else:  # saved, or let go
                bucket = saved if storage.bucket is None else storage.bucket
                moves = [(here, -storage.nbytes), (bucket, storage.nbytes)] if bucket != here else []
            place[storage] = bucket
            for bucket, nbytes in moves:
                totals[bucket] += nbytes
                largest[bucket] = max(largest[bucket], totals[bucket])
                events.append((phase, bucket, nbytes))
            if count == self._peak_event:
                peak = Ledger(*totals)
        largest[TEMPORARY] = peak.temporary
        phase, operation = self._peak_at
        return StepMemory(Ledger(*largest), peak, f"{phase}, {operation}", tuple(events), frozen)
