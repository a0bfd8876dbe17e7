"""The pictures: what is drawn is what was given, nothing covers anything, and the words name it all."""

import io

import matplotlib
import pytest
from matplotlib.colors import to_hex

from minigpt.guess import guess
from minigpt.memory import BUCKETS, Ledger, StepMemory, TrainingPlan, predict
from minigpt.memory.plots import COLORS, METHODS, describe, finish, method_color, new_axes, stacked_bars, timeline
from minigpt.memory.units import GB, MB
from minigpt.model import GPTConfig

FULL = Ledger(13 * GB, 13 * GB, 27 * GB, 12 * GB, 2 * GB)
LORA = StepMemory(Ledger(), Ledger(14 * GB, GB, 2 * GB, 18 * GB), "forward", frozen=13 * GB)
CASES = {"full": FULL, "LoRA": LORA}


@pytest.fixture(autouse=True)
def closed():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    matplotlib.pyplot.close("all")


def boxes(axes, wanted):
    """The rectangles on the page of the texts that ``wanted`` picks."""
    axes.figure.savefig(io.BytesIO())  # as a reader sees it
    return {text.get_text(): text.get_window_extent() for text in axes.texts if wanted(text.get_text())}


def test_a_bar_is_as_long_as_its_bytes_in_the_colours_of_the_buckets():
    axes = stacked_bars(CASES, "a finding")
    bars = [bar for bar in axes.patches if not bar.get_hatch()]
    widths = [(bar.get_width(), to_hex(bar.get_facecolor())) for bar in bars]
    both = [ledger.as_dict() for ledger in (FULL, LORA.peak)]
    assert widths == [(n / GB, COLORS[b].lower()) for case in both for b, n in case.items() if n]
    assert axes.get_xlabel() == "memory (GB)" and axes.get_title(loc="left") == "a finding"


def test_hatching_is_frozen_weights_and_stands_in_the_legend():
    axes = stacked_bars(CASES, "a finding")
    (hatched,) = [bar for bar in axes.patches if bar.get_hatch()]
    assert (hatched.get_x(), hatched.get_width()) == (0, 13.0)
    assert round(hatched.get_y() + hatched.get_height() / 2) == 1  # LoRA's row
    entries = {text.get_text(): patch for text, patch in zip(axes.get_legend().texts, axes.get_legend().get_patches())}
    assert entries["frozen weights"].get_hatch() and not any(entries[b].get_hatch() for b in BUCKETS)
    assert "frozen" not in str([text.get_text() for text in stacked_bars({"a": FULL}, "t").get_legend().texts])


def test_a_tick_stands_where_the_meter_read_and_a_mark_where_the_reader_guessed():
    axes = stacked_bars(CASES, "t", measured={"LoRA": 34 * GB, "full": FULL}, guess={"full": guess(50, "GB")})
    tick = {round(sum(line.get_ydata()) / 2): line for line in axes.lines if line.get_color() == "black"}
    assert list(tick[1].get_xdata()) == [34.0, 34.0] and list(tick[0].get_xdata()) == [67.0, 67.0]
    (mark,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert (*mark.get_xdata(), *mark.get_ydata()) == (50.0, 0)
    assert {"measured", "your guess"} <= {text.get_text() for text in axes.get_legend().texts}


def test_a_guess_far_too_large_is_an_arrow_at_the_edge_and_leaves_the_scale():
    axes = stacked_bars({"full": FULL}, "t", guess=guess(5000, "GB"))
    (mark,) = [line for line in axes.lines if line.get_marker() == ">"]
    assert mark.get_xdata()[0] < axes.get_xlim()[1] == pytest.approx(1.17 * 67)


@pytest.mark.parametrize("at", [24, 25.8, 58, 62, 66, 67, 68, 70, 72, 76, 80, 90])
def test_no_label_is_crossed_by_a_limit_a_tick_or_a_guess(at):
    limits = {"a card": int(at * GB), "another card": int((at + 7) * GB), "a third": 40 * GB}
    axes = stacked_bars(CASES, "t", limits=limits, measured={"full": 68 * GB}, guess={"LoRA": guess(at, "GB")})
    labels = boxes(axes, lambda text: text.endswith(" GB"))
    assert len(labels) == 2
    for words, box in labels.items():
        row = 0 if words == "67.0 GB" else 1
        marks = [n / GB for n in limits.values()] + ([68.0] if row == 0 else [at])
        for mark in marks:
            x = axes.transData.transform((mark, row))[0]
            assert not box.x0 - 1 < x < box.x1 + 1, (words, mark)


@pytest.mark.parametrize("at", [35.5, 36, 38, 41])
def test_the_bars_number_is_never_right_of_a_guess_beyond_the_bar(at):
    """There it would be read as the guess's."""
    axes = stacked_bars(CASES, "t", guess={"LoRA": guess(at, "GB")})
    box = boxes(axes, lambda text: text == "35.0 GB")["35.0 GB"]
    assert box.x1 < axes.transData.transform((at, 1))[0] and box.x1 < axes.transData.transform((35, 1))[0]


def test_beside_a_bar_too_short_for_its_number_the_number_says_that_it_is_the_bars():
    axes = stacked_bars({"full": FULL, "small": Ledger(weights=GB)}, "t", guess={"small": guess(3, "GB")})
    (box,) = boxes(axes, lambda text: text == "bar 1.00 GB").values()
    assert axes.transData.transform((3, 1))[0] < box.x0


def test_names_of_near_limits_do_not_meet():
    limits = {"RTX 3090": int(25.8 * GB), "24 GB card": 24 * GB, "L4": 25 * GB}
    named = list(boxes(stacked_bars(CASES, "t", limits=limits), limits.__contains__).values())
    assert len(named) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(named) for b in named[:i])


