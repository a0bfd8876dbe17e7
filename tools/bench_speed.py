"""Training speed and peak memory of MiniGPT beside transformers' GPT-2 of the same shape, on the CPU.

    python -m tools.bench_speed [--preset micro] [--batch 8] [--seconds 60]

Both get the same width, depth, heads, vocabulary, sequence, tokens and optimizer (AdamW), and no dropout. A step is
forward, loss, backward, update. The two take turns inside one process, so that a busy machine slows both alike;
the figure is the median. Memory is the peak of the live tensor bytes over one step, from the allocator's events in
torch's profiler, each model in a process of its own, after two steps (so that the optimizer's state exists).

GPT-2 gets MiniGPT's GELU, one fused kernel; its own "gelu_new" is made of eight, slower and larger. What differs is
that GPT-2 has biases and one fused qkv projection, and that its loss copies the logits. ``fp32`` is float32 throughout,
``bf16`` has bfloat16 weights and state, ``bf16-autocast`` casts float32 weights on the fly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from minigpt.memory.units import mb
from minigpt.model import GPT, GPTConfig
from minigpt.precision import autocast, weight_dtype

MODELS = ("MiniGPT", "GPT-2")
PRECISIONS = ("fp32", "bf16", "bf16-autocast")


class Step:
    """One model with its optimizer; calling it is one training step."""

    def __init__(self, name: str, preset: str, precision: str, batch: int) -> None:
        config = GPTConfig.preset(preset)
        torch.manual_seed(0)
        self.name, self.precision = name, precision
        self.model = (GPT(config) if name == "MiniGPT" else gpt2(config)).to(weight_dtype(precision)).train()
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


def gpt2(config: GPTConfig) -> nn.Module:
    """transformers' GPT-2 in the shape of a MiniGPT, with its own fastest attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=config.n_layer,
            n_embd=config.n_embd,
            n_head=config.n_head,
            n_positions=config.context,
            vocab_size=config.vocab_size,
            activation_function="gelu",
            loss_type="ForCausalLM",
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
        )
    )


def step_seconds(preset: str, precision: str, batch: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each step, the two models in turns, for about ``seconds``; at least five steps each."""
    steps = [Step(name, preset, precision, batch) for name in MODELS]
    for step in steps:
        step()  # the first step pays for warming up
    taken: dict[str, list[float]] = {name: [] for name in MODELS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[MODELS[-1]]) < 5:
        for step in steps if len(taken[MODELS[-1]]) % 2 else reversed(steps):
            started = time.perf_counter()
            step()
            taken[step.name].append(time.perf_counter() - started)
    return taken


def peak_bytes(name: str, preset: str, precision: str, batch: int) -> int:
    """Weights, gradients and optimizer state, and the largest sum of everything that one step holds beside them."""
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="micro", help="MiniGPT preset (micro)")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a batch (8)")
    parser.add_argument("--seconds", type=float, default=30, help="of measuring, for each precision (30)")
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
    except ValueError as error:
        print(f"tools.bench_speed: {error}", file=sys.stderr)
        return 2
    print(f"MiniGPT {arguments.preset} beside GPT-2, {tokens} tokens a step, {torch.get_num_threads()} CPU threads")
    print(f"{'':14}{'tokens/s':>22}{'':>9}{'peak memory':>24}")
    print(
        f"{'precision':14}{MODELS[0]:>11}{MODELS[1]:>11}{'ratio':>9}{MODELS[0]:>14}{MODELS[1]:>14}{'ratio':>9}{'steps':>7}"
    )
    for precision in PRECISIONS:
        taken = step_seconds(arguments.preset, precision, arguments.batch, arguments.seconds)
        ours, theirs = (tokens / statistics.median(taken[name]) for name in MODELS)
        peaks = [in_own_process(name, arguments.preset, precision, arguments.batch) for name in MODELS]
        print(
            f"{precision:14}{ours:11,.0f}{theirs:11,.0f}{ours / theirs:9.2f}"
            f"{mb(peaks[0]):>14}{mb(peaks[1]):>14}{peaks[0] / peaks[1]:9.2f}{len(taken[MODELS[0]]):7}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
