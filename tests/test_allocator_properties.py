"""The caching allocator over random requests: against brute force, block by block, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.memory.predicted.allocator import Allocator, Device, Options, OutOfMemoryError
from minigpt.memory.predicted.allocator.blocks import FREE, UNMAPPED, USED
from tests.allocator_reference import MIB, Full, Reference

NEAR = [512, 4096, MIB, 2 * MIB, 8 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]
SIZES = st.one_of(
    st.integers(1, 3 * MIB),
    st.integers(1, 70 * MIB),
    st.integers(1, 70).map(lambda size: size * MIB),  # 25 MiB leave exactly 1 MiB of their segment
    st.tuples(st.sampled_from(NEAR), st.integers(-1025, 1025)).map(lambda pair: max(1, sum(pair))),
)
STREAMS = st.integers(0, 2)
WHICH = st.integers(0, 1000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), SIZES, STREAMS),
        st.tuples(st.just("allocate"), SIZES, st.just(0)),
        st.tuples(st.just("free"), WHICH),
        st.tuples(st.just("free"), WHICH),
        st.tuples(st.just("record_stream"), WHICH, STREAMS),
        st.tuples(st.just("finish"), STREAMS),
        st.tuples(st.just("empty_cache")),
    ),
    max_size=60,
)
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:[1:4,32:8,>:2]",
    "large_segment_size_mb:14",
    "expandable_segments:True,large_segment_size_mb:12,roundup_power2_divisions:4",
    "expandable_segments:True,max_split_size_mb:32",
]


def state(allocator: Allocator) -> set[tuple[int, int, str]]:
    blocks = [block for segment in allocator.segments.values() for block in segment.blocks()]
    return {(block.address, block.size, block.state) for block in blocks if block.state != UNMAPPED}


def check_invariants(allocator: Allocator) -> None:
    """Blocks tile their segments; no two neighbours are free; pools hold the free blocks, sorted; sums are the
    counters."""
    pooled = {id(block) for pool in (allocator.small, allocator.large) for block in pool.freed()}
    sums = {"allocated": 0, "active": 0, "requested": 0, "reserved": 0}
    ends = 0
    for segment in sorted(allocator.segments.values(), key=lambda each: each.address):
        assert segment.address >= ends, "two segments overlap"
        at, before = segment.address, None
        for block in segment.blocks():
            assert block.address == at and block.size > 0
            assert block.prev is before and block.segment is segment
            assert before is None or not (before.state == block.state and block.state in (FREE, UNMAPPED))
            assert (id(block) in pooled) == (block.state == FREE)
            assert block.size % 512 == 0 and block.requested <= block.size
            sums["allocated"] += block.size * (block.state == USED)
            sums["active"] += block.size * (block.state not in (FREE, UNMAPPED))
            sums["requested"] += block.requested
            sums["reserved"] += block.size * (block.state != UNMAPPED)
            at, before = at + block.size, block
        assert at == segment.address + segment.size
        ends = at
    for pool in (allocator.small, allocator.large):
        for blocks in [*pool.free.values(), *pool.unmapped.values()]:
            assert [each[:-1] for each in blocks] == sorted(each[:-1] for each in blocks)
    for name, total in sums.items():
        counter = getattr(allocator.statistics, name)
        assert counter.current == total <= counter.peak, name
    assert allocator.device.taken == sums["reserved"]


@pytest.mark.parametrize("words", SETTINGS)
@given(steps=STEPS, capacity=st.sampled_from([None, 64 * MIB, 150 * MIB, 400 * MIB]))
@settings(max_examples=60, deadline=None)
def test_every_block_is_where_brute_force_puts_it(words, steps, capacity):
    options = Options.parse(words)
    allocator, reference = Allocator(options, Device(capacity)), Reference(options, Device(capacity))
    live, waiting, passed = [], [], []
    for name, *numbers in steps:
        if name in ("free", "record_stream") and not live:
            continue
        if name == "allocate":
            reference.look(passed)
            passed = []
            try:
                theirs = reference.allocate(*numbers)
            except Full:
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(*numbers)
                waiting = []  # a full device waits for all streams
            else:
                ours = allocator.allocate(*numbers)
                assert (ours.address, ours.size) == (theirs.address, theirs.size)
                live.append((ours, theirs, numbers[1]))
                waiting = [each for each in waiting if any(each[0] in place.used for place in reference.places)]
        elif name == "free":
            ours, theirs, _ = live.pop(numbers[0] % len(live))
            allocator.free(ours)
            reference.free(theirs)
            waiting += [(theirs, stream) for stream in theirs.streams]
        elif name == "record_stream":
            ours, theirs, own = live[numbers[0] % len(live)]
            allocator.record_stream(ours, numbers[1])
            if numbers[1] != own:
                theirs.streams.add(numbers[1])
        elif name == "finish":
            allocator.finish(numbers[0])
            passed += [each for each in waiting if each[1] == numbers[0]]
            waiting = [each for each in waiting if each[1] != numbers[0]]
        else:
            allocator.empty_cache()
            reference.empty_cache()
            waiting, passed = [], []
        assert state(allocator) == reference.blocks()
        check_invariants(allocator)
    allocator.empty_cache()
    for segment in allocator.segments.values():
        states = {block.state for block in segment.blocks()}
        assert USED in states or states == {UNMAPPED}, "a segment that nobody uses was kept"
    for block, _, _ in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.statistics.reserved.current == 0 and not state(allocator)
    check_invariants(allocator)
