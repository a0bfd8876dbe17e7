"""PyTorch's caching allocator for CUDA, as its source has it: where each request lands, and what is reserved for it.

    allocator = Allocator()
    block = allocator.allocate(25 * 2**20)          # 25 MiB
    block.size                                      # 27,262,976: the whole block of 26 MiB, and so torch counts it
    allocator.free(block)
    allocator.statistics.allocated.current          # 0
    allocator.statistics.reserved.current           # 27,262,976, still

The rules, from ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` (torch 2.1 to 2.13; the names
in brackets are theirs). All sizes are bytes.

1. A request is rounded up to a multiple of 512, or by ``roundup_power2_divisions`` (``round_size``): ``options.py``.
2. Up to 1 MiB it belongs to the small pool, above to the large one (``get_pool``). A pool keeps its free blocks sorted
   by stream, size and address, and gives the first that is large enough (``get_free_block``): ``blocks.py``.
3. With none, a segment is asked of the device (``alloc_block``): 2 MiB in the small pool; in the large one 20 MiB for
   less than 10 MiB, else a multiple of 2 MiB (``get_allocation_size``): ``options.py``. Or pages are mapped to the end
   of one growing segment (``expandable_segments``): ``expandable.py``.
4. The rest of a block is split off if it is at least 512 (small pool, expandable segments) or more than 1 MiB (large
   pool, and a request under ``max_split_size_mb``) (``should_split``). What is not split off is part of the block, and
   counts as allocated: ``options.py``, ``caching.py``.
5. A freed block joins its free neighbours in the segment (``free_block``, ``try_merge_blocks``): ``blocks.py``. If
   other streams used it (``record_stream``), it is free only when what they had queued is done, and that is noticed at
   the next request (``process_events``): ``caching.py``.
6. Nothing goes back to the device, but with ``empty_cache``, under ``garbage_collection_threshold``, or when the device
   is full: ``releasing.py``. Then: first, only with ``max_split_size_mb``, the smallest unsplit block that would do;
   then every segment without a used block; then the request fails with torch's sentence: ``full.py``.

What is not in torch's source is the device: ``device.py`` stands for it, and a replay gives it recorded addresses.

Left out: CUDA graphs and ``MemPool`` (private pools), ``throw_on_cudamalloc_oom`` (refused), several devices, sharing
between processes, the statistics by pool, and ``cudaMallocAsync``. A device is taken to give all of its free memory, to
the byte; a real one gives pages of 2 MiB, and sometimes refuses the last of them.
"""

from minigpt.memory.predicted.allocator.blocks import Block, Pool, Segment
from minigpt.memory.predicted.allocator.caching import Allocator
from minigpt.memory.predicted.allocator.device import Device
from minigpt.memory.predicted.allocator.full import OutOfMemoryError
from minigpt.memory.predicted.allocator.options import Options
from minigpt.memory.predicted.allocator.statistics import Counter, Statistics

__all__ = ["Allocator", "Block", "Counter", "Device", "Options", "OutOfMemoryError", "Pool", "Segment", "Statistics"]
