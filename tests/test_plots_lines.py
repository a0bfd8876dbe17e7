"""Plain bars, lines, losses, lives and NF4's bell: what is drawn is what was given, and the words name it all."""

import io
from math import erf, sqrt

import matplotlib
import pytest
from matplotlib.colors import to_hex

from minigpt.guess import guess
from minigpt.memory.plots import COLORS, METHODS, bars, describe, finish, lines, lives, losses, new_axes
from minigpt.memory.plots.nf4 import areas, bell
from minigpt.nf4 import NF4_CODE, derive_code

RATIOS = {"folk": 27.1, "LoRA": 25.3, "QLoRA peak": 4.3}
XY = {"LoRA": ([1, 2, 4], [8, 7, 6]), "LoRA, no autocast": ([1, 2, 4], [8, 6, 4]), "QLoRA": ([1, 2, 4], [27, 9, 3])}


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


def drawn(axes):
    """The page, drawn, and the boxes of its texts."""
    axes.figure.savefig(io.BytesIO())
    return {text.get_text(): text.get_window_extent() for text in axes.texts}


def test_plain_bars_are_as_long_as_their_values():
    axes = bars(RATIOS, "a finding", "a ratio", unit="×", colors={"folk": "#123456"}, lines={"27×": 27})
    assert [bar.get_width() for bar in axes.patches] == list(RATIOS.values())
    colors = [to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
    assert colors == ["#123456", METHODS["lora"], METHODS["qlora"]]
    boxes, line = drawn(axes), axes.transData.transform((27, 0))[0]
    assert {"27.1×", "25.3×", "4.30×"} <= set(boxes)
    assert not any(box.x0 - 1 < line < box.x1 + 1 for words, box in boxes.items() if words != "27×")
    assert "LoRA: 25.3×; QLoRA peak: 4.30×; line 27× at 27.0×." in describe(axes)


def test_a_guess_of_a_ratio_is_a_mark_of_its_value():
    axes = bars(RATIOS, "t", "x", guess={"QLoRA peak": guess(16, "ratio")})
    (mark,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert (*mark.get_xdata(), *mark.get_ydata()) == (16, 2)


def test_lines_of_one_method_share_its_colour_and_differ_in_dashes():
    axes = lines(XY, "a finding", "rank r", "bytes", log="x", across={"QLoRA, folk": 27}, down={"here": 3},
                 guess=(2, guess(5, "ratio")))  # fmt: skip
    shown = {line.get_label(): line for line in axes.lines}
    for label, (xs, ys) in XY.items():
        assert (list(shown[label].get_xdata()), list(shown[label].get_ydata())) == (xs, ys)
    assert [shown[label].get_color() for label in XY] == [METHODS["lora"]] * 2 + [METHODS["qlora"]]
    assert shown["LoRA"].get_linestyle() != shown["LoRA, no autocast"].get_linestyle()
    assert (*shown["your guess"].get_xdata(), *shown["your guess"].get_ydata()) == (2, 5)
    assert "QLoRA: 27 at 1, 9 at 2, 3 at 4; line QLoRA, folk at 27; line here at 3; your guess 5× at 2." in describe(
        axes
    )


def test_logarithmic_axes_have_plain_numbers():
    axes = lines({"a": ([1, 64, 1024], [0.03, 1, 20000])}, "t", "x", "y", log="xy")
    axes.figure.savefig(io.BytesIO())
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "64", "1,024"]
    shown = {text.get_text() for text in axes.get_yticklabels()}
    assert {"0.1", "1", "10,000"} <= shown and not any("10^" in words or "$" in words for words in shown)


def test_names_of_near_levels_do_not_meet():
    axes = lines(XY, "t", "x", "y", across={"one": 7.5, "two": 7.9, "three": 8.0})
    boxes = [drawn(axes)[name] for name in ("one", "two", "three")]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lines({}, "t", "x", "y"), "series is empty"),
        (lambda: lines(XY, "t", "x", "y", log="yx"), "log is 'yx'; allowed: '', 'x', 'y', 'xy'"),
        (lambda: losses({"full": {"train": []}}, "t"), "curves has no points"),
        (lambda: lives([], "t"), "storages is empty"),
        (lambda: bars({}, "t", "x"), "nothing is to be drawn"),
    ],
)
def test_nothing_is_not_drawn(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_losses_of_several_runs_stand_in_one_picture():
    runs = {
        "full": {"train": [(1, 3.0), (2, 2.5)], "validation": [(0, 3.1), (2, 2.4)]},
        "QLoRA": {"train": [(1, 4.0), (2, 3.5)]},
    }
    axes = losses(runs, "a finding")
    assert [tuple(line.get_ydata()) for line in axes.lines] == [(3.0, 2.5), (3.1, 2.4), (4.0, 3.5)]
    assert [text.get_text() for text in axes.get_legend().texts] == ["full: 2.400 at the end", "QLoRA"]
    assert axes.lines[0].get_alpha() < 1 == axes.lines[2].get_alpha()
    assert "full: 3.100 at step 0, 2.400 at step 2; QLoRA: 4.000 at step 1, 3.500 at step 2." in describe(axes)


def test_lives_are_as_long_as_they_last_and_as_tall_as_they_are_large():
    storages = [("x", 0, 60, 1), ("mm", 2, 50, 4), ("mm", 30, 33, 2), ("loss", 31, 32, 0.001)]
    axes = lives(storages, "a finding", kept={0, 1}, gradients={2}, unit="u", down={"backward": 29})
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 60), (2, 48), (30, 3), (31, 1)]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights[1] == pytest.approx(4 * heights[0]) and heights[2] == pytest.approx(2 * heights[0])
    assert 0 < heights[3] < heights[0]  # the least that can be seen, and not its size
    kinds = [COLORS[bucket].lower() for bucket in ("activations", "activations", "gradients", "temporary")]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == kinds
    assert [text.get_text() for text in axes.get_yticklabels()] == ["x, 1 u", "mm 1, 4 u", "mm 2, 2 u", "loss, 0.001 u"]
    assert "mm 2: 2 u, from 30 to 33" in describe(axes)


