"""The bytes of 8-bit AdamW's two moments, in bitsandbytes' way: the truth, and the slips people make.

A tensor of 4,096 elements or more has one byte per element and a float32 scale per 256, twice; a smaller one has
float32. The two maps, 1,024 bytes each, are shared by all tensors. The tests hold it to bitsandbytes.
"""

from __future__ import annotations

from minigpt.checks.closing import knows
from minigpt.checks.naming import Hints

knows(__name__)
SMALL = 4096  # elements: from here on bitsandbytes' optimizer has 8-bit state


def moments(sizes: list[int], block: int = 256) -> int:
    """Bytes of both moments of tensors of these sizes, with the two maps."""
    large = [size for size in sizes if size >= SMALL]
    return eight(large, block) + 8 * (sum(sizes) - sum(large)) + 2048 * bool(large)


def eight(sizes: list[int], block: int = 256) -> int:
    """Bytes of both moments, all of them in 8 bits, without the maps."""
    return sum(2 * (size + 4 * -(-size // block)) for size in sizes)


def moment_slips(sizes: list[int]) -> Hints:
    """Bytes too many in ``moments(sizes)``."""
    n, right = sum(sizes), moments(sizes)
    large, edge = [size for size in sizes if size >= SMALL], [size for size in sizes if size == SMALL]
    return {
        "float32-moments": (
            "float32 moments for every tensor: from 4,096 elements on they are 8-bit",
            8 * n - right),
        "eight-bit-moments": (
            "8-bit moments for every tensor: under 4,096 elements they stay float32",
            eight(sizes) + 2048 - right),
        "small-16-bit": (
            "16-bit moments for small tensors; under 4,096 elements they are float32", -4 * (n - sum(large))),
        "flat-two-bytes": (
            "2 bytes per element, flat: scales are missing, and small tensors stay float32",
            2 * n - right),
        "edge": ("a tensor of exactly 4,096 elements has 8-bit moments too", 8 * sum(edge) - eight(edge)),
        "no-moment-scales": (
            "the scales of the 8-bit moments are missing: a float32 for 256 elements, twice",
            2 * sum(large) - eight(large)),
        "moment-scales-once": (
            "the scales are counted once; each of the two moments has its own", sum(large) - eight(large) // 2),
        "one-byte-moment-scales": (
            "the moments' scales are booked in 8 bits; they are float32",
            -6 * sum(-(-size // 256) for size in large)),
        "moment-scales-rounded-down": (
            "the moments' scales are rounded down; a last block that is not full has one too",
            8 * sum(size // 256 - -(-size // 256) for size in large)),
        "moment-scales-in-parts": (
            "a short block's scales are booked in part; they are whole numbers, 4 bytes each",
            sum(8 * size // 256 - 8 * -(-size // 256) for size in large)),
        "moment-scale-each-64": ("64 elements share a moment's scale; it is 256", moments(sizes, 64) - right),
        "moment-scale-each-2048": ("2,048 elements share a moment's scale; it is 256", moments(sizes, 2048) - right),
        "one-moment": ("one of the two moments is missing", -(right - 2048 * bool(large)) // 2),
        "float32-moments-maps": (
            "float32 moments for every tensor, and the two maps; from 4,096 elements on they are 8-bit",
            8 * n + 2048 - right if large else 0),
        "no-maps": ("the two 8-bit maps are missing: 1,024 bytes each, once", -2048 * bool(large)),
        "one-map": ("one of the two 8-bit maps is missing", -1024 * bool(large)),
        "one-byte-maps": ("the maps are booked with a byte per value; they are float32", -1536 * bool(large)),
        "maps-for-nothing": ("the two 8-bit maps are booked, and no tensor has 8-bit moments", 2048 * (not large)),
        "maps-a-tensor": (
            "the 8-bit maps are booked for each tensor; the optimizer has one pair", 2048 * max(0, len(large) - 1)),
    }  # fmt: skip
