"""A cut through a skyline: the segments at one event, a row for each, and where its blocks lie. ``cut_panel(replay)``
has a slider for the event; where nobody can move one, the picture stands still at the fullest instant.
"""

from __future__ import annotations

from html import escape

from minigpt.memory.calculator.panel import somebody_is_there
from minigpt.memory.plots.replayed import Held, Replay, Taken
from minigpt.memory.plots.skyline import GROUND, alive, lanes, rooms_by_address
from minigpt.memory.plots.style import COLORS
from minigpt.memory.units import MIB

ROW, APART = 13, 5  # pixels: of a segment, and between two
STILL = "This picture stands still: run the cell in JupyterLab or in Colab for a slider."


def cut_panel(replay: Replay, at: int | None = None) -> None:
    """Show the segments of a run at the event ``at`` (None: where most was allocated), and a slider.

    Raises ValueError for an event that the run has not.
    """
    from IPython.display import display

    event = replay.allocator.statistics.allocated.event if at is None else at
    if not 1 <= event <= replay.allocator.event:
        raise ValueError(f"at is {at}; it must be from 1 to {replay.allocator.event}, the run's events")
    if not somebody_is_there():
        note = f'<p style="font-size:12px;opacity:.8">{STILL}</p>'
        return display({"text/html": picture(replay, event) + note, "text/plain": words(replay, event)}, raw=True)
    display({**Panel(replay, event).box._repr_mimebundle_(), "text/plain": words(replay, event)}, raw=True)


class Panel:
    """The widgets: ``slider`` for the event, ``html`` with the picture, ``box`` around both."""

    def __init__(self, replay: Replay, event: int):
        import ipywidgets as widgets

        self.replay = replay
        wide = widgets.Layout(width="52rem", max_width="100%")
        self.slider = widgets.IntSlider(event, 1, replay.allocator.event, description="event", layout=wide)
        self.html = widgets.HTML()
        self.slider.observe(lambda _: self.draw(), names="value")
        self.box = widgets.VBox([self.slider, self.html])
        self.draw()

    def draw(self) -> None:
        self.html.value = picture(self.replay, self.slider.value)


def there(replay: Replay, event: int) -> tuple[list[Taken], list[Held]]:
    """What is reserved, and the blocks in use, when the event is over."""
    return tuple([it for it in all_ if alive(it, event, event)] for all_ in (replay.segments, replay.held))  # type: ignore[return-value]


def words(replay: Replay, event: int) -> str:
    """The event, its phase, and the two numbers."""
    segments, blocks = there(replay, event)
    phase = [name for name, at in replay.marks if at < event][-1]
    allocated, reserved = sum(b.size for b in blocks), sum(s.size for s in segments)
    rooms = len({segment.room for segment in segments})
    return (
        f"Event {event:,} of {replay.allocator.event:,}, {phase}: {allocated / MIB:,.1f} MiB allocated, in "
        f"{len(blocks):,} blocks; {reserved / MIB:,.0f} MiB reserved, in {rooms} segments"
    )


def picture(replay: Replay, event: int) -> str:
    """HTML: the words, the segments with their blocks, and the colours' names."""
    segments, blocks = there(replay, event)
    floors, _ = lanes(segments, event, event)
    ends = {room: max(s.address + s.size for s in segments if s.room == room) for room in floors}
    widest = max(ends[room] - lowest for room, (_, lowest) in floors.items())
    rows = {room: i * (ROW + APART) for i, room in enumerate(floors)}
    room_of = rooms_by_address(segments)

    def bar(it: Held | Taken, fill: str, edge: str) -> str:
        room = room_of(it.address)
        left, wide = 100 * (it.address - floors[room][1]) / widest, 100 * it.size / widest
        return (f'<rect x="{left:.4f}%" y="{rows[room]}" width="{wide:.4f}%" height="{ROW}" fill="{fill}" '
                f'stroke="{edge}" stroke-width=".6"/>')  # fmt: skip

    drawn = [bar(s, GROUND, "none") for s in segments] + [bar(b, COLORS[b.bucket], "#fff") for b in blocks]
    said, high = escape(words(replay, event)), len(rows) * (ROW + APART)
    legend = "".join(
        f'<span style="white-space:nowrap;margin-right:1.2em"><span style="display:inline-block;width:.8em;height:.8em;'
        f'background:{color}"></span> {name}</span>'
        for name, color in {
            **{b: COLORS[b] for b in COLORS if any(x.bucket == b for x in blocks)},
            "free": GROUND,
        }.items()
    )
    return (
        f'<div style="max-width:52rem;font-size:14px"><b>{said}</b>'
        f'<svg role="img" aria-label="{said}" width="100%" height="{high}" style="margin:8px 0">{"".join(drawn)}</svg>'
        f'<div style="font-size:12px">{legend} One row per segment; the longest has {widest / MIB:,.0f} MiB.</div>'
        "</div>"
    )
