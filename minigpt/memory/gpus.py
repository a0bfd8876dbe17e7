"""Cards: how many bytes a GPU really holds, how fast it reads them and computes with them, and in which formats.

A card is sold by a round number of "GB", and that number counts GiB: the chips come in powers of two. What a
program may use is a little less: error correction on GDDR6 takes about 1/16, the driver keeps some for itself, and
the CUDA context takes some hundreds of MB more.

Sources: ``vram`` is the total that nvidia-smi prints (in MiB), as in public logs of each card; with error correction
where it is on by default. ``bandwidth`` is NVIDIA's data sheet. ``NATIVE`` is NVIDIA's too: the CUDA Programming Guide,
"Compute Capabilities", tensor core input types, and the target notes of ``mma`` and ``wmma`` in the PTX ISA. float32 is
computed everywhere; on tensor cores only as tf32.

``half`` and ``single`` are from the data sheets and the white papers on Turing, GA102, Ada, Hopper and Blackwell,
without sparsity; torchtitan's tools/utils.py has the same for A100, H100 and H200. ``half`` is for tensor cores that
add in float32, as torch has them do: a GeForce adds in float16 twice as fast, and its box counts that, and sparsity.
``single`` is without tensor cores, torch's default. ``bus`` is PCIe with 16 lanes, one way: half of what a data sheet
gives for both.

``workspace`` is what torch gives each cuBLAS handle, from the allocator, at its first matrix product: 32 MiB on compute
capability 9.0 and later, before it two times 4 MiB plus sixteen times 8 KiB (torch's CublasHandlePool.cpp, 2026; until
then it was 32 MiB on 9.0 alone).

``processors`` is the data sheet's number of multiprocessors; how many ``threads`` each holds, the CUDA Programming
Guide's by compute capability. A reduction that many blocks share takes scratch by both.

``CONTEXT`` is what CUDA's context and its kernels take beside the allocator, with room to spare: 141 MiB on a T4
(tests/readings/published.csv), 501 MiB on an A100.

Left out: cards with several memory sizes under one name, Multi-Instance GPU slices, other makers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from minigpt.memory.units import GB, GIB, MIB

CONTEXT = 512 * MIB

# A format that matrix products take, and the first compute capability whose tensor cores take it.
NATIVE = {"fp16": (7, 0), "int8": (7, 2), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}


class GPU(NamedTuple):
    """One card. ``label`` is the number it is sold by; ``vram`` is bytes.

    Per second, at best: ``bandwidth``, bytes of its own memory; ``half`` and ``single``, FLOPs in products of matrices
    of 16 bits and of float32; ``bus``, bytes to the CPU's memory or from it.
    """

    label: int
    vram: int
    bandwidth: int
    capability: tuple[int, int]  # CUDA compute capability: (major, minor)
    processors: int
    half: float
    single: float
    bus: int

    @property
    def native(self) -> tuple[str, ...]:
        """The formats of ``NATIVE`` that the card's tensor cores multiply; another is emulated, or refused."""
        return tuple(name for name, first in NATIVE.items() if self.capability >= first)

    @property
    def formats(self) -> tuple[str, ...]:
        """torch's names of the 16-bit formats that the card computes in without emulation."""
        return ("float16", "bfloat16") if "bf16" in self.native else ("float16",)

    def speed(self, dtype: str) -> float:
        """FLOPs per second in products of matrices of ``dtype``, torch's name; a format that is emulated: float32's."""
        return self.half if dtype in self.formats else self.single

    @property
    def workspace(self) -> int:
        """Bytes that torch gives each cuBLAS handle. A training step has two: the forward's thread and backward's."""
        return 32 * MIB if self.capability >= (9, 0) else 2 * 4 * MIB + 16 * 8 * 1024

    @property
    def threads(self) -> int:
        """How many threads a multiprocessor holds at once."""
        return {(7, 5): 1024, (8, 0): 2048, (9, 0): 2048, (10, 0): 2048}.get(self.capability, 1536)

    @property
    def room(self) -> int:
        """Bytes that the allocator may take, where no other programme runs."""
        return self.vram - CONTEXT

    @property
    def withheld(self) -> int:
        """Bytes between ``label`` GiB and what nvidia-smi reports."""
        return self.label * GIB - self.vram


