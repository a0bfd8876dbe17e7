"""The meter against torch's MemTracker, and the prediction's own speed: part of ``make bench``.

One full training step of LLaMA-7B (transformers' model, batch 4 x 512, bf16, AdamW, outputs held, key-value
cache on: what transformers does unless told otherwise) on fake tensors, under each instrument in turn, in a
fresh process each time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

GIB = 2**30

STEP = """
import json, sys, time, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from minigpt.memory import TrainingPlan
from minigpt.memory.measured.building import build
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import Batch, training_step
from minigpt.memory.measured.meter import MemoryMeter
plan = TrainingPlan(batch=4, seq_len=512, precision="bf16", holds="outputs", use_cache=True)
with FakeTensorMode():
    module = build("llama-7b", plan, "fake")
    optimizer = make_optimizer(module, plan)
    tokens = torch.randint(0, 32000, (plan.batch, plan.seq_len))
    started = time.perf_counter()
    if sys.argv[1] == "meter":
        with MemoryMeter(module, optimizer, (tokens,)) as meter:
            training_step(module, optimizer, Batch(tokens, tokens), plan, meter.mark)
        peak = meter.result().peak.total
    elif sys.argv[1] == "MemTracker":
        from torch.distributed._tools.mem_tracker import MemTracker
        tracker = MemTracker()
        tracker.track_external(module, optimizer, tokens)
        with tracker:
            training_step(module, optimizer, Batch(tokens, tokens), plan)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    else:
        training_step(module, optimizer, Batch(tokens, tokens), plan)
        peak = 0
    print(json.dumps([time.perf_counter() - started, peak]))
"""
PREDICT = """
import json, time
started = time.perf_counter()
from minigpt.memory import TrainingPlan, predict
imported = time.perf_counter()
plan = TrainingPlan(batch=4, seq_len=512, precision="bf16", holds="outputs", use_cache=True)
peak = predict("llama-7b", plan).peak.total
print(json.dumps([time.perf_counter() - started, peak, imported - started]))
"""


def run(code: str, *arguments: str) -> list[float]:
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{arguments or 'prediction'} failed: {ran.stderr.strip().splitlines()[-1]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="processes for each instrument")
    repeat = parser.parse_args().repeat
    if repeat < 1:
        print(f"error: --repeat is {repeat}; it must be at least 1", file=sys.stderr)
        return 2
    seconds: dict[str, list[float]] = {"no instrument": [], "meter": [], "MemTracker": []}
    peaks: dict[str, float] = {}
    for _ in range(repeat):
        for name in seconds:
            spent, peaks[name] = run(STEP, name)
            seconds[name].append(spent)
    predictions = [run(PREDICT) for _ in range(max(5, repeat))]
    print("One training step of LLaMA-7B on fake tensors (batch 4 x 512, bf16, AdamW):")
    for name, spent in seconds.items():
        peak = f"peak {peaks[name] / GIB:.2f} GiB" if peaks[name] else ""
        print(f"  {name:<14} {median(spent):7.2f} s   {peak}")
    print(f"  MemTracker / meter: {median(seconds['MemTracker']) / median(seconds['meter']):.1f} times")
    spent, imported = (median(column) for column in list(zip(*predictions, strict=True))[::2])
    print(f"The same step predicted: {1e3 * spent:.0f} ms, imports {1e3 * imported:.0f} ms of it;", end=" ")
    print(f"peak {predictions[0][1] / GIB:.2f} GiB")
    return 0 if round(peaks["meter"] / GIB, 2) == round(peaks["MemTracker"] / GIB, 2) else 1


if __name__ == "__main__":
    sys.exit(main())
