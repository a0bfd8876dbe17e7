"""The caching allocator by brute force: no chains, no pools, nothing kept sorted.

A segment is the list of its blocks in use, and for an expandable one the set of its mapped pages. Every free block is
found anew, as a gap between blocks in use, for each question. That merging leaves no neighbours, and that a sorted list
gives the best fit, is not assumed here but follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minigpt.memory.predicted.allocator import Device, Options

MIB = 2**20


@dataclass
class Piece:
    """A block in use, or waiting for ``streams``."""

    address: int
    size: int
    requested: int
    streams: set[int] = field(default_factory=set)
    freed: bool = False


@dataclass
class Place:
    """A segment."""

    address: int
    size: int
    stream: int
    small: bool
    page: int = 0
    used: list[Piece] = field(default_factory=list)
    mapped: set[int] = field(default_factory=set)  # numbers of pages

    def gaps(self) -> list[tuple[int, int, bool]]:
        """Address, size and whether it is mapped, of each longest run of addresses that no block uses."""
        marks = {self.address, self.address + self.size}
        for piece in self.used:
            marks |= {piece.address, piece.address + piece.size}
        marks |= {self.address + each * self.page for page in self.mapped for each in (page, page + 1)}
        runs: list[tuple[int, int, bool]] = []
        edges = sorted(marks)
        for start, end in zip(edges, edges[1:]):  # noqa: B905
            if any(piece.address <= start < piece.address + piece.size for piece in self.used):
                continue
            mapped = not self.page or (start - self.address) // self.page in self.mapped
            if runs and runs[-1][0] + runs[-1][1] == start and runs[-1][2] == mapped:
                start = runs.pop()[0]
            runs.append((start, end - start, mapped))
        return runs


class Full(Exception):
    pass


class Reference:
    def __init__(self, options: Options, device: Device):
        self.options, self.device = options, device
        self.places: list[Place] = []

    def allocate(self, nbytes: int, stream: int) -> Piece:
        size = self.options.round(nbytes)  # held against torch itself in test_allocator_options
        small = size <= MIB
        found = self.best(size, stream, small) or self.new(size, stream, small)
        if found is None and self.release_enough(size, stream, small):
            found = self.new(size, stream, small)
        if found is None:
            self.empty_cache()
            found = self.new(size, stream, small)
        if found is None:
            raise Full
        place, address, room = found
        least = 512 if small or self.options.expandable_segments else MIB + 1
        limit = (self.options.max_split_size_mb or 2**30) * MIB
        splits = room - size >= least and (small or self.options.expandable_segments or size < limit)
        piece = Piece(address, size if splits else room, nbytes)
        place.used.append(piece)
        return piece

    def free_blocks(self, stream: int, small: bool) -> list[tuple[int, int, Place]]:
        return sorted(
            ((size, address, place) for place in self.places for address, size, mapped in place.gaps()
             if mapped and place.stream == stream and place.small == small),
            key=lambda block: block[:2],
        )  # fmt: skip

    def best(self, size: int, stream: int, small: bool) -> tuple[Place, int, int] | None:
        fits = [block for block in self.free_blocks(stream, small) if block[0] >= size]
        if not fits:
            return None
        chosen = fits[0]
        for block in fits[1:]:  # the least that it can grow to, as long as each next one can grow less
            if not chosen[2].page or self.room(block) >= self.room(chosen):
                break
            chosen = block
        room, address, place = chosen
        limit = (self.options.max_split_size_mb or 2**30) * MIB
        slack = (self.options.max_non_split_rounding_mb or self.options.large_segment_size_mb) * MIB
        if size < limit <= room or limit <= size and room >= size + slack:
            return None
        return place, address, room

    def room(self, block: tuple[int, int, Place]) -> int:
        size, address, place = block
        return size + sum(gap for start, gap, mapped in place.gaps() if start == address + size and not mapped)

    def new(self, size: int, stream: int, small: bool) -> tuple[Place, int, int] | None:
        if self.options.expandable_segments:
            return self.grow(size, stream, small)
        large = self.options.large_segment_size_mb * MIB
        wanted = 2 * MIB if small else large if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        address = self.device.malloc(wanted)
        if address is None:
            return None
        self.places.append(Place(address, wanted, stream, small))
        return self.places[-1], address, wanted

    def grow(self, size: int, stream: int, small: bool) -> tuple[Place, int, int] | None:
        """At the lowest address where unused addresses are long enough, beginning with unmapped ones or right
        before."""
        starts = []
        for place in self.places:
            if place.page and place.stream == stream and place.small == small:
                gaps = place.gaps()
                for at, (start, _, mapped) in enumerate(gaps):
                    if mapped:
                        continue
                    before = gaps[at - 1] if at else (0, 0, False)
                    if before[0] + before[1] == start:
                        start = before[0]
                    end = min((p.address for p in place.used if p.address > start), default=place.address + place.size)
                    if end - start >= size:
                        starts.append((start, place))
        if starts:
            start, place = min(starts, key=lambda each: each[0])
        else:
            page = 2 * MIB if small else self.options.large_segment_size_mb * MIB
            start, room = self.device.reserve(page)
            place = Place(start, room, stream, small, page)
            self.places.append(place)
        first, last = (start - place.address) // place.page, (start + size - 1 - place.address) // place.page
        missing = [page for page in range(first, last + 1) if page not in place.mapped]
        while missing:  # each run of pages is mapped at once or not at all
            run = [page for at, page in enumerate(missing) if page == missing[0] + at]
            if not self.device.map(place.address + run[0] * place.page, len(run) * place.page):
                return None
            place.mapped |= set(run)
            missing = missing[len(run) :]
        room = next(size for address, size, mapped in place.gaps() if mapped and address == start)
        return place, start, room

    def free(self, piece: Piece) -> None:
        piece.freed = True
        if not piece.streams:
            self.drop(piece)

    def drop(self, piece: Piece) -> None:
        for place in self.places:
            place.used = [each for each in place.used if each is not piece]

    def look(self, passed: list[tuple[Piece, int]]) -> None:
        for piece, stream in passed:
            piece.streams.discard(stream)
            if not piece.streams:
                self.drop(piece)

    def release_enough(self, size: int, stream: int, small: bool) -> bool:
        if self.options.max_split_size_mb is None:
            return False
        limit = self.options.max_split_size_mb * MIB
        wanted = max(size, limit)
        blocks = self.free_blocks(stream, small)
        enough = [block for block in blocks if block[0] >= wanted]
        if enough and not enough[0][2].page:
            self.give_back(enough[0][2])
            return True
        released = 0
        for block in reversed([block for block in blocks if limit <= block[0] < wanted]):
            if released >= wanted:
                break
            if not block[2].page:
                released += block[0]
                self.give_back(block[2])
        return released >= wanted

    def give_back(self, place: Place) -> None:
        self.places.remove(place)
        self.device.release(place.address, place.size)

    def empty_cache(self) -> None:
        for place in list(self.places):
            place.used = [piece for piece in place.used if not piece.freed]
            if not place.page and not place.used:
                self.give_back(place)
            before = len(place.mapped)
            for page in sorted(place.mapped):
                start = place.address + page * place.page
                if not any(p.address < start + place.page and start < p.address + p.size for p in place.used):
                    place.mapped.remove(page)
                    self.device.unmap(start, place.page)
            if before and not place.mapped:  # addresses that never had memory stay
                self.places.remove(place)

    def blocks(self) -> set[tuple[int, int, str]]:
        """Address, size and state (in torch's words) of all that is mapped."""
        states = {False: "active_allocated", True: "active_awaiting_free"}
        used = {(p.address, p.size, states[p.freed]) for place in self.places for p in place.used}
        gaps = [gap for place in self.places for gap in place.gaps()]
        return used | {(address, size, "inactive") for address, size, mapped in gaps if mapped}