TERA = 10**12
GPUS = {
    "T4": GPU(16, 15360 * MIB, 320 * GB, (7, 5), 40, 65 * TERA, 8.1 * TERA, 16 * GB),
    "RTX 4080": GPU(16, 16376 * MIB, 717 * GB, (8, 9), 76, 97.5 * TERA, 48.7 * TERA, 32 * GB),
    "RTX 3090": GPU(24, 24576 * MIB, 936 * GB, (8, 6), 82, 71 * TERA, 35.6 * TERA, 32 * GB),
    "RTX 4090": GPU(24, 24564 * MIB, 1008 * GB, (8, 9), 128, 165.2 * TERA, 82.6 * TERA, 32 * GB),
    "A10G": GPU(24, 23028 * MIB, 600 * GB, (8, 6), 80, 70 * TERA, 35 * TERA, 32 * GB),
    "L4": GPU(24, 23034 * MIB, 300 * GB, (8, 9), 58, 121 * TERA, 30.3 * TERA, 32 * GB),
    "RTX 5090": GPU(32, 32607 * MIB, 1792 * GB, (12, 0), 170, 209.5 * TERA, 104.8 * TERA, 64 * GB),
    "A100 40GB": GPU(40, 40960 * MIB, 1555 * GB, (8, 0), 108, 312 * TERA, 19.5 * TERA, 32 * GB),
    "RTX A6000": GPU(48, 49140 * MIB, 768 * GB, (8, 6), 84, 154.8 * TERA, 38.7 * TERA, 32 * GB),
    "L40S": GPU(48, 46068 * MIB, 864 * GB, (8, 9), 142, 362 * TERA, 91.6 * TERA, 32 * GB),
    "A100 80GB": GPU(80, 81920 * MIB, 2039 * GB, (8, 0), 108, 312 * TERA, 19.5 * TERA, 32 * GB),
    "H100 80GB": GPU(80, 81559 * MIB, 3350 * GB, (9, 0), 132, 989 * TERA, 67 * TERA, 64 * GB),
    "H200": GPU(141, 143771 * MIB, 4800 * GB, (9, 0), 132, 989 * TERA, 67 * TERA, 64 * GB),
}

_MAKERS = r"nvidia|tesla|geforce|sxm\d*|pcie|hbm\d*\w*"  # words of torch.cuda.get_device_name that tell no card apart


def find_gpu(name: str) -> str:
    """The name in ``GPUS`` that ``name`` means, whatever its case and spaces: "rtx4090", "NVIDIA A100-SXM4-80GB".

    Raises ValueError for one that is not listed, and for one that is sold with several memory sizes.
    """
    if not isinstance(name, str):
        raise ValueError(f"card is {name!r}; allowed: {', '.join(GPUS)}")
    asked = re.sub(rf"[\W_]|{_MAKERS}", "", name.lower())
    found = [card for card in GPUS if asked and asked in _spellings(card)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(f"card is {name!r}; allowed: {', '.join(GPUS)}")
    sizes = " and ".join(card.rpartition(" ")[2] for card in found)
    raise ValueError(f"card is {name!r}; {name} is sold with {sizes}: say which, {' or '.join(map(repr, found))}")


def _spellings(card: str) -> set[str]:
    """How a card is written: "A100 80GB" also without its size, "RTX 4090" also without RTX."""
    words = card.lower().split()
    parts = [words, words[1:] if words[0] == "rtx" else words, words[:1] if words[0] != "rtx" else words]
    return {"".join(part) for part in parts}
