"""The caching allocator's rules, each by a small case worked by hand from torch's source."""

from __future__ import annotations

import pytest

from minigpt.memory.predicted.allocator import Allocator, Block, Options
from minigpt.memory.predicted.allocator.restoring import adopt

MIB = 2**20


def reserved(allocator: Allocator) -> float:
    return allocator.statistics.reserved.current / MIB


def allocated(allocator: Allocator) -> float:
    return allocator.statistics.allocated.current / MIB


def freed(allocator: Allocator, *sizes: float) -> list[Block]:
    """Free blocks of these sizes in MiB, each in a segment of its own."""
    blocks = [allocator.allocate(int(size * MIB)) for size in sizes]
    for block in blocks:
        allocator.free(block)
    return blocks


def test_a_block_that_nothing_is_split_from_counts_whole():
    """25 MiB take a segment of 26; the rest, 1 MiB, is not more than 1 MiB: it stays, and torch counts it."""
    allocator = Allocator()
    blocks = [allocator.allocate(25 * MIB) for _ in range(128)]
    assert {block.size for block in blocks} == {26 * MIB}
    assert (allocated(allocator), reserved(allocator)) == (128 * 26, 128 * 26)
    assert allocator.statistics.requested.current == 128 * 25 * MIB
    assert allocator.statistics.segments.current == 128


def test_one_small_segment_holds_what_fits_and_then_comes_the_next():
    allocator = Allocator()
    first, second = allocator.allocate(MIB), allocator.allocate(MIB)
    assert second.address == first.address + MIB and reserved(allocator) == 2
    allocator.allocate(1)
    assert reserved(allocator) == 4 and allocated(allocator) == 2 + 512 / MIB


def test_requests_of_one_to_ten_mib_share_segments_of_twenty():
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(6)]
    assert [block.address - blocks[0].address for block in blocks[:5]] == [0, 4 * MIB, 8 * MIB, 12 * MIB, 16 * MIB]
    assert reserved(allocator) == 40


