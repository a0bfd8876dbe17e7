"""Programmes recorded on real GPUs, told from configuration alone: python -m tools.programmes FOLDER.

FOLDER holds ``catalog.csv`` and ``traces/``. For each recording: the first request in which told and recorded part.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from minigpt.memory.predicted.cuda import CudaKernels
from tools.recorded import cs336, traces
from tools.recorded.cs336 import Programme

SIZES = {
    "medium 1024x24x16": dict(d_model=1024, num_layers=24, num_heads=16, d_ff=4096),
    "large 1280x36x20": dict(d_model=1280, num_layers=36, num_heads=20, d_ff=5120),
    "xl 2560x32x32": dict(d_model=2560, num_layers=32, num_heads=32, d_ff=10240),
}
SCRIPTS: dict[str, Callable[[Programme], None]] = {
    "Hyperion-shuo_memory_snapshot_large_cl128_fw_with": partial(cs336.forward_and_loss, gradients=True),
    "Hyperion-shuo_memory_snapshot_large_cl512_fw_with": partial(cs336.forward_and_loss, gradients=True),
    "Hyperion-shuo": cs336.forward_and_loss,
    "LINYUNLinYun_xl_ctx128_full": cs336.full_step,
    "LINYUNLinYun_xl_ctx512_full": cs336.full_step,
    "Wedsonlin_medium_128_training": cs336.own_step,
    "Wedsonlin_medium_1024_training": cs336.own_step,
    **{f"LINYUNLinYun_xl_ctx128_forward_none_{one}": partial(cs336.forward_only, gradients=True)
       for one in ("08d334", "8f7e5d", "9a3860")},
    "LINYUNLinYun_xl_ctx128_forward_bf16_3333ec": partial(cs336.forward_only, gradients=True),
    "bolongcheng_memory_snapshot_xl_fwd_cl512": partial(cs336.forward_only, gradients=True),
    "LINYUNLinYun": cs336.forward_only,
    "Wedsonlin": cs336.forward_only,
    "bolongcheng": cs336.forward_only,
}  # fmt: skip


def script_of(name: str) -> Callable[[Programme], None] | None:
    return next((script for start, script in SCRIPTS.items() if name.startswith(start)), None)


def tell(row: dict[str, str]) -> Programme | None:
    """The programme of a row of the catalogue, run on the tape; None for one that is not told."""
    script, size = script_of(row["trace"]), next((size for name, size in SIZES.items() if name in row["model"]), None)
    if script is None or size is None:
        return None
    batch, seq_len = int(row["batch"]), int(row["seq"])
    edition = "2025" if row["repo"].startswith("Hyperion") else "2026"
    config = dict(size, model_type="cs336", vocab_size=10000, context_length=seq_len, edition=edition)
    card = CudaKernels(int(row["cublas_workspace"]), processors=132)
    programme = Programme(config, batch, seq_len, row["precision"].startswith("bf16"), card)
    script(programme)
    return programme


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.programmes", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of a recording's name")
    parser.add_argument("--show", type=int, default=0, help="so many requests around the parting")
    options = parser.parse_args()
    with open(options.folder / "catalog.csv", encoding="utf8") as file:
        rows = [row for row in csv.DictReader(file) if options.only in row["trace"]]
    for row in rows:
        programme = tell(row)
        if programme is None:
            print(f"{row['trace']:<75} not told")
            continue
        told, recorded = traces.told(programme.tape, programme.began), traces.read(
            options.folder / "traces" / f"{row['trace']}.csv.gz"
        )
        parting = told.parting(recorded)
        print(f"{row['trace']:<75} {len(told.sizes):>6} {len(recorded.sizes):>6} {parting}", flush=True)
        if parting is not None and options.show:
            for i in range(max(0, parting - 4), parting + options.show):
                for found in (told, recorded):
                    line = [f"{found.sizes[i]:>12}", found.freed[i]] if i < len(found.sizes) else ["end", found.freed[-1]]
                    print("   ", i, *line, sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
