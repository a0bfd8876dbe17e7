"""How large a request becomes, how large its segment, and what is split off: the sizes, and the options that move them.

The options are those of ``PYTORCH_CUDA_ALLOC_CONF`` (newer versions read ``PYTORCH_ALLOC_CONF``, too), with torch's
names and torch's limits: ``Options.parse("expandable_segments:True,max_split_size_mb:128")``. Sizes here are bytes but
where a name says MB: MiB, as in torch. Source: ``c10/core/AllocatorConfig.h`` and ``.cpp``, and ``round_size``,
``roundup_power2_next_division``, ``get_allocation_size`` and ``should_split`` of
``c10/cuda/CUDACachingAllocator.cpp``; ``large_segment_size_mb`` came in January 2026 (torch 2.11).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from functools import cached_property

from minigpt.memory.units import MIB

MIN_BLOCK = 512  # kMinBlockSize
SMALL_SIZE = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MIN_LARGE = 10 * MIB  # kMinLargeAlloc: from here on a request has a segment of its own size
ROUND_LARGE = 2 * MIB  # kRoundLarge
INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: 1 MiB, 2 MiB, 4 MiB … 32 GiB and above

#: Options of torch that do not touch the device's memory without CUDA graphs.
WITHOUT_EFFECT = (
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
)


def power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@dataclass(frozen=True)
class Options:
    """The options of the allocator. Raises ValueError naming the option, its value and what is allowed.

    - ``max_split_size_mb``: blocks from this size on are not split, and not given to smaller requests. None: no limit.
    - ``max_non_split_rounding_mb``: by how much such a block may be larger than its request. None: as a large segment.
    - ``large_segment_size_mb``: the segment of requests from 1 to 10 MiB, and the page of the large expandable segment.
    - ``roundup_power2_divisions``: into how many steps to divide each power of two, for all sizes, or by size as in
      ``((256, 1), (512, 2), (">", 8))`` (from 256 MiB and below, 512 MiB, above). 0 and 1: not at all.
    - ``garbage_collection_threshold``: which part of the allowed memory to fill before old unused segments go back; it
      works only with a ``per_process_memory_fraction`` under 1.
    - ``expandable_segments``: one segment a pool and stream, that grows by pages.
    - ``per_process_memory_fraction``: which part of the device this process may reserve.
    """

    max_split_size_mb: int | None = None
    max_non_split_rounding_mb: int | None = None
    large_segment_size_mb: int = 20
    roundup_power2_divisions: int | tuple[tuple[int | str, int], ...] = 0
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0

    def __post_init__(self):
        def check(name: str, right: bool, allowed: str) -> None:
            if not right:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

        least = self.large_segment_size_mb
        check("large_segment_size_mb", least > MIN_LARGE // MIB, f"more than {MIN_LARGE // MIB}")
        for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
            value = getattr(self, name)
            check(name, value is None or value >= least, f"at least large_segment_size_mb, {least}")
        rounding = self.roundup_power2_divisions
        if isinstance(rounding, int):
            check("roundup_power2_divisions", rounding == 0 or power_of_two(rounding), "a power of two, or 0")
        else:
            sizes = [size for size, _ in rounding if size != ">"]
            right = all(isinstance(size, int) and power_of_two(size) for size in sizes)
            right = right and all(steps == 0 or power_of_two(steps) for _, steps in rounding)
            check("roundup_power2_divisions", right, "pairs of a power of two in MiB or '>', and a power of two or 0")
        check("garbage_collection_threshold", 0 <= self.garbage_collection_threshold < 1, "0 (off) or under 1")
        check("per_process_memory_fraction", 0 <= self.per_process_memory_fraction <= 1, "from 0 to 1")

    @cached_property
    def max_split_size(self) -> int:
        return sys.maxsize if self.max_split_size_mb is None else self.max_split_size_mb * MIB

    @cached_property
    def max_non_split_rounding(self) -> int:
        own = self.max_non_split_rounding_mb
        return (self.large_segment_size_mb if own is None else own) * MIB

    @cached_property
    def divisions(self) -> tuple[int, ...]:
        """Into how many steps to divide each power of two from 1 MiB on; the first is for all sizes below 2 MiB."""
        rounding = self.roundup_power2_divisions
        if isinstance(rounding, int):
            return (rounding,) * INTERVALS
        table, last, first = [0] * INTERVALS, 0, True
        for size, steps in rounding:
            if isinstance(size, str):  # ">": all above the last named
                table[last + 1 :] = [steps] * (INTERVALS - last - 1)
                continue
            last = min(size.bit_length() - 1, INTERVALS - 1)
            if first:
                table[:last] = [steps] * last
            table[last], first = steps, False
        return tuple(table)

    def round(self, nbytes: int) -> int:
        """What a request of ``nbytes`` takes before anything is left unsplit."""
        if self.roundup_power2_divisions and nbytes >= MIN_BLOCK:
            steps = self.divisions[min(max(nbytes.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)]
            if steps > 1 and nbytes > MIN_BLOCK * steps:
                step = (1 << (nbytes.bit_length() - 1)) // steps
                return -(-nbytes // step) * step
        return -(-nbytes // MIN_BLOCK) * MIN_BLOCK

    def segment_size(self, size: int) -> int:
        """What is asked of the device for a block of ``size``."""
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.large_segment_size_mb * MIB
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def page_size(self, small: bool) -> int:
        """By how much an expandable segment grows."""
        return SMALL_SEGMENT if small else self.large_segment_size_mb * MIB

    def splits(self, size: int, rest: int, small: bool) -> bool:
        """Whether ``rest`` is split off a block that is given to a request of ``size`` (rounded)."""
        if small or self.expandable_segments:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE and size < self.max_split_size

    @classmethod
    def parse(cls, text: str) -> Options:
        """The options that ``PYTORCH_ALLOC_CONF`` names in ``text``. Raises ValueError for what it does not allow."""
        known = {field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for part in split_outside_brackets("".join(text.split())):
            name, _, value = part.partition(":")
            if name == "backend" and value == "native" or name in WITHOUT_EFFECT:
                continue
            if name == "throw_on_cudamalloc_oom" and value == "False":
                continue
            if name not in known:
                raise ValueError(f"the option {part!r} is not known here; it must be one of {', '.join(sorted(known))}")
            try:
                values[name] = read_value(name, value)
            except ValueError:
                raise ValueError(f"{name} is {value!r}, which cannot be read as {name}:VALUE") from None
        return cls(**values)  # type: ignore[arg-type]


def read_value(name: str, text: str) -> object:
    if name == "expandable_segments":
        if text not in ("True", "False"):
            raise ValueError
        return text == "True"
    if name in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return float(text)
    if text.startswith("[") and name == "roundup_power2_divisions":
        pairs = [pair.split(":") for pair in text.strip("[]").split(",")]
        return tuple((size if size == ">" else int(size), int(steps)) for size, steps in pairs)
    return int(text)


def split_outside_brackets(text: str) -> list[str]:
    """The parts of ``text`` between commas, but for commas inside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]
