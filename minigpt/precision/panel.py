"""A number's bits in a notebook: ``bit_panel(0.1)``. Where somebody can click, each bit is a switch.

Where nobody can, as on a page, the picture stands still: the number in every format, bit by bit.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from minigpt.memory.calculator.panel import somebody_is_there
from minigpt.memory.figures.svg import FILLS, on
from minigpt.precision.bits import decode, encode, fields
from minigpt.precision.formats import FORMATS, find_format

FIELDS = ("sign", "exponent", "mantissa")
STILL = "This picture stands still: run the cell in JupyterLab or in Colab for bits to toggle."


def bit_panel(value: float = 0.1, format: str = "bf16") -> None:
    """Show ``value`` in every format, and in ``format`` as bits to toggle.

    Raises ValueError for an unknown format or a value that is no number.
    """
    from IPython.display import display

    pattern = encode(value, format)
    text = words(value)
    if not somebody_is_there():
        note = f'<p style="font-size:12px;opacity:.8">{STILL}</p>'
        return display({"text/html": picture(value) + note, "text/plain": text}, raw=True)
    display({**Panel(pattern, format).box._repr_mimebundle_(), "text/plain": text}, raw=True)


def words(value: float) -> str:
    """A line for each format: its name, the three fields, the number that they stand for."""
    rows = ((name, fields(encode(value, name), name), decode(encode(value, name), name)) for name in FORMATS)
    return "\n".join(f"{name:5} {' '.join(bits):35} {number!r}" for name, bits, number in rows)


def picture(value: float) -> str:
    """HTML: the number in every format, its fields in colours, and how far off it is."""
    rows = "".join(_row(name, value) for name in FORMATS)
    return f'<table style="font-size:13px"><tr><th></th>{_legend()}<th>holds</th><th>off by</th></tr>{rows}</table>'


def meaning(pattern: int, format: str) -> str:
    """The arithmetic behind a pattern, as one line: "+ 2^(123 - 127) × (1 + 77/128) = 0.10009765625"."""
    form, (sign, exponent, mantissa) = find_format(format), fields(pattern, format)
    number = decode(pattern, format)
    if not isfinite(number):
        return repr(number)
    e, f = int(exponent, 2), int(mantissa, 2)
    power, one = (f"2^({e} - {form.bias})", "1 + ") if e else (f"2^(1 - {form.bias})", "")
    return f"{'-' if sign == '1' else '+'} {power} × ({one}{f}/{2**form.mantissa}) = {number!r}"


def _row(name: str, value: float) -> str:
    pattern = encode(value, name)
    number = decode(pattern, name)
    bits = "".join(_bits(field, text) for field, text in zip(FIELDS, fields(pattern, name)))
    off = f"{abs(number / value - 1):.2%}" if value and isfinite(number) else ""
    cell = 'style="text-align:left;white-space:nowrap;padding:2px 6px"'
    return f"<tr><th {cell}>{name}</th><td {cell}>{bits}</td><td {cell}>{number!r}</td><td {cell}>{off}</td></tr>"


def _bits(field: str, text: str) -> str:
    fill = FILLS[field]
    style = f"background:{fill};color:{on(fill)};font-family:monospace;padding:1px 3px;margin-right:1px"
    return f'<span style="{style}">{text}</span>'


def _legend() -> str:
    return f'<th style="text-align:left">{"".join(_bits(field, field) for field in FIELDS)}</th>'


class Panel:
    """The widgets: a menu of formats, ``switches`` for the bits, ``html`` with what they mean, ``box`` with all."""

    def __init__(self, pattern: int, format: str) -> None:
        import ipywidgets as widgets

        self.widgets, self.pattern = widgets, pattern
        self.menu = widgets.Dropdown(options=list(FORMATS), value=format, description="format")
        self.number = widgets.Text(value=repr(decode(pattern, format)), description="number", continuous_update=False)
        self.row, self.html = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap")), widgets.HTML()
        self.box = widgets.VBox([widgets.HBox([self.menu, self.number]), self.row, self.html])
        self.menu.observe(self.chosen, names="value")
        self.number.observe(self.typed, names="value")
        self.make_switches()

    @property
    def format(self) -> str:
        return self.menu.value

    def make_switches(self) -> None:
        """A switch for each bit of the format, the sign's first."""
        self.switches = []
        for field, text in zip(FIELDS, fields(self.pattern, self.format)):
            for bit in text:
                switch = self.widgets.ToggleButton(
                    value=bit == "1", description=bit, tooltip=field, layout=self.widgets.Layout(width="26px")
                )
                switch.style.button_color, switch.style.text_color = FILLS[field], on(FILLS[field])
                switch.observe(self.toggled, names="value")
                self.switches.append(switch)
        self.row.children = self.switches
        self.draw()

    def toggled(self, _change: Any) -> None:
        """A bit was switched."""
        self.pattern = int("".join(str(int(switch.value)) for switch in self.switches), 2)
        for switch in self.switches:
            switch.description = str(int(switch.value))
        self.draw()

    def chosen(self, change: Any) -> None:
        """Another format: the number that the bits stood for, rounded into it."""
        self.pattern = encode(decode(self.pattern, change["old"]), self.format)
        self.make_switches()

    def typed(self, change: Any) -> None:
        """A number was typed; what is none is said."""
        try:
            self.pattern = encode(float(change["new"]), self.format)
        except ValueError:
            self.html.value = "That is no number."
            return
        self.make_switches()

    def draw(self) -> None:
        self.html.value = f"<code>{meaning(self.pattern, self.format)}</code>"
