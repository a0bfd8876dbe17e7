"""A full device: what is released in which order, garbage collection, and torch's sentence, by hand and as
published."""

from __future__ import annotations

import pytest

from minigpt.memory.predicted.allocator import Allocator, Device, Options, OutOfMemoryError
from minigpt.memory.predicted.allocator.full import readable

MIB, GIB = 2**20, 2**30


def cached(allocator: Allocator, *sizes: float) -> None:
    """Leave free segments of these sizes (MiB)."""
    for block in [allocator.allocate(int(size * MIB)) for size in sizes]:
        allocator.free(block)


def segments(allocator: Allocator) -> list[int]:
    return sorted(segment.size // MIB for segment in allocator.segments.values())


def test_a_full_device_gets_back_all_that_nobody_uses_and_is_asked_again():
    allocator = Allocator(device=Device(100 * MIB, context=10 * MIB))
    cached(allocator, 20, 24)
    allocator.allocate(30 * MIB)
    allocator.allocate(40 * MIB)  # 16 MiB are left: the two cached ones go, though one would do
    assert segments(allocator) == [30, 40]
    assert (allocator.statistics.retries, allocator.statistics.ooms) == (1, 0)
    assert allocator.device.free == 20 * MIB


def test_what_is_split_cannot_go_back_and_the_sentence_counts_it():
    """40 MiB are reserved, 10 of them in use; 70 do not fit the 50 that are left, though 80 are free in all."""
    allocator = Allocator(device=Device(100 * MIB, context=6 * MIB, others=4 * MIB))
    cached(allocator, 40)
    block = allocator.allocate(10 * MIB)
    with pytest.raises(OutOfMemoryError) as error:
        allocator.allocate(70 * MIB - 100)
    assert str(error.value).startswith(
        "CUDA out of memory. Tried to allocate 70.00 MiB. GPU 0 has a total capacity of 100.00 MiB of which 50.00 MiB "
        "is free. Including non-PyTorch memory, this process has 46.00 MiB memory in use. Of the allocated memory "
        "10.00 MiB is allocated by PyTorch, and 30.00 MiB is reserved by PyTorch but unallocated. If reserved but"
    )
    assert (allocator.statistics.retries, allocator.statistics.ooms) == (1, 1)
    allocator.free(block)
    assert allocator.allocate(70 * MIB - 100).size == 70 * MIB


def test_the_sentence_is_the_one_that_a_gpu_of_95_gib_gave():
    """A run with 91.23 GiB of blocks in 92.63 GiB of segments, on a card with 94.97; 2 GiB more were asked for.

    As published with the numbers of the run; what torch printed as GPU 6 is GPU 0 here.
    """
    published = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 GiB of which 1.21 GiB "
        "is free. Including non-PyTorch memory, this process has 93.75 GiB memory in use. Of the allocated memory "
        "91.23 GiB is allocated by PyTorch, and 1.40 GiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    device = Device(int(94.966 * GIB), context=int(1.123 * GIB))
    allocator = Allocator(device=device)
    first, rest = allocator.allocate(int(92.63 * GIB) // (2 * MIB) * 2 * MIB), int(1.40 * GIB)
    allocator.free(first)
    allocator.allocate(first.size - rest)
    with pytest.raises(OutOfMemoryError) as error:
        allocator.allocate(2 * GIB)
    assert str(error.value) == published


@pytest.mark.parametrize(
    "nbytes, words",
    [
        (512, "512 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (GIB + 1, "1.00 GiB"),
    ],
)
def test_sizes_are_printed_as_torch_prints_them(nbytes, words):
    assert readable(nbytes) == words


def test_a_small_request_names_the_segment_that_it_would_have_taken():
    allocator = Allocator(device=Device(20 * MIB))
    allocator.allocate(20 * MIB)
    with pytest.raises(OutOfMemoryError, match="Tried to allocate 20.00 MiB"):
        allocator.allocate(2 * MIB)
    with pytest.raises(OutOfMemoryError, match="Tried to allocate 2.00 MiB"):
        allocator.allocate(1)


def test_a_block_that_waits_for_a_stream_is_freed_too_late_for_the_request():
    """https://github.com/pytorch/pytorch/issues/189504: the request fails, and the same one right after it succeeds.

    The wait for all streams puts the block into its pool, but torch then asks the device only. It is half of a segment,
    so it cannot go back.
    """
    allocator = Allocator(device=Device(40 * MIB))
    cached(allocator, 40)
    allocator.allocate(20 * MIB)
    waits = allocator.allocate(20 * MIB)
    allocator.record_stream(waits, 1)
    allocator.free(waits)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(20 * MIB)
    assert allocator.allocate(20 * MIB).address == waits.address


def test_oversize_blocks_go_back_first_and_the_smallest_that_is_enough():
    """``max_split_size_mb:32`` with 40, 80 and 100 MiB cached of 240: for 55, the block of 80 goes back, no other."""
    allocator = Allocator(Options(max_split_size_mb=32), Device(240 * MIB))
    cached(allocator, 40, 80, 100)
    allocator.allocate(55 * MIB)
    assert segments(allocator) == [40, 56, 100]
    assert allocator.statistics.retries == 0


def test_with_no_oversize_block_large_enough_the_largest_go_until_it_is():
    """40, 50 and 60 MiB cached of 160: for 105, 60 and 50 go back; 40 stays."""
    allocator = Allocator(Options(max_split_size_mb=32), Device(160 * MIB))
    cached(allocator, 40, 50, 60)
    allocator.allocate(105 * MIB)
    assert segments(allocator) == [40, 106]
    assert allocator.statistics.retries == 0


def test_if_oversize_blocks_are_not_enough_everything_goes():
    """24 and 40 MiB cached of 80: 40 alone is not 70, so all go back."""
    allocator = Allocator(Options(max_split_size_mb=32), Device(80 * MIB))
    cached(allocator, 24, 40)
    allocator.allocate(70 * MIB)
    assert segments(allocator) == [70] and allocator.statistics.retries == 1


def test_a_fraction_of_the_device_is_a_limit_of_its_own_and_is_named():
    allocator = Allocator(Options(per_process_memory_fraction=0.5), Device(100 * MIB))
    allocator.allocate(40 * MIB)
    words = r"60.00 MiB is free. .* 50.00 MiB allowed; Of the allocated memory 40.00 MiB"
    with pytest.raises(OutOfMemoryError, match=words):
        allocator.allocate(12 * MIB)


def collected() -> Allocator:
    """Up to 210 MiB of 420 allowed, garbage collection from 189 on. Two free blocks: 60 MiB, and, younger, 62."""
    options = Options(per_process_memory_fraction=0.5, garbage_collection_threshold=0.9)
    allocator = Allocator(options, Device(420 * MIB))
    older, younger = allocator.allocate(60 * MIB), allocator.allocate(62 * MIB)
    allocator.free(older)  # after two searches of the large pool
    allocator.allocate(12 * MIB, stream=1)
    allocator.free(younger)  # after three
    allocator.allocate(64 * MIB)  # the fourth
    return allocator


def test_garbage_collection_gives_back_what_was_not_used_for_longest():
    """198 MiB are reserved, 9 too many. At the fifth search the blocks are 3 and 2 old, 2.5 on average: the older
    goes."""
    allocator = collected()
    assert segments(allocator) == [12, 60, 62, 64]
    allocator.allocate(63 * MIB)
    assert segments(allocator) == [12, 62, 64, 64]
    assert allocator.statistics.retries == 0


def test_garbage_collection_goes_on_until_it_is_enough():
    """With a threshold of 0.2, 84 MiB, both must go: the older first, then the average of the rest is its own age."""
    allocator = collected()
    allocator.options = Options(per_process_memory_fraction=0.5, garbage_collection_threshold=0.2)
    allocator.allocate(63 * MIB)
    assert segments(allocator) == [12, 64, 64]


@pytest.mark.parametrize("threshold, left", [(0.5, [70, 100]), (0.49, [70])])
def test_garbage_collection_begins_above_its_threshold(threshold, left):
    """200 MiB are allowed and 100 reserved: just half."""
    options = Options(per_process_memory_fraction=0.5, garbage_collection_threshold=threshold)
    allocator = Allocator(options, Device(400 * MIB))
    cached(allocator, 100)
    allocator.allocate(70 * MIB, stream=1)
    assert segments(allocator) == left


def test_without_a_fraction_nothing_is_collected():
    allocator = Allocator(Options(garbage_collection_threshold=0.1), Device(420 * MIB))
    cached(allocator, 60)
    allocator.allocate(70 * MIB)
    assert segments(allocator) == [60, 70]


def test_a_device_without_sense_is_named():
    with pytest.raises(ValueError, match="others is -1; it must be at least 0"):
        Device(100, others=-1)
