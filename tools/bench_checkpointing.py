"""What each checkpointing policy costs in time, beside its memory: part of ``make bench``.

    python -m tools.bench_checkpointing [--turns 7]

Training steps of a MiniGPT and of a llama of the same size, under every policy in turn (``tools.pairs``): the figure is
the median of a policy's time over that of "none", turn by turn, with the smallest and the largest. Beside it stand the
FLOPs that the policy runs again, as a share of the step, and the activations and the peak, all predicted. Time above
the share of FLOPs is what is no product: norms, softmax, copies, and torch's own work for each checkpoint.
"""

from __future__ import annotations

import argparse
import sys

import torch

from minigpt.checkpointing import POLICIES, checkpoint_blocks
from minigpt.memory import TrainingPlan, predict
from minigpt.memory.measured.building import build
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, training_step
from minigpt.memory.predicted.flops import flops
from minigpt.memory.units import MIB
from minigpt.model import GPTConfig
from tools.models import llama
from tools.pairs import Ratio, clocked, in_turns

DEEP = 9  # blocks: sqrt takes three at a time
MODELS = {
    "MiniGPT": GPTConfig(n_layer=DEEP, n_embd=128, n_head=4, vocab_size=256),
    "llama": llama(num_hidden_layers=DEEP, hidden_size=128, intermediate_size=344, head_dim=32, vocab_size=256),
}


def measure(name: str, turns: int) -> None:
    """Print one line for each policy."""
    plan = TrainingPlan(batch=4, seq_len=256)
    module = build(MODELS[name], plan)
    optimizer, batch = make_optimizer(module, plan), make_batch(module, plan)

    def step(policy: str):
        def run() -> None:
            checkpoint_blocks(module, policy)
            training_step(module, optimizer, batch, plan)
            optimizer.zero_grad()

        return clocked(run)

    taken = in_turns({policy: step(policy) for policy in POLICIES}, turns)
    for policy in POLICIES:
        planned = TrainingPlan(**{**vars(plan), "checkpointing": policy})
        memory, work = predict(MODELS[name], planned), flops(MODELS[name], planned)
        sizes = f"{memory.ledger.activations / MIB:9.1f} MiB{memory.peak.total / MIB:9.1f} MiB"
        ratio = str(Ratio.of(taken, policy, "none"))
        print(f"{name:9}{policy:11}{ratio:>24}{1 + work.extra:9.2f}x{sizes}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench_checkpointing", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7, help="steps of each policy (7)")
    arguments = parser.parse_args(argv)
    if arguments.turns < 1:
        print(f"tools.bench_checkpointing: turns is {arguments.turns}; it must be at least 1", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    print(f"{'model':9}{'policy':11}{'time':>24}{'FLOPs':>10}{'activations':>13}{'peak':>13}")
    for name in MODELS:
        measure(name, arguments.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
