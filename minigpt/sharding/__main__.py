"""Train a MiniGPT with several ranks:

    torchrun --nproc_per_node 2 -m minigpt.sharding --sharding fsdp2 --steps 5

torchrun starts the ranks, tells each its number and stops all if one fails. Where every rank can have a GPU of its own
they talk through NCCL, elsewhere through gloo. Rank 0 says the losses; each says what it keeps.

Left out: saving, more than one machine.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist

from minigpt.console import show
from minigpt.data import pretraining_text, random_windows
from minigpt.memory.units import readable
from minigpt.model import PRESETS, GPTConfig
from minigpt.sample import Parser
from minigpt.sharding.kinds import KINDS
from minigpt.sharding.run import run
from minigpt.values import check_counts

TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # by torchrun


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="minigpt.sharding", description="Train a MiniGPT with the ranks that torchrun has started.")
    parser.add_argument("--sharding", choices=KINDS, default="fsdp2", help="how they share it (fsdp2)")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="nano", help="the model (nano)")
    parser.add_argument("--steps", type=int, default=5, help="updates (5)")
    parser.add_argument("--batch", type=int, default=2, help="sequences for each rank and step (2)")
    parser.add_argument("--seq-len", type=int, default=64, help="tokens in a sequence (64)")
    parser.add_argument(
        "--reshard-after-forward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fsdp2: free and gather again",
    )
    given = parser.parse_args(argv)
    if not given.reshard_after_forward and given.sharding != "fsdp2":
        parser.error(f"no-reshard-after-forward has no effect with sharding {given.sharding!r}: allowed with it: fsdp2")
    if not all(os.environ.get(name, "").isdecimal() for name in TOLD):
        parser.error("there are no ranks: start it as torchrun --nproc_per_node 2 -m minigpt.sharding")
    try:
        check_counts(steps=given.steps, batch=given.batch, seq_len=given.seq_len)
        train(given)
    except ValueError as error:
        parser.error(str(error))
    return 0


def train(given: argparse.Namespace) -> None:
    """As one of the ranks."""
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if on_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        batches = random_windows(pretraining_text("validation"), given.batch * ranks, given.seq_len)
        options = {"reshard_after_forward": given.reshard_after_forward} if given.sharding == "fsdp2" else {}
        device = "cuda" if on_gpus else "cpu"
        done = run(GPTConfig.preset(given.preset), given.sharding, batches, given.steps, device, **options)
        if dist.get_rank() == 0:
            show(f"{given.sharding}, ranks: {ranks}, losses: " + ", ".join(f"{loss:.6f}" for loss in done.losses))
        dist.barrier()
        kept = ", ".join(f"{name} {readable(nbytes)}" for name, nbytes in done.held.items())
        show(f"rank {dist.get_rank()} keeps {kept}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
