"""The bytes of weights in 4 bits: the truth from the tensors of bitsandbytes, and the slips people make.

    stores(answer, (n, block, double))         ``answer(n, block, double)``, bytes of the storages of n weights
    scales(answer, (weights, block), only)     ``answer(weights, block)``, what the scales cost: bits per weight, and GB

Left out: bitsandbytes' two tables, the same for every tensor: 64 bytes, and 1,024 with double quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import bitsandbytes.functional as bnb

from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import close, integer
from minigpt.checks.four_bits.asking import random_weight
from minigpt.checks.naming import Hints
from minigpt.memory.units import GB, GIB

knows(__name__)
BLOCK = 256  # blocks that share a second absmax


def stores(answer: Callable, case: tuple[int, int, bool]) -> None:
    n, block, double = case
    mine = by_hand(answer, *case)
    what = f"{n:,} weights, blocks of {block}, {'double' if double else 'plain'}"
    integer(mine, stored(*case), what, slips=byte_slips(*case), unit="bytes")


def scales(answer: Callable, case: tuple[int, int], only: Iterable[str]) -> None:
    mine = by_hand(answer, *case)
    truth = {key: value for key, value in scale_bits(*case).items() if key in only}
    close(mine, truth, f"blocks of {case[1]}", rtol=1e-5, atol=0, wrong=bit_mistakes(*case))


def stored(n: int, block: int = 64, double: bool = False) -> int:
    """Bytes of the storages in which bitsandbytes keeps ``n`` weights, without its tables."""
    packed, state = bnb.quantize_4bit(random_weight(n), blocksize=block, quant_type="nf4", compress_statistics=double)
    tensors = [packed, state.absmax] + ([state.state2.absmax, state.offset] if double else [])
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def byte_slips(n: int, block: int = 64, double: bool = False) -> list[Hints]:
    """Bytes too many in ``stored(n, block, double)``."""
    short, short64 = -(-n // block), -(-n // 64)  # blocks, the short one included
    codes = {
        "byte-a-weight": ("one byte per weight: two codes share a byte", n - (n + 1) // 2),
        "two-bytes-a-weight": ("2 bytes per weight are counted; a code takes half a byte", 2 * n - (n + 1) // 2),
        "no-codes": ("the codes themselves are missing", -((n + 1) // 2)),
    }  # fmt: skip
    rounding = {
        "odd-weight-lost": ("the last of an odd number of weights is lost: round up", n // 2 - (n + 1) // 2),
        "padding": ("the codes are padded to whole blocks; the last may be short",
                    (short * block + 1) // 2 - (n + 1) // 2),
    }  # fmt: skip
    tables = {"table": ("the 16 values of the table are counted", 64)}
    if not double:
        return [
            codes,
            tables,
            rounding
            | {
                "short-block-lost": ("the last, short block has an absmax too: round up", 4 * (n // block - short)),
                "two-byte-absmax": (
                    "absmax is counted in 2 bytes; it is a float32 whatever the weight's dtype",
                    -2 * short,
                ),
                "one-byte-absmax": (
                    "one byte is counted for each absmax; without double quantization it is a float32",
                    -3 * short,
                ),
                "no-absmax": ("the absmax values are missing: a float32 for each block", -4 * short),
                "blocks-of-64": ("blocks of 64 are counted, whatever is asked for", 4 * (short64 - short)),
                "offset": ("an offset is counted; without double quantization there is none", 4),
            },
        ]
    second = -(-short // BLOCK)
    tables |= {
        "second-table": ("the 256 values of the 8-bit table are counted", 1024),
        "both-tables": ("both tables are counted", 1088),
    }
    scales = rounding | {
        "short-block-lost": ("the last, short block has an absmax too: round up", n // block - short),
        "float32-absmax-too": ("the float32 absmax values are still counted; their 8-bit codes replace them",
                               4 * short),
        "four-byte-codes": ("the 8-bit codes are counted with 4 bytes", 3 * short),
        "no-absmax-codes": ("the codes of absmax are missing: one byte for each block", -short),
        "blocks-of-64": ("blocks of 64 are counted, whatever is asked for",
                         short64 - short + 4 * (-(-short64 // BLOCK) - second)),
        "plain": ("that is without double quantization", (n + 1) // 2 + 4 * short - stored(n, block, True)),
        "no-second": ("the second absmax values are missing: a float32 for every 256 blocks", -4 * second),
        "no-scales-at-all": ("the scales are missing: the codes of absmax, the second absmax values, the offset",
                             -short - 4 * second - 4),
        "short-second-lost": ("the last, short block of 256 has a second absmax too: round up",
                              4 * (short // BLOCK - second)),
        "second-each-64": ("a second absmax is counted for every 64 blocks; 256 share one",
                           4 * (-(-short // 64) - second)),
        "second-each-256-weights": ("a second absmax is counted for every 256 weights; 256 blocks share one",
                                    4 * (-(-n // BLOCK) - second)),
        "two-byte-second": ("2 bytes are counted for a second absmax; it is a float32", -2 * second),
        "one-byte-second": ("1 byte is counted for a second absmax; it is a float32", -3 * second),
        "no-offset": ("the offset is missing: one float32", -4),
        "offset-a-block": ("an offset is counted for each block of 256; there is one for all", 4 * (second - 1)),
    }  # fmt: skip
    return [codes, tables, scales]


def scale_bits(weights: int, block: int = 64) -> dict[str, float]:
    """What the scales cost, by bitsandbytes' storages: before and after double quantization, and saved.

    "before", "after" and "saved" are in bits per weight, "saved_gb" in GB for ``weights`` weights.
    """
    n = 2 * BLOCK * block  # whole blocks, so that nothing is rounded up
    before, after = (8 * stored(n, block, double) / n - 4 for double in (False, True))
    after -= 8 * 4 / n  # the offset, one per tensor
    return dict(before=before, after=after, saved=before - after, saved_gb=weights * (before - after) / 8 / GB)


def bit_mistakes(weights: int, block: int = 64) -> Hints:
    """{key of ``scale_bits``: the value that a mistake gives}."""
    before, after, saved, gigabytes = scale_bits(weights, block).values()
    no_second, no_codes = 8 / block, 32 / (block * BLOCK)
    return {
        "bytes": ("that is in bytes per weight; bits are asked for",
                  dict(before=before / 8, after=after / 8, saved=saved / 8)),
        "four-bits-too": ("the four bits of the weight are in it; the scales alone are asked for",
                          dict(before=before + 4, after=after + 4)),
        "two-byte-absmax": ("an absmax is booked in 16 bits; it is a float32",
                            dict(before=before / 2, saved=before / 2 - after)),
        "one-byte-absmax": ("an absmax is booked in 8 bits; before, it is a float32", dict(before=before / 4)),
        "no-second": ("the second absmax is missing: 32 bits for every 256 blocks",
                      dict(after=no_second, saved=before - no_second)),
        "no-absmax-codes": ("the codes of absmax are missing: 8 bits for each block",
                            dict(after=no_codes, saved=before - no_codes)),
        "float32-absmax-too": ("the float32 absmax is still in it; the 8-bit code replaces it",
                               dict(after=before + after)),
        "second-each-256-weights": ("256 weights share a second absmax; it is 256 blocks",
                                    dict(after=8 / block + 32 / BLOCK)),
        "second-each-64": ("64 blocks share a second absmax; it is 256", dict(after=(8 + 32 / 64) / block)),
        "one-byte-second": ("the second absmax is booked with 8 bits; it is a float32",
                            dict(after=(8 + 8 / BLOCK) / block)),
        "blocks-of-64": ("that is for blocks of 64, whatever is asked for",
                         dict(before=32 / 64, after=(8 + 32 / BLOCK) / 64)),
        "saved-is-before": ("that is what the scales cost before; before - after is saved",
                            dict(saved=before, saved_gb=weights * before / 8 / GB)),
        "saved-is-after": ("that is what is left of the scales; before - after is saved", dict(saved=after)),
        "sign": ("that is after - before; it is the other way round", dict(saved=-saved, saved_gb=-gigabytes)),
        "share": ("that is a share; bits per weight are asked for", dict(saved=saved / before)),
        "bits-for-gb": ("those are bits per weight; GB are asked for, for all weights", dict(saved_gb=saved)),
        "weights-themselves": ("half a byte per weight is the weight itself, not what its scales can save",
                               dict(saved=4.0, saved_gb=weights / 2 / GB)),
        "bits": ("8 times too much: those are bits, and GB are bytes", dict(saved_gb=8 * gigabytes)),
        "gib-for-gb": ("that is in GiB, divided by 2**30; GB are asked for",
                       dict(saved_gb=gigabytes * GB / GIB)),
        "bytes-for-gb": ("that is in bytes; GB are asked for", dict(saved_gb=gigabytes * GB)),
        "mb-for-gb": ("that is in MB; GB are asked for", dict(saved_gb=gigabytes * 1000)),
    }  # fmt: skip
