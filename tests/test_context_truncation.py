"""Smart truncation by its properties, and by brute force where a document is small."""

from __future__ import annotations

from itertools import product
from math import log2, prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minigpt.context.truncation import keep, spans, truncate

lengths_of = st.lists(st.integers(0, 200), min_size=1, max_size=8)
half_lives = st.sampled_from([0.25, 0.5, 1, 2, 3.7, 1000])


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of, share=st.floats(0.01, 1.5), half_life=half_lives, floor=st.integers(0, 30))
def test_the_budget_is_met_exactly_and_the_best_tokens_have_it(lengths, share, half_life, floor):
    """No token that is left out is worth more than one that is dealt out: with the right sum, there is no other way."""
    budget = max(1, int(share * sum(lengths)))
    lowest = [min(floor, length) for length in lengths]
    assume(sum(lowest) <= budget)
    kept = keep(lengths, budget, half_life, floor)
    assert sum(kept) == min(budget, sum(lengths))
    assert all(low <= k <= length for low, k, length in zip(lowest, kept, lengths))
    ages = range(len(lengths) - 1, -1, -1)
    dealt = [age / half_life + log2(k) for age, k, low in zip(ages, kept, lowest) if k > low]
    left = [age / half_life + log2(k + 1) for age, k, length in zip(ages, kept, lengths) if k < length]
    assert not dealt or not left or max(dealt) <= min(left)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), budget=st.integers(1, 12), half_life=half_lives)
def test_against_every_way_to_deal(lengths, budget, half_life):
    """D'Hondt's is the way whose product of (weight ** kept / kept!) is largest."""
    budget = min(budget, max(1, sum(lengths)))

    def worth(kept):
        factorial = prod(prod(range(1, k + 1)) for k in kept)
        return -sum(k * age / half_life for age, k in enumerate(reversed(kept))) - log2(factorial)

    ways = [way for way in product(*(range(n + 1) for n in lengths)) if sum(way) == min(budget, sum(lengths))]
    assert worth(keep(lengths, budget, half_life)) == pytest.approx(max(map(worth, ways)), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 300), parts=st.integers(2, 12), share=st.floats(0.05, 0.99), half_life=half_lives)
def test_newer_parts_of_the_same_length_keep_no_less(size, parts, share, half_life):
    kept = keep([size] * parts, max(1, int(share * size * parts)), half_life)
    assert kept == sorted(kept)


def test_proportions_are_the_weights():
    kept = keep([10**5] * 4, 15000, half_life=1)
    assert kept == [1000, 2000, 4000, 8000]
    assert keep([100, 10**5], 10000, 1) == [100, 9900]  # a full part leaves its share to the others
    assert keep([1000] * 40, 4000, 1)[:25] == [0] * 25  # pure decay forgets the beginning
    assert keep([1000] * 40, 4000, 1, floor=50)[:25] == [50] * 25


@settings(max_examples=40, deadline=None)
@given(lengths=lengths_of, share=st.floats(0.01, 1.2), half_life=half_lives)
def test_spans_are_the_beginnings_and_ends_of_parts_in_order(lengths, share, half_life):
    budget = max(1, int(share * sum(lengths)))
    kept = keep(lengths, budget, half_life)
    found = spans(lengths, kept)
    stay = [token for start, stop in found for token in range(start, stop)]
    assert stay == sorted(set(stay)) and len(stay) == sum(kept)
    assert all(one[1] < two[0] for one, two in zip(found, found[1:]))
    begin = 0
    for length, k in zip(lengths, kept):
        own = {token - begin for token in stay if begin <= token < begin + length}
        assert own == set(range(k - k // 2)) | set(range(length - k // 2, length))
        begin += length


def test_truncate_takes_the_tokens_of_the_spans():
    parts = [[1, 2, 3, 4, 5, 6, 7, 8], [10, 11, 12, 13, 14, 15]]
    assert truncate(parts, 14, 1) == truncate(parts, 99, 1) == parts[0] + parts[1]
    assert truncate(parts, 9, 1) == [1, 2, 8, 10, 11, 12, 13, 14, 15]
    assert truncate(parts, 4, 1, floor=2) == [1, 8, 10, 15]


def test_what_is_refused():
    for arguments, words in (
        (([3], 0, 1), "budget is 0"),
        (([3, -1], 2, 1), r"lengths\[1\] is -1"),
        (([3], 2, 0), "half_life is 0"),
        (([3], 2, True), "half_life is True"),
        (([3], 2, float("nan")), "half_life is nan"),
        (([3], 2, 1, -1), "floor is -1"),
        (([3, 3], 3, 1, 2), "floor is 2; 2 parts of it do not fit into a budget of 3"),
    ):
        with pytest.raises(ValueError, match=words):
            keep(*arguments)
    for kept in ([1], [4, 0], [-1, 0], [1.5, 1], ["1", 1], [None, 1]):
        with pytest.raises(ValueError, match=r"kept(\[0\])? is"):
            spans([3, 3], kept)
