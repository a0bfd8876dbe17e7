"""An allocator over a list of blocks, with one mistake or none: what a student's own would do.

    Flawed("never-joined").allocate(nbytes)       # (address, size)

Without a mistake it decides as the course's allocator does, in other words (tests/test_checks_allocating.py).
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.closing import knows
from minigpt.memory.units import MIB

Block = dict  # address, size, segment, pool, free

#: What each mistake is, in words for whoever makes it.
FLAWS = {
    "first-fit": "the first block that is large enough is taken; the smallest one is to be",
    "worst-fit": "the largest block is taken; the smallest that is large enough is to be",
    "high-address": "of equal blocks the one at the higher address is taken; the lower one is to be",
    "pools-lend": "a block of the other pool is taken; pools do not lend to each other",
    "not-rounded": "the request is not rounded up: a block is a multiple of 512 bytes",
    "never-reused": "every request takes a new segment; a free block that is large enough comes first",
    "never-split": "no rest is split off",
    "small-rule": "a rest of 1 MiB or less is split off in the large pool; only more than 1 MiB is",
    "large-rule": "a rest of 1 MiB or less stays in the small pool's block; there 512 bytes are split off already",
    "rest-lost": "the rest that is split off is in no list afterwards, so nobody can have it",
    "rest-in-use": "the rest that is split off counts as in use; it is free",
    "tail-given": "the request has the end of the block; it has the beginning, and the rest lies behind it",
    "never-joined": "a freed block does not join its free neighbours",
    "right-only": "a freed block joins the free block behind it, and not the one before it",
    "left-only": "a freed block joins the free block before it, and not the one behind it",
    "across-segments": "blocks of two segments are joined, as one ends where the other begins; a segment ends there",
    "gives-back": "a segment without a block in use leaves the list; it is kept, and only empty_cache gives it back",
    "joins-used": "a freed block is joined with a neighbour in use",
}


class Flawed:
    """``device(size)`` gives a new segment's address. ``blocks`` are in the order of their addresses."""

    def __init__(self, device: Callable[[int], int], flaw: str = ""):
        self.device, self.flaw = device, flaw
        self.blocks: list[Block] = []

    def allocate(self, nbytes: int) -> Block:
        size = nbytes if self.flaw == "not-rounded" else -(-nbytes // 512) * 512
        pool = "small" if size <= MIB else "large"
        block = self._search(pool, size) or self._grow(pool, size)
        rest = block["size"] - size
        if self.flaw != "never-split" and (rest > MIB or rest >= self._least(pool)):
            self._split(block, size)
        block["free"] = False
        return block

    def _least(self, pool: str) -> int:
        """The smallest rest that is split off."""
        small = pool == "small"
        if self.flaw in ("small-rule", "large-rule"):
            small = self.flaw == "small-rule"
        return (1 if self.flaw == "not-rounded" else 512) if small else MIB + 1

    def _search(self, pool: str, size: int) -> Block | None:
        either = self.flaw == "pools-lend"
        found = [b for b in self.blocks if b["free"] and b["size"] >= size and (either or b["pool"] == pool)]
        if not found or self.flaw == "never-reused":
            return None
        if self.flaw == "first-fit":
            return found[0]
        if self.flaw == "worst-fit":
            return max(found, key=lambda b: b["size"])
        if self.flaw == "high-address":
            return min(reversed(found), key=lambda b: b["size"])
        return min(found, key=lambda b: b["size"])

    def _grow(self, pool: str, size: int) -> Block:
        own = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        total = 2 * MIB if pool == "small" else own
        address = self.device(total)
        block = dict(address=address, size=total, segment=address, pool=pool, free=True)
        self.blocks.append(block)
        self.blocks.sort(key=lambda b: b["address"])
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = {**block, "address": block["address"] + size, "size": block["size"] - size}
        at = self.blocks.index(block) + 1
        if self.flaw == "tail-given":
            rest.update(address=block["address"])
            block["address"] += rest["size"]
            at -= 1
        block["size"] = size
        rest["free"] = self.flaw != "rest-in-use"
        if self.flaw != "rest-lost":
            self.blocks.insert(at, rest)

    def free(self, block: Block) -> None:
        block["free"] = True
        if self.flaw != "never-joined":
            self._join(block)
        if self.flaw == "gives-back":
            used = {b["segment"] for b in self.blocks if not b["free"]}
            self.blocks = [b for b in self.blocks if b["segment"] in used]

    def _join(self, block: Block) -> None:
        at = self.blocks.index(block)
        if self.flaw != "left-only" and at + 1 < len(self.blocks) and self._joins(block, self.blocks[at + 1]):
            block["size"] += self.blocks.pop(at + 1)["size"]
        if self.flaw != "right-only" and at and self._joins(self.blocks[at - 1], block):
            self.blocks[at - 1]["size"] += self.blocks.pop(at)["size"]

    def _joins(self, left: Block, right: Block) -> bool:
        if self.flaw == "joins-used":
            return left["segment"] == right["segment"] and left["free"]
        meet = left["address"] + left["size"] == right["address"]
        within = left["segment"] == right["segment"] or self.flaw == "across-segments"
        return meet and within and left["free"] and right["free"]


knows(__name__, Flawed.allocate, Flawed.free)
