"""What torch says when the device is full, number by number.

    CUDA out of memory. Tried to allocate <what was asked of the device>. GPU 0 has a total capacity of <capacity> of
    which <what the driver has left> is free. Including non-PyTorch memory, this process has <reserved and context>
    memory in use. Of the allocated memory <allocated> is allocated by PyTorch, and <reserved - allocated> is reserved
    by PyTorch but unallocated. …

"Tried to allocate" is the segment, not the tensor: 20.00 MiB for one of 2 MiB. "Reserved but unallocated" is what torch
could not give back: free pieces of segments in use (after ``release_cached`` there is nothing else). Other processes
are listed by their number in torch; here they only lower what is free. Source: the end of ``malloc``,
``reportProcessMemoryInfo`` and ``format_size`` of ``c10/cuda/CUDACachingAllocator.cpp``. Older versions end with
another address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.memory.predicted.allocator.caching import Allocator

ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


class OutOfMemoryError(RuntimeError):
    """The device is full; ``torch.OutOfMemoryError`` is a RuntimeError too."""


def readable(nbytes: int) -> str:
    """Bytes as torch prints them: 1 MiB is still "1024.00 KiB"."""
    if nbytes <= 1 << 10:
        return f"{nbytes} bytes"
    for exponent, unit in ((10, "KiB"), (20, "MiB")):
        if nbytes <= 1 << (exponent + 10):
            return f"{nbytes / (1 << exponent):.2f} {unit}"
    return f"{nbytes / (1 << 30):.2f} GiB"


def sentence(allocator: Allocator, wanted: int) -> str:
    """Torch's sentence, for a request that asked the device for ``wanted`` bytes."""
    device, allowed = allocator.device, allocator.allowed()
    allocated, reserved = allocator.statistics.allocated.current, allocator.statistics.reserved.current
    own = device.context + device.taken
    parts = [
        f"CUDA out of memory. Tried to allocate {readable(wanted)}.",
        f"GPU 0 has a total capacity of {readable(device.capacity or 0)} of which {readable(device.free)} is free.",
        f"Including non-PyTorch memory, this process has {readable(own)} memory in use.",
        f"{readable(allowed)} allowed;" if allowed is not None else "",
        f"Of the allocated memory {readable(allocated)} is allocated by PyTorch,",
        f"and {readable(reserved - allocated)} is reserved by PyTorch but unallocated.",
        ADVICE,
    ]
    return " ".join(part for part in parts if part)
