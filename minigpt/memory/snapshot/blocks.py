"""How much each block really took: the recording's requests, replayed through the allocator's rules.

torch counts whole blocks as allocated, with what was not worth splitting off, and its events tell only what was asked
for. A replay that puts every request where it was recorded knows the sizes; one that parts from the recording knows
nothing, and the recording is returned as it was.

Of a block that was there before the first event and died, nothing tells the size. It reaches at least as far as what
was asked for, and at most 1 MiB further, to the next block in use: what lies between stays open.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from minigpt.memory.predicted.allocator import Allocator, OutOfMemoryError
from minigpt.memory.predicted.allocator.options import SMALL_SIZE
from minigpt.memory.predicted.allocator.recorded import DifferenceError, RecordedDevice
from minigpt.memory.predicted.allocator.replaying import Recorded
from minigpt.memory.predicted.allocator.replaying import replay as replay_events
from minigpt.memory.predicted.allocator.restoring import adopt
from minigpt.memory.snapshot.recording import Recording


def with_blocks(recording: Recording) -> Recording:
    """The recording with the size of every block, or unchanged: with pages, or with options that change the rules."""
    if recording.pages or recording.unexplained:
        return recording
    device = RecordedDevice()
    allocator = Allocator(device=device)
    events = list(recording.events)
    try:
        live = {}
        for segment in recording.segments:
            end = segment.address + segment.size
            used = [(held.address, held.takes, held.nbytes)
                    for held in recording.held if segment.address <= held.address < end]  # fmt: skip
            ranges = [(segment.address, segment.size)]
            blocks = adopt(allocator, ranges, used, small=segment.small, stream=segment.stream)
            live.update({block.address: block for block in blocks})
        recorded = [Recorded(e.action, e.request.address, e.request.nbytes, e.stream) for e in events]
        for place, block, _ in replay_events(recorded, allocator, device, live):
            events[place] = events[place]._replace(request=events[place].request._replace(block=block.size))
    except (DifferenceError, OutOfMemoryError, ValueError):
        return recording
    return replace(recording, events=tuple(events), open=_between(recording))


def _between(recording: Recording) -> int:
    """Bytes behind blocks of unknown size that may be theirs; in the small pool a rest of 512 is always split off."""
    found, ends = 0, sorted(segment.address + segment.size for segment in recording.segments if not segment.small)
    starts = sorted(held.address for held in recording.held)
    for held in recording.held:
        if held.block or any(s.small and s.address <= held.address < s.address + s.size for s in recording.segments):
            continue
        end = held.address + held.takes
        behind = [bound[place] for bound in (starts, ends) if (place := bisect_left(bound, end)) < len(bound)]
        found += min(min(behind) - end, SMALL_SIZE) if behind else 0
    return found
