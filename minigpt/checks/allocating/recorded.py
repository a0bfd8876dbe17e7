"""What a GPU recorded: the requests of one attention, forward and backward, on an empty card, and what was reserved.

Source: mem_snapshot.pickle of github.com/silmont2000/assignment2-systems, commit 133f0643 (5 March 2026, MIT licence):
attention without a fused kernel, 8 x 4096 tokens, width 16, float32, torch 2.6. Only sizes and their order are kept.
The two of 8,519,680 bytes are cuBLAS's workspaces.
"""

from __future__ import annotations

from minigpt.checks.probes.allocating import Event

SCORES, ROW, WORKSPACE = 536_870_912, 2_097_152, 8_519_680  # 8 x 4096 x 4096 and 8 x 4096 x 16 in float32
#: A size is a request; -n frees the block of request n, counted from 0.
TOLD = (
    ROW, ROW, ROW, SCORES, WORKSPACE, SCORES, -3, 131072, 262144, SCORES, SCORES, -8, 131072, SCORES, -6, ROW, -5,
    4, 256, 4, -15, -14, 4, ROW, ROW, WORKSPACE, -18, SCORES, ROW, -21, -11, SCORES, SCORES, SCORES, SCORES, -24, -23,
    -22, SCORES, 131072, -25, -20, -10, -27, SCORES, -26, -9, SCORES, 131072, -29, SCORES, -30, -7, -31, SCORES, -28,
    ROW, ROW, -32, ROW, -33, -16,
)  # fmt: skip
#: (number of the request, size) of each segment that was taken, and the two peaks: as the GPU's allocator had them.
SEGMENTS = (
    (0, 20_971_520), (3, SCORES), (5, SCORES), (6, 2_097_152), (9, SCORES), (20, SCORES), (23, SCORES), (24, SCORES),
    (25, SCORES),
)  # fmt: skip
ALLOCATED, RESERVED = 3_249_144_832, 3_781_165_056


def attention() -> list[Event]:
    """The recorded requests and frees, as events."""
    sizes = [size for size in TOLD if size > 0]
    told, key = [], 0
    for number in TOLD:
        if number > 0:
            told.append(Event("born", key, number))
            key += 1
        else:
            told.append(Event("died", -number, sizes[-number]))
    return told
