"""Snapshots as torch writes them, made here: of events that are given, and of a training that the tape tells."""

import pickle

from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.predicted.allocator import Allocator, Device

TORCH = dict(filename="/opt/site-packages/torch/nn/modules/linear.py", line=125, name="forward")
MINE = dict(filename="/home/project/model.py", line=31, name="forward")
LOOP = dict(filename="/home/project/train.py", line=9, name="<module>")
CPP = dict(filename="??", line=0, name="at::empty")


def entry(action, address, size, frames=(), **more):
    return dict(action=action, addr=address, size=size, stream=0, time_us=1, frames=list(frames), **more)


def segment(address, total, blocks, device=0):
    listed = [dict(address=at, size=size, requested_size=asked, state=state, frames=[LOOP])
              for at, size, asked, state in blocks]  # fmt: skip
    return dict(device=device, address=address, total_size=total, stream=0, segment_type="large", blocks=listed)


def snapshot(trace, segments, path):
    """The file as torch writes it."""
    with open(path, "wb") as file:
        pickle.dump(dict(segments=segments, device_traces=[[], trace], allocator_settings={}), file)
    return path


class Noting(Device):
    """A device that writes down what it gives."""

    def __init__(self, trace):
        super().__init__()
        self.trace = trace

    def malloc(self, size):
        address = super().malloc(size)
        self.trace.append(entry("segment_alloc", address, size))
        return address


def left(allocator):
    """The segments at the end."""
    return [
        segment(s.address, s.size, [(b.address, b.size, b.requested, b.state) for b in s.blocks()], 1)
        | dict(segment_type="small" if s.pool.small else "large")
        for s in allocator.segments.values()
    ]


class Played:
    """A tape's events through an allocator, as torch would have recorded them.

    ``counters``: allocated and reserved bytes after each entry of ``trace``. ``at``: how many entries there were before
    each event.
    """

    def __init__(self, events):
        self.trace, self.counters, self.at, live = [], [], [], {}
        self.allocator = Allocator(device=Noting(self.trace))
        counted = self.allocator.statistics
        for _, record, kind in events:
            self.at.append(len(self.trace))
            if kind == BORN and record.nbytes:
                live[record] = block = self.allocator.allocate(record.nbytes)
                line = dict(filename="/home/project/train.py", line=7, name=record.born[0])
                self.trace.append(entry("alloc", block.address, record.nbytes, [line]))
            elif kind == DEAD and record.nbytes:
                block = live.pop(record)
                for when in ("requested", "completed"):
                    self.trace.append(entry(f"free_{when}", block.address, block.requested))
                self.allocator.free(block)
            now = counted.allocated.current, counted.reserved.current
            self.counters += [now] * (len(self.trace) - len(self.counters))

    def peaks(self, first=0):
        """Allocated and reserved bytes at most, from entry ``first`` on."""
        seen = self.counters[max(0, first - 1) :]
        return max(a for a, _ in seen), max(r for _, r in seen)

    def save(self, path, first=0):
        return snapshot(self.trace[first:], left(self.allocator), path)