def test_the_bell_is_cut_in_sixteen_nearly_equal_areas_with_a_value_in_the_middle_of_each():
    def below(x):  # of the standard normal distribution
        return (1 + erf(x / sqrt(2))) / 2

    code = derive_code()
    found = areas(code)
    largest = 1.8481308  # standard deviations, of the outermost values
    assert code == pytest.approx(NF4_CODE, abs=1e-6) and len(found) == 16
    assert sum(share for *_, share in found) == pytest.approx(1)
    for value, (left, right, share) in zip(code, found):
        assert share == pytest.approx(below(right) - below(left)) == pytest.approx(1 / 16, rel=0.07)
        middle = (below(left) + below(right)) / 2
        assert below(largest * value) == pytest.approx(middle, abs=0.003)  # at zero p changes
    axes = bell("a finding")
    under = [text for text in axes.texts]
    assert [float(text.get_text().replace("−", "-")) for text in under] == [round(value, 2) for value in code]
    assert [text.xy[0] for text in under] == pytest.approx([largest * value for value in code], rel=1e-6)
    boxes = list(drawn(axes).values())
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert "0.00 holds 6.3%" in describe(axes)


def test_a_long_title_is_broken_and_begins_where_the_picture_does():
    axes = new_axes(8, 3)
    axes.barh(["a very long name of a bar, which takes its room", "b"], [1, 2])
    finish(axes, "A title of many words, which says what the picture shows in one sentence, " * 2, "x (GB)")
    axes.figure.savefig(io.BytesIO())
    box = axes._left_title.get_window_extent()
    assert box.x0 >= -1 and box.x1 <= axes.figure.bbox.x1 and "\n" in axes.get_title(loc="left")
    names = axes.yaxis.get_tightbbox()
    assert box.x0 == pytest.approx(names.x0, abs=6)