def test_words_name_every_case_with_its_values():
    axes = stacked_bars(CASES, "a finding", measured={"LoRA": 34 * GB}, guess={"full": guess(50, "GB")},
                        limits={"a card": 80 * GB})  # fmt: skip
    words = describe(axes)
    assert words.startswith("a finding. ") and describe(axes.figure) == words
    assert "full: 67.0 (weights 13.0, gradients 13.0, optimizer 27.0, activations 12.0, temporary 2.00" in words
    assert "your guess 50.0" in words and "of the weights 13.0 frozen, measured 34.0)" in words
    assert "Lines: a card at 80.0." in words


def test_a_picture_drawn_by_hand_is_told_by_its_labelled_lines():
    axes = new_axes(4, 3)
    axes.plot([1, 2, 3], [5, 9, 7], label="loss")
    axes.plot([1, 2], [0, 0])
    axes.axhline(8, label="before")
    axes.axvline(2, label="here")
    finish(axes, "a finding", "step", "bits")
    assert describe(axes) == "a finding. bits by step; loss: 5 at 1, 7 at 3; before at 8; here at 2."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(cases={}), "nothing is to be drawn"),
        (dict(measured={"Lora": FULL}), "measured has 'Lora', which is no case; the cases are full, LoRA"),
        (dict(guess={"QLoRA": guess(1, "GB")}), "guess has 'QLoRA'"),
        (dict(guess=guess(1, "GB")), "guess is one for 2 cases"),
        (dict(guess={"full": guess(1, "ratio")}), "unit is 'ratio'"),
    ],
)
def test_what_names_no_case_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        stacked_bars(**{"cases": CASES, "title": "t"} | options)


def test_the_colours_of_methods_are_fixed_and_no_bucket_has_them():
    assert method_color("QLoRA, no preparation") == METHODS["qlora"] != method_color("LoRA r=8") == METHODS["lora"]
    assert method_color("rsLoRA") == METHODS["rslora"] and method_color("something else") == "0.5"
    assert not set(METHODS.values()) & set(COLORS.values())


def nano_step():
    return predict(GPTConfig.preset("nano"), TrainingPlan(batch=8, seq_len=256))


def test_the_arrow_of_a_timeline_has_its_tip_on_the_peak():
    step = nano_step()
    axes = timeline(step, "a finding")
    (arrow,) = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    x, y = arrow.xy
    assert y == step.peak.total / MB and step.timeline()[x][1] == step.peak
    assert {"forward", "backward", "step"} <= {text.get_text() for text in axes.texts}
    assert f"Peak {y:.1f}, {step.peak_at}" in describe(axes)


def test_the_inset_shows_the_peak_and_covers_nothing():
    step = nano_step()
    axes = timeline(step, "t")
    (window,) = axes.child_axes
    axes.figure.savefig(io.BytesIO())
    low, high = window.get_xlim()
    peak = next(i for i, (_, ledger) in enumerate(step.timeline()) if ledger == step.peak)
    assert low < peak < high and window.get_ylim()[0] < step.peak.total / MB < window.get_ylim()[1]
    (left, below), (right, _) = axes.transData.inverted().transform(window.get_window_extent().get_points())
    under = [ledger.total / MB for _, ledger in step.timeline()[int(left) : int(right) + 1]]
    assert max(under) < below
    assert not timeline(step, "t", inset=False).child_axes


def test_a_step_without_events_has_no_timeline():
    with pytest.raises(ValueError, match="step has no events"):
        timeline(LORA, "t")
