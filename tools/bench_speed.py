"""Training speed and peak memory of MiniGPT beside transformers' GPT-2 of the same shape, on the CPU.

    python -m tools.bench_speed [--preset micro] [--batch 8] [--seconds 60]

All get the same width, depth, heads, vocabulary, sequence, tokens and optimizer (AdamW), and no dropout. A step is
forward, loss, backward, update. They take turns inside one process (``tools.pairs``): "MiniGPT is" gives the median of
the other's time over ours, turn by turn, with the smallest and the largest; tokens per second are of the median step.
Memory is the peak of the live tensor bytes over one step, from the allocator's events in
torch's profiler, each model in a process of its own, after two steps (so that the optimizer's state exists).

GPT-2's own activation, "gelu_new", is made of eight small kernels. "GPT-2, gelu" has MiniGPT's, which is one: then the
two models do the same arithmetic, but for GPT-2's biases and its fused qkv projection. Under autocast that projection
casts its input once, and MiniGPT's three cast it three times: the price of names that adapters can target.
``fp32`` is float32 throughout,
``bf16`` has bfloat16 weights and state, ``bf16-autocast`` casts float32 weights on the fly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from math import inf

import torch
from torch import nn

from minigpt.memory.units import mb
from minigpt.model import GPT, GPTConfig
from minigpt.precision import autocast, weight_dtype
from tools.pairs import Ratio, clocked, in_turns

ACTIVATIONS = {"GPT-2": "gelu_new", "GPT-2, gelu": "gelu"}
MODELS = ("MiniGPT", *ACTIVATIONS)
PRECISIONS = ("fp32", "bf16", "bf16-autocast")


class Step:
    """One model with its optimizer; calling it is one training step."""

    def __init__(self, name: str, preset: str, precision: str, batch: int) -> None:
        config = GPTConfig.preset(preset)
        torch.manual_seed(0)
        self.name, self.precision = name, precision
        self.model = GPT(config) if name == "MiniGPT" else gpt2(config, ACTIVATIONS[name])
        self.model.to(weight_dtype(precision)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(config.vocab_size, (batch, config.context))  # (B, T)

    def __call__(self) -> None:
        with autocast(self.precision, "cpu"):
            if self.name == "MiniGPT":
                loss = self.model(self.tokens, self.tokens)
            else:
                loss = self.model(self.tokens, labels=self.tokens, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def gpt2(config: GPTConfig, activation: str) -> nn.Module:
    """transformers' GPT-2 in the shape of a MiniGPT, with the same attention kernel."""
    from transformers import AutoModelForCausalLM, GPT2Config

    sizes = GPT2Config(
        n_layer=config.n_layer,
        n_embd=config.n_embd,
        n_head=config.n_head,
        n_positions=config.context,
        vocab_size=config.vocab_size,
        activation_function=activation,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = AutoModelForCausalLM.from_config(sizes, attn_implementation="sdpa", dtype=torch.float32)
    model.loss_type = "ForCausalLM"  # transformers does not find it from this class's name, and warns
    return model


def step_seconds(preset: str, precision: str, batch: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each step, the models in turns, for about ``seconds``; at least five steps each."""
    steps = {name: clocked(Step(name, preset, precision, batch)) for name in MODELS}
    return in_turns(steps, turns=5, seconds=seconds)


def peak_bytes(name: str, preset: str, precision: str, batch: int) -> int:
    """Bytes of weights and optimizer state, and the largest sum of all that one step allocates beside them."""
    step = Step(name, preset, precision, batch)
    step()
    step()
    before = sum(
        tensor.untyped_storage().nbytes()
        for tensor in [*step.model.parameters(), *step.model.buffers()]
        + [value for state in step.optimizer.state.values() for value in state.values()]
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    live = peak = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return before + peak


def in_own_process(name: str, preset: str, precision: str, batch: int) -> int:
    command = [sys.executable, "-m", "tools.bench_speed", "--preset", preset, "--batch", str(batch)]
    done = subprocess.run([*command, "--peak-of", name, precision], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring {name} in {precision} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(preset: str, batch: int, seconds: float, tokens: int) -> None:
    """Print the table, a precision at a time."""
    print(f"MiniGPT {preset}: {tokens} tokens a step, {torch.get_num_threads()} CPU threads")
    names = f"{'tokens/s':>10}{'MiniGPT is as fast':>24}{'peak memory':>14}{'MiniGPT is':>13}{'steps':>7}"
    print(f"{'precision':15}{'model':13}{names}")
    for precision in PRECISIONS:
        taken = step_seconds(preset, precision, batch, seconds)
        speeds = {name: tokens / statistics.median(taken[name]) for name in MODELS}
        peaks = {name: in_own_process(name, preset, precision, batch) for name in MODELS}
        for name in MODELS:
            faster, larger = str(Ratio.of(taken, name, "MiniGPT")), peaks["MiniGPT"] / peaks[name]
            print(
                f"{precision:15}{name:13}{speeds[name]:10,.0f}{faster:>24}{mb(peaks[name]):>14}{larger:12.2f}x"
                f"{len(taken[name]):7}",
                flush=True,
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="micro", help="MiniGPT preset (micro)")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a batch (8)")
    parser.add_argument("--seconds", type=float, default=45, help="of measuring, for each precision (45)")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if arguments.peak_of:
        print(peak_bytes(arguments.peak_of[0], arguments.preset, arguments.peak_of[1], arguments.batch))
        return 0
    try:
        tokens = GPTConfig.preset(arguments.preset).context * arguments.batch
        if arguments.batch < 1:
            raise ValueError(f"batch is {arguments.batch}; it must be at least 1")
        if not 0 < arguments.seconds < inf:
            raise ValueError(f"seconds is {arguments.seconds}; it must be more than 0, and an end")
    except ValueError as error:
        print(f"tools.bench_speed: {error}", file=sys.stderr)
        return 2
    try:
        compare(arguments.preset, arguments.batch, arguments.seconds, tokens)
    except (RuntimeError, MemoryError) as error:  # torch's allocator, here or in a process of its own
        print(f"tools.bench_speed: {(str(error).strip() or 'out of memory').splitlines()[-1]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
