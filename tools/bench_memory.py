"""The meter against torch's MemTracker, and how long ``predict`` and ``measure`` take: part of ``make bench``.

    python -m tools.bench_memory [--repeat 3]

One full training step of LLaMA-7B (transformers' model, batch 4 x 512, bf16, AdamW, outputs held, key-value
cache on: what transformers does unless told otherwise) on fake tensors, under each instrument in turn
(``tools.pairs``), in a fresh process each time. Then the same step predicted, and measured as a reader would, with
everything that they import; ``measure`` runs the step twice and builds the model first. Last, what the calculator takes
to draw a choice anew, from the slider's new value to the HTML.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from statistics import median

from minigpt.memory.units import GIB
from tools.pairs import Ratio, in_turns

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
ASK = """
import sys, time
started, used = time.perf_counter(), time.process_time()
from minigpt.memory import TrainingPlan
plan = TrainingPlan(batch=4, seq_len=512, precision="bf16", holds="outputs", use_cache=True)
if sys.argv[1] == "predict":
    from minigpt.memory import predict
    imported = time.perf_counter()
    peak = predict("llama-7b", plan).peak.total
    assert "torch" not in sys.modules, "predict imported torch"
else:
    from minigpt.memory.measured.step import measure
    imported = time.perf_counter()
    peak = measure("llama-7b", plan, "fake").peak.total
taken = time.perf_counter() - started, peak, imported - started, time.process_time() - used
import json  # not before: it brings re and enum, which predict imports too
print(json.dumps(taken))
"""


def run(code: str, name: str) -> list[float]:
    """What ``code`` prints as JSON in a process of its own: seconds, the peak in bytes, and so on.

    Python keeps its byte code, as it does for a reader: compiling costs more than what is timed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code, name]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise RuntimeError(f"{name} failed: {ran.stderr.strip().splitlines()[-1]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def instruments(repeat: int) -> bool:
    """Print what each instrument costs; returns whether the two see the same peak."""
    peaks: dict[str, float] = {}

    def seconds(name: str) -> float:
        spent, peaks[name] = run(STEP, name)
        return spent

    names = ("no instrument", "meter", "MemTracker")
    taken = in_turns({name: partial(seconds, name) for name in names}, repeat, warm_up=False)
    print("One training step of LLaMA-7B on fake tensors (batch 4 x 512, bf16, AdamW):")
    for name in names:
        peak = f"peak {peaks[name] / GIB:.2f} GiB" if peaks[name] else ""
        print(f"  {name:<14} {median(taken[name]):7.2f} s   {peak}")
    print(f"  the meter's step is {Ratio.of(taken, 'meter', 'no instrument')} one without it,", end=" ")
    print(f"MemTracker's {Ratio.of(taken, 'MemTracker', 'meter')} the meter's")
    return round(peaks["meter"] / GIB, 2) == round(peaks["MemTracker"] / GIB, 2)


def asked(name: str, repeat: int) -> None:
    """Print how long ``predict`` or ``measure`` takes, from nothing: the median of ``repeat`` processes."""
    run(ASK, name)  # which compiles what has no byte code yet
    seconds, peaks, imports, used = zip(*(run(ASK, name) for _ in range(repeat)), strict=True)
    took = f"{1e3 * median(seconds):7,.0f} ms ({1e3 * min(seconds):,.0f} to {1e3 * max(seconds):,.0f})"
    parts = f"imports {1e3 * median(imports):,.0f} ms of it, processor {1e3 * median(used):,.0f} ms"
    print(f"  {name:<14}{took}, {parts}; peak {peaks[0] / GIB:.2f} GiB")


def redraws(repeat: int) -> None:
    """Print how long the calculator takes to draw an 8B and a 70B: over all recipes and methods, median and longest."""
    from minigpt.memory.calculator.choice import LIKE, Answer, Choice  # here: this imports matplotlib
    from minigpt.memory.calculator.picture import picture
    from minigpt.memory.plan import ALLOWED

    for model in ("llama-3-8b", "llama-3-70b"):
        taken = []
        for choice in [Choice(model, method, like) for like in LIKE for method in ALLOWED["method"]]:
            best = float("inf")
            for _ in range(repeat):
                started = time.perf_counter()
                picture(Answer.to(choice))
                best = min(best, time.perf_counter() - started)
            taken.append(best)
        print(f"  {model:<14}{1e3 * median(taken):7,.0f} ms, at most {1e3 * max(taken):,.0f}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="processes for each instrument (3)")
    repeat = parser.parse_args(argv).repeat
    if repeat < 1:
        print(f"error: --repeat is {repeat}; it must be at least 1", file=sys.stderr)
        return 2
    agree = instruments(repeat)
    print("The same step from nothing, imports included:")
    asked("predict", max(9, repeat))
    asked("measure", repeat)
    print("The calculator, one redraw:")
    redraws(max(3, repeat))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