def test_the_smallest_block_that_fits_is_taken():
    allocator = Allocator()
    freed(allocator, 50, 30, 40)
    assert allocator.allocate(35 * MIB).size == 35 * MIB and reserved(allocator) == 120
    rests = sorted(block.size // MIB for block in allocator.large.freed())
    assert rests == [5, 30, 50]


def test_of_equal_blocks_the_lower_address_is_taken():
    allocator = Allocator()
    first, second = freed(allocator, 30, 30)
    assert second.address < first.address  # segments go down
    assert allocator.allocate(30 * MIB).address == second.address


def test_small_requests_do_not_take_large_blocks_nor_large_ones_small():
    allocator = Allocator()
    freed(allocator, 30, 1)
    allocator.allocate(2 * MIB)  # in the block of 30
    allocator.allocate(MIB)  # in the segment of 2
    assert reserved(allocator) == 32


def test_a_stream_does_not_take_what_another_freed():
    allocator = Allocator()
    freed(allocator, 30)
    other = allocator.allocate(30 * MIB, stream=7)
    assert reserved(allocator) == 60
    allocator.free(other)
    assert allocator.allocate(28 * MIB, stream=7).address == other.address


def test_a_freed_block_joins_its_neighbours_on_both_sides():
    allocator = Allocator()
    left, middle, right, last = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.free(left)
    allocator.free(right)
    assert [block.size // MIB for block in allocator.large.freed()] == [5, 5]
    allocator.free(middle)
    assert [block.size // MIB for block in allocator.large.freed()] == [15]
    allocator.free(last)
    assert [block.size // MIB for block in allocator.large.freed()] == [20]
    assert allocator.allocate(20 * MIB).address == left.address


def test_an_unsplit_rest_comes_back_with_its_block():
    allocator = Allocator()
    freed(allocator, 25)
    block = allocator.allocate(24 * MIB)  # of 26: 2 MiB are split off
    assert block.size == 24 * MIB and allocator.inactive_split == 2 * MIB
    allocator.free(block)
    assert allocator.allocate(25 * MIB).size == 26 * MIB


def test_a_longer_batch_finds_no_block_and_the_shorter_ones_stay():
    """Fragmentation: three blocks of 30 MiB are cached, and one of 32 needs a new segment all the same."""
    allocator = Allocator()
    freed(allocator, 30, 30, 30)
    allocator.allocate(32 * MIB)
    assert (allocated(allocator), reserved(allocator)) == (32, 122)


def test_peaks_are_kept_with_the_event_that_reached_them():
    allocator = Allocator()
    first = allocator.allocate(30 * MIB)  # event 1
    second = allocator.allocate(40 * MIB)  # event 2
    allocator.free(first)  # event 3
    allocator.allocate(50 * MIB)  # event 4
    allocator.free(second)  # event 5
    for name, current, peak, event in (("allocated", 50, 90, 4), ("requested", 50, 90, 4), ("reserved", 120, 120, 4)):
        counter = getattr(allocator.statistics, name)
        assert (counter.current, counter.peak, counter.event) == (current * MIB, peak * MIB, event), name
    assert repr(counter) == "Counter(current=125,829,120, peak=125,829,120, event=4)"


def test_empty_cache_gives_back_only_segments_that_nobody_uses():
    allocator = Allocator()
    freed(allocator, 30, 1)
    kept, gone = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)  # both in the block of 30
    allocator.free(gone)
    allocator.empty_cache()
    assert reserved(allocator) == 30 and allocator.inactive_split == 26 * MIB
    assert allocator.statistics.segments.current == 1
    allocator.free(kept)
    allocator.empty_cache()
    assert reserved(allocator) == 0 and allocator.statistics.reserved.peak == 32 * MIB


def test_a_block_that_another_stream_uses_waits_for_it():
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    assert allocated(allocator) == 0 and allocator.statistics.active.current == 30 * MIB
    assert block.state == "active_awaiting_free"
    other = allocator.allocate(30 * MIB)
    assert other.address != block.address
    allocator.free(other)
    allocator.finish(1)
    assert allocator.statistics.active.current == 30 * MIB, "it is noticed at the next request, not before"
    allocator.allocate(1)
    assert allocator.statistics.active.current == 512 and reserved(allocator) == 62


def test_a_blocks_own_stream_is_no_reason_to_wait():
    allocator = Allocator()
    block = allocator.allocate(30 * MIB, stream=3)
    allocator.record_stream(block, 3)
    allocator.free(block)
    assert block.state == "inactive" and allocator.statistics.active.current == 0


def test_a_block_that_two_streams_use_waits_for_both():
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    for stream in (1, 2, 1):
        allocator.record_stream(block, stream)
    allocator.free(block)
    allocator.finish(2)
    allocator.allocate(1)
    assert block.state == "active_awaiting_free"
    allocator.finish(0)
    allocator.finish()
    assert allocator.allocate(30 * MIB).address == block.address


def test_what_is_freed_after_finish_is_not_done_yet():
    allocator = Allocator()
    blocks = [allocator.allocate(30 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.record_stream(block, 1)
    allocator.free(blocks[0])
    allocator.finish(1)
    allocator.free(blocks[1])
    allocator.allocate(1)
    assert [block.state for block in blocks] == ["inactive", "active_awaiting_free"]


def test_empty_cache_waits_for_all_streams():
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.empty_cache()
    assert reserved(allocator) == 0


def test_oversize_blocks_are_neither_split_nor_given_to_small_requests():
    """``max_split_size_mb:32``: the block of 40 serves requests from 32 MiB on, up to 20 MiB smaller than itself."""
    allocator = Allocator(Options(max_split_size_mb=32))
    freed(allocator, 40, 100)
    taken = allocator.allocate(34 * MIB)
    assert taken.size == 40 * MIB
    assert allocator.allocate(8 * MIB).size == 8 * MIB and reserved(allocator) == 160
    assert allocator.allocate(80 * MIB).size == 80 * MIB, "100 is not under 80 + 20"
    assert reserved(allocator) == 240


def test_a_block_of_just_the_limit_is_oversize_too():
    allocator = Allocator(Options(max_split_size_mb=32))
    freed(allocator, 32)
    allocator.allocate(8 * MIB)
    assert reserved(allocator) == 52
    assert allocator.allocate(32 * MIB).size == 32 * MIB and reserved(allocator) == 52


def test_rounding_to_powers_of_two_lets_a_longer_batch_reuse_the_block():
    allocator = Allocator(Options(roundup_power2_divisions=4))
    freed(allocator, 33)
    block = allocator.allocate(38 * MIB)
    assert block.size == 40 * MIB and reserved(allocator) == 40


def test_a_recorded_state_is_taken_over():
    """A segment of 20 MiB with 4 MiB in use at its start and 2 MiB in its middle."""
    allocator = Allocator()
    first, second = adopt(allocator, [(0, 20 * MIB)], [(8 * MIB, 2 * MIB, 100), (0, 4 * MIB, 4 * MIB)], small=False)
    assert (first.address, second.address, second.requested) == (0, 8 * MIB, 100)
    assert [block.size // MIB for block in allocator.large.freed()] == [4, 10]
    assert (allocated(allocator), reserved(allocator)) == (6, 20)
    assert allocator.allocate(2 * MIB).address == 4 * MIB
    allocator.free(second)
    assert allocator.allocate(12 * MIB).address == 6 * MIB


def test_the_peaks_of_a_recorded_programme():
    """Plain attention alone, forward and backward from an empty GPU: batch 8, 4,096 tokens, 16 wide, float32.

    Recorded with torch 2.6 by github.com/silmont2000/assignment2-systems (mem_snapshot.pickle, MIT): at most
    3,249,144,832 bytes allocated and 3,781,165,056 reserved. What it asked for, and which of its blocks it freed when,
    by number: r is a matrix of 8 x 4096 x 16, s the scores, l one number a row, i one int64 a row, w cuBLAS's workspace
    (one a thread), f and t the loss, its gradient and the scratch of its sum.
    """
    programme = (
        "r r r s w s -3 l i s s -8 l s -6 r -5 f t f -15 -14 f r r w -18 s r -21 -11 s s s s -24 -23 -22 s l -25 -20 "
        "-10 -27 s -26 -9 s l -29 s -30 -7 -31 s -28 r r -32 r -33 -16"
    )
    rows = 8 * 4096
    sizes = {"r": rows * 16 * 4, "s": rows * 4096 * 4, "l": rows * 4, "i": rows * 8, "w": 8_519_680, "f": 4, "t": 256}
    allocator, blocks = Allocator(), []
    for word in programme.split():
        if word in sizes:
            blocks.append(allocator.allocate(sizes[word]))
        else:
            allocator.free(blocks[-int(word)])
    assert allocator.statistics.allocated.peak == 3_249_144_832
    assert allocator.statistics.reserved.peak == 3_781_165_056
    assert sorted(segment.size // MIB for segment in allocator.segments.values()) == [2, 20, *[512] * 7]


@pytest.mark.parametrize("used", [[(18 * MIB, 4 * MIB, 1)], [(0, 4 * MIB, 1), (2 * MIB, 4 * MIB, 1)]])
def test_a_state_that_cannot_be_is_named(used):
    with pytest.raises(ValueError, match="is in use twice, or outside of its segment"):
        adopt(Allocator(), [(0, 20 * MIB)], used, small=False)


def test_misuse_is_named():
    allocator = Allocator()
    with pytest.raises(ValueError, match="nbytes is 0; it must be at least 1"):
        allocator.allocate(0)
    block = allocator.allocate(MIB)
    allocator.free(block)
    with pytest.raises(ValueError, match=r"block is Block\(0x.*, 2,097,152, inactive\); it must be in use"):
        allocator.free(block)
    with pytest.raises(ValueError, match="it must be in use"):
        allocator.record_stream(block, 1)
    with pytest.raises(ValueError, match="per_process_memory_fraction is 0.5; it must be 1 where no capacity is known"):
        Allocator(Options(per_process_memory_fraction=0.5))
