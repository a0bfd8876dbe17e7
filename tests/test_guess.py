"""A reader's guess: what it takes, and the sentence that it makes beside the truth."""

import pytest

from minigpt.guess import guess


def said(capsys, mine, truth, slips=None):
    assert mine.against(truth, slips) is None
    return capsys.readouterr().out


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "50", None, [50]])
def test_only_a_number_above_0_is_a_guess(value):
    with pytest.raises(ValueError, match="^value is .* must be a number above 0$"):
        guess(value, "GB")


def test_the_units_are_those_of_bytes_and_three_more():
    assert guess(2, "GB").bytes == 2 * 10**9 and guess(2, "GiB").bytes == 2**31 and guess(7, "B").bytes == 7
    with pytest.raises(ValueError, match="'gb'; allowed: B, kB, MB, GB, KiB, MiB, GiB, ratio, percent, count"):
        guess(50, "gb")
    with pytest.raises(ValueError, match="'ratio'; only a guess in B, .* has bytes"):
        _ = guess(27, "ratio").bytes


@pytest.mark.parametrize(
    ("mine", "truth", "sentence"),
    [
        (guess(50, "GB"), 50_000_000_000, "Your guess: 50 GB. It is 50.00 GB: right."),
        (guess(51, "GB"), 50_000_000_000, "Your guess: 51 GB. It is 50.00 GB: right, to within 2.0%."),
        (guess(40, "GB"), 50_000_000_000, "Your guess: 40 GB. It is 50.00 GB: 20% too little."),
        (guess(52, "GB"), 50_000_000_000, "Your guess: 52 GB. It is 50.00 GB: 4.0% too much."),
        (guess(27, "ratio"), 4.3, "Your guess: 27×. It is 4.30×: 528% too much."),
        (guess(2.5, "percent"), 0.5, "Your guess: 2.5%. It is 0.5000%: 400% too much."),
        (guess(6_000_000_000, "count"), 6_738_415_616,
         "Your guess: 6,000,000,000. It is 6,738,415,616: 11% too little."),
    ],
)  # fmt: skip
def test_the_sentence_gives_guess_truth_and_distance(capsys, mine, truth, sentence):
    assert said(capsys, mine, truth) == sentence + "\n"


def test_the_nearest_slip_within_1_5_percent_is_named(capsys):
    slips = {"without the optimizer": 26.9e9, "without gradients": 26.6e9}
    assert said(capsys, guess(27, "GB"), 54e9, slips).endswith("usual slip: without the optimizer.\n")
    assert said(capsys, guess(26.5, "GB"), 54e9, slips).endswith("usual slip: without gradients.\n")
    assert "slip" not in said(capsys, guess(26.1, "GB"), 54e9, slips)  # 1.9% from the nearest
    assert "slip" not in said(capsys, guess(53, "GB"), 54e9, {"nearly": 53e9})  # right already


def test_gb_and_gib_are_always_tried_for_sizes_and_only_for_them(capsys):
    truth = 24 * 2**30
    assert "GiB where GB was meant" in said(capsys, guess(truth * 1.0737, "B"), truth)
    assert "GB where GiB was meant" in said(capsys, guess(22.35, "GiB"), truth)  # 24 / 1.0737
    assert "slip" not in said(capsys, guess(1.0737, "ratio"), 1.0)


@pytest.mark.parametrize(
    ("truth", "slips", "message"),
    [
        (8, {"none at all": 8}, r"slips\['none at all'\] is 8, the truth"),
        (8, {"nothing": 0}, r"slips\['nothing'\] is 0; it must be a number above 0"),
        (0, {}, "truth is 0; it must be a number above 0"),
    ],
)
def test_a_lesson_gives_a_truth_and_slips_that_are_none(truth, slips, message):
    with pytest.raises(ValueError, match=message):
        guess(8, "B").against(truth, slips)
