"""The cycle collector rests where it is told to, and is afterwards as it was."""

import gc

import pytest

from minigpt.memory.collector import at_rest


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def collects(request):
    """Whether the collector is on before; it is on again after the test."""
    gc.enable() if request.param else gc.disable()
    yield request.param
    gc.enable()


def test_the_collector_rests_inside_and_is_as_it_was_afterwards(collects):
    with at_rest():
        assert not gc.isenabled()
    assert gc.isenabled() == collects


def test_an_error_ends_the_rest(collects):
    with pytest.raises(ValueError, match="^wrong$"), at_rest():
        raise ValueError("wrong")
    assert gc.isenabled() == collects


def test_what_was_young_before_stays_young():
    made = [[]]
    with at_rest():
        pass
    assert any(one is made for one in gc.get_objects(generation=0))


def test_a_cycle_that_was_made_inside_is_found_afterwards():
    class Cycle:
        pass

    with at_rest():
        one = Cycle()
        one.itself = one
        del one
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Cycle]
