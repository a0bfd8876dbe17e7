"""What the runs of lab 08 are made of: their checks look at it first where something is wrong."""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.four_bits import nested, packing, quantizing
from minigpt.checks.four_bits.asking import Weight
from minigpt.checks.verdict import Part, part


def parts(
    quantize: Callable, pack: Callable, unpack: Callable, dequantize: Callable, quantize_absmax: Callable,
    dequantize_absmax: Callable,
) -> dict[str, Part]:  # fmt: skip
    """Parts 2 to 5, each with one case."""
    weights = [Weight((37, 50))]
    return {
        "part 2": part(0, quantizing.blocks, quantize, each=weights),
        "part 3, pack": part(0, packing.packs, pack, each=[7]),
        "part 3, unpack": part(0, packing.unpacks, unpack, each=[7]),
        "part 4": part(0, packing.restores, dequantize, each=weights),
        "part 5, quantize_absmax": part(0, nested.quantizes, quantize_absmax, each=weights),
        "part 5, dequantize_absmax": part(0, nested.restores, dequantize_absmax, each=weights),
    }
