"""The bits of a number in a notebook: what the picture says, and what the switches do."""

from __future__ import annotations

import re

import pytest

from minigpt.precision import FORMATS, decode, encode, fields, panel
from minigpt.precision.panel import Panel, bit_panel, meaning, picture, words


def test_the_picture_has_every_format_with_its_bits_and_its_number():
    shown = picture(0.1)
    for name in FORMATS:
        assert f">{name}</th>" in shown and repr(decode(encode(0.1, name), name)) in shown
        bits = re.findall(r">([01]+)</span>", shown.split(f">{name}</th>")[1])[:3]
        assert tuple(bits) == fields(encode(0.1, name), name)
    assert "0.10%" in shown.split(">bf16</th>")[1].split("</tr>")[0]


def test_words_for_where_no_html_is_shown():
    assert "bf16  0 01111011 1001101" in words(0.1)
    assert len(words(0.1).splitlines()) == len(FORMATS)


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        (0.1, "bf16", "+ 2^(123 - 127) × (1 + 77/128) = 0.10009765625"),
        (-(2.0**-24), "fp16", "- 2^(1 - 15) × (1/1024) = -5.960464477539063e-08"),
        (1e9, "fp16", "inf"),
    ],
)
def test_the_arithmetic_is_spelled_out(value, name, said):
    assert meaning(encode(value, name), name) == said


def test_switches_and_menu_and_number():
    made = Panel(encode(1.0, "bf16"), "bf16")
    assert len(made.switches) == 16 and "= 1.0" in made.html.value
    made.switches[0].value = True  # the sign
    made.switches[-1].value = True  # the last bit of the mantissa
    assert "= -1.0078125" in made.html.value and made.switches[-1].description == "1"
    made.menu.value = "e4m3"
    assert len(made.switches) == 8 and "= -1.0<" in made.html.value
    made.number.value = "300"
    assert "= 288.0" in made.html.value  # 300 lies between 288 and 320
    made.number.value = "many"
    assert made.html.value == "That is no number."


def test_nobody_there_sees_the_picture(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    bit_panel(0.1)
    assert panel.STILL in shown[0]["text/html"] and shown[0]["text/plain"] == words(0.1)
    monkeypatch.setattr(panel, "somebody_is_there", lambda: True)
    bit_panel(0.1)
    assert "application/vnd.jupyter.widget-view+json" in shown[1]
    with pytest.raises(ValueError, match="format is 'fp64'"):
        bit_panel(0.1, "fp64")
