"""A replayed run, its skyline and its cut: noted is what the allocator has, and drawn is what is noted."""

import io
import re

import matplotlib
import pytest

from minigpt.memory import TrainingPlan, predict
from minigpt.memory.plots import cut, describe
from minigpt.memory.plots.replayed import Replay
from minigpt.memory.plots.skyline import skyline
from minigpt.memory.predicted.allocator import Options, OutOfMemoryError
from minigpt.memory.predicted.allocator.blocks import UNMAPPED, USED
from minigpt.memory.units import MIB
from minigpt.model import GPTConfig

NANO = GPTConfig.preset("nano")
PLAN = TrainingPlan(batch=8, seq_len=128, card="T4", precision="fp32")
EXPANDABLE = Options(expandable_segments=True)


@pytest.fixture(autouse=True)
def closed():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    matplotlib.pyplot.close("all")


def there(noted, event):
    return [it for it in noted if it.born <= event and (it.died is None or it.died > event)]


@pytest.mark.parametrize("options", [None, EXPANDABLE], ids=["segments", "expandable"])
def test_what_is_noted_is_what_the_allocator_has(options):
    run = Replay(NANO, PLAN, options, capacity=150 * MIB).step(64).step(256)
    run.empty_cache()
    run.step(128)
    allocator, now = run.allocator, run.allocator.event
    blocks = [block for segment in allocator.segments.values() for block in segment.blocks()]
    used = {(block.address, block.size) for block in blocks if block.state is USED}
    assert {(held.address, held.size) for held in there(run.held, now)} == used
    mapped = sum(block.size for block in blocks if block.state is not UNMAPPED)
    assert sum(taken.size for taken in there(run.segments, now)) == mapped == allocator.statistics.reserved.current
    assert {taken.room for taken in there(run.segments, now)} == set(allocator.segments)


@pytest.mark.parametrize("options", [None, EXPANDABLE], ids=["segments", "expandable"])
def test_the_peaks_of_steps_have_the_counters_peaks_and_brute_force_s(options):
    run = Replay(NANO, PLAN, options).step(64).step(128).step(64)
    edges = [at for name, at in run.marks if name == "forward"] + [run.allocator.event]
    for noted, column in ((run.held, 0), (run.segments, 1)):
        sums = [sum(it.size for it in there(noted, event)) for event in range(run.allocator.event + 1)]
        assert [peak[column] for peak in run.peaks()] == [max(sums[a : b + 1]) for a, b in zip(edges, edges[1:])]
    counters = run.allocator.statistics.allocated.peak, run.allocator.statistics.reserved.peak
    assert tuple(map(max, zip(*run.peaks(), strict=True))) == counters


@pytest.mark.parametrize("plan", [PLAN, TrainingPlan(batch=2, seq_len=64, card="T4", method="lora", precision="fp16")])
def test_what_is_asked_for_is_what_predict_says(plan):
    """The first step, then a steady one: peaks of requested bytes, which blocks and segments do not touch."""
    run, model = Replay("smollm2-135m", plan), "smollm2-135m"
    first, steady = (predict(model, TrainingPlan(**{**vars(plan), "step": kind})) for kind in ("first", "steady"))
    assert run.step().allocator.statistics.requested.peak == first.peak.total
    assert run.step().allocator.statistics.requested.peak == max(first.peak.total, steady.peak.total)


def test_a_full_card_fails_with_torch_s_sentence_and_its_tensors_die():
    run = Replay(NANO, PLAN, capacity=60 * MIB, context=4 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate .* GPU 0 has a total capacity of 60.00 MiB"):
        run.step()
    held = run.allocator.statistics.allocated.current
    run.forget()
    assert (
        held > run.allocator.statistics.allocated.current == sum(h.size for h in there(run.held, run.allocator.event))
    )
    with pytest.raises(ValueError, match="zero_grad"):
        Replay(NANO, TrainingPlan(zero_grad="never"))


@pytest.mark.parametrize("options", [None, EXPANDABLE], ids=["segments", "expandable"])
def test_rectangles_lie_on_their_ground_and_on_no_other(options):
    run = Replay(NANO, PLAN, options).step()
    axes = skyline(run, "a finding")
    axes.figure.savefig(io.BytesIO())
    grounds, *colours = ([path.get_extents().bounds for path in drawn.get_paths()] for drawn in axes.collections)
    blocks = [bounds for colour in colours for bounds in colour]
    assert len(blocks) == len(run.held) and len(grounds) == len(run.segments)
    lived = [((held.died or run.allocator.event) - held.born) * held.size for held in run.held]
    assert sum(w * h for _, _, w, h in blocks) * MIB == pytest.approx(sum(lived))
    for at, (x, y, w, h) in enumerate(blocks):
        under = [g for g in grounds if g[0] <= x and g[1] <= y + h / 2 <= g[1] + g[3] and x + w <= g[0] + g[2]]
        assert under, "a block lies where nothing is reserved"
        for x2, y2, w2, h2 in blocks[:at]:
            together = min(x + w, x2 + w2) - max(x, x2) > 1e-6 and min(y + h, y2 + h2) - max(y, y2) > 1e-6
            assert not together, "two blocks at one place at one time"


def test_it_says_what_it_shows_and_shows_a_part():
    run = Replay(NANO, PLAN).step()
    first = run.allocator.event
    run.step()
    axes = skyline(run, "a finding", first=first)
    assert axes.get_xlim() == (first, run.allocator.event)
    peaks = run.allocator.statistics
    assert f"at most {peaks.allocated.peak / MIB:,.0f} MiB allocated" in describe(axes)
    assert f"{len(run.allocator.segments)} segments" in describe(axes)
    assert "the bar: 20 MiB" in axes.get_ylabel() or "the bar: 10 MiB" in axes.get_ylabel()
    with pytest.raises(ValueError, match="nothing is reserved"):
        skyline(run, "t", first=0, last=0)


def test_a_cut_has_every_block_of_its_event():
    run = Replay(NANO, PLAN).step()
    event = run.allocator.statistics.allocated.event
    said, drawn = cut.words(run, event), cut.picture(run, event)
    assert f"{run.allocator.statistics.allocated.peak / MIB:,.1f} MiB allocated" in said and "backward" in said
    assert drawn.count("<rect") == len(there(run.held, event)) + len(there(run.segments, event))
    assert f'aria-label="{said}"' in drawn
    right = [float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)%" y="\d+" width="([\d.]+)%"', drawn)]
    assert max(right) == pytest.approx(100, abs=0.01)
    panel = cut.Panel(run, event)
    panel.slider.value = run.allocator.event
    assert panel.html.value == cut.picture(run, run.allocator.event)
    with pytest.raises(ValueError, match=f"from 1 to {run.allocator.event}"):
        cut.cut_panel(run, run.allocator.event + 1)


@pytest.mark.parametrize("somebody", [True, False])
def test_a_slider_for_somebody_and_a_still_picture_for_nobody(monkeypatch, somebody):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(cut, "somebody_is_there", lambda: somebody)
    run = Replay(NANO, PLAN).step()
    cut.cut_panel(run)
    (data,) = shown
    assert data["text/plain"] == cut.words(run, run.allocator.statistics.allocated.event)
    assert ("application/vnd.jupyter.widget-view+json" in data) == somebody
    assert somebody or cut.STILL in data["text/html"] and "<svg" in data["text/html"]
