"""What the tests of ranks let each rank do. Every function here runs in a rank's process (``run_ranks``)."""

import hashlib
import os
import signal
import time
from unittest import mock

import torch
import torch.distributed as dist

from minigpt.memory.measured.ranks import one_rank
from minigpt.model import GPTConfig
from minigpt.sharding import kinds
from minigpt.sharding.run import LR, Run, held, run

CONFIG = GPTConfig(n_layer=3, n_embd=20, n_head=2, context=9, vocab_size=31)  # blocks and the rest need padding for 3
STEPS = 3
OPTIONS = {"bucket view": {"gradient_as_bucket_view": True}, "kept": {"reshard_after_forward": False}}


class Batches:
    """Twelve sequences a step, the same in every process."""

    def __getitem__(self, i: int):
        tokens = torch.randint(31, (12, 10), generator=torch.Generator().manual_seed(i))
        return tokens[:, :-1], tokens[:, 1:]


def told(done: Run) -> dict:
    """A run in what JSON has: weights as one number for each and as the digest of all."""
    digest = hashlib.sha256(b"".join(w.contiguous().numpy().tobytes() for w in done.weights)).hexdigest()
    return {"losses": done.losses, "held": done.held, "digest": digest, "sums": [w.sum().item() for w in done.weights]}


def everything(rank: int, meeting, groups: list[int], cases: list) -> dict:
    """All that is asked of one launch, since a process takes two seconds to start: trainings, and metered steps."""
    return {"trained": train_all(rank, meeting, groups), "measured": one_rank(cases, rank, meeting)}


def train_all(rank: int, meeting, groups: list[int]) -> dict:
    """Every kind of sharding with each number of ranks, one after the other; the ranks beyond it wait."""
    found: dict = {str(ranks): {} for ranks in groups}
    for ranks in (ranks for ranks in groups if rank < ranks):
        for kind in (*kinds.KINDS, "bucket view", "kept", "ZeroRedundancyOptimizer"):
            with meeting.joined(f"{kind} {ranks}", rank, ranks):
                found[str(ranks)][kind] = told(train(kind))
    return found


def train(kind: str) -> Run:
    if kind == "ZeroRedundancyOptimizer":
        return with_torchs_zero1()
    name = {"bucket view": "ddp", "kept": "fsdp2"}.get(kind, kind)
    return run(CONFIG, name, Batches(), STEPS, **OPTIONS.get(kind, {}))


def with_torchs_zero1() -> Run:
    """Torch's own stage 1, which deals out whole tensors; its state is that of an optimizer inside."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # here, because it takes a quarter of a second

    made = []

    def adamw(parameters):
        made.append(ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=LR, foreach=False))
        return made[0]

    with mock.patch("minigpt.sharding.run.adamw", adamw):
        done = run(CONFIG, "data_parallel", Batches(), STEPS)
    return done._replace(held={**done.held, "optimizer": held(torch.nn.Module(), made[0].optim)["optimizer"]})


def fail(rank: int, meeting, ranks: int, how: str) -> float:
    """Rank 1 fails as it is told, before a collective that the others are in."""
    with meeting.joined("it", rank, ranks):
        numbers = torch.ones(3)
        dist.all_reduce(numbers)
        if rank == 1:
            {
                "raises": lambda: 1 / 0,
                "ends": lambda: os._exit(3),
                "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
                "hangs": lambda: time.sleep(600),
            }[how]()
        dist.all_reduce(numbers)
    return numbers.sum().item()
