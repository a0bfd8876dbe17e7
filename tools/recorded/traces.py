"""The requests of a recording, from its rows."""

from __future__ import annotations

from minigpt.memory.snapshot import requests
from tools.recordings import Row


def recorded(rows: list[Row]) -> requests.Requests:
    """A recording's requests; the note of what was there before says how much had been asked for."""
    held = [(row.address, int(row.note)) for row in rows if row.action == "init_block"]
    return requests.recorded(held, ((row.action, row.address, row.size) for row in rows))
