"""Which script made which recording: the beginning of its name, and what runs it on the tape.

What a catalogue says of it is its configuration: model, batch, length, precision. What it does not say stands here:
with or without gradients, and what else lay on the GPU, from the authors' scripts, or by the recording where these are
not stored.
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.memory.predicted.cuda import CudaKernels
from tools.recorded import cs336, hanfa, niu, silmont
from tools.recorded.cs336 import Course
from tools.recorded.programme import Programme

Line = dict[str, str]  # of the catalogue
PROCESSORS = 132  # multiprocessors, where no card is named: an H100's; from 32 on these programmes are the same
SIZES = {
    "medium 1024x24x16": dict(d_model=1024, num_layers=24, num_heads=16, d_ff=4096),
    "large 1280x36x20": dict(d_model=1280, num_layers=36, num_heads=20, d_ff=5120),
    "xl 2560x32x32": dict(d_model=2560, num_layers=32, num_heads=32, d_ff=10240),
}


def kernels(line: Line) -> CudaKernels:
    return CudaKernels(int(line["cublas_workspace"]), PROCESSORS)


def course(line: Line, edition: str = "2026") -> Course:
    size = next(size for name, size in SIZES.items() if name in line["model"])
    batch, seq_len = int(line["batch"]), int(line["seq"])
    config = dict(size, vocab_size=10000, context_length=seq_len, edition=edition)
    return Course(config, batch, seq_len, line["precision"].startswith("bf16"), kernels(line))


def _hyperion(line: Line) -> Programme:
    run = course(line, "2025")
    cs336.hyperion(run, gradients="with grad" in line["phase"])
    return run


def _linyun(line: Line) -> Programme:
    run = course(line)
    if "full step" in line["phase"]:
        cs336.linyun_step(run)
    else:  # its script had no_grad at first, and lost it
        cs336.forward_only(run, line["trace"].rpartition("_")[2] in ("08d334", "8f7e5d", "9a3860", "3333ec"))
    return run


def _wedson(line: Line) -> Programme:
    """Warm-ups had five batches at a time, which stay; forward alone has no targets."""
    run, whole = course(line), "full step" in line["phase"]
    if not whole:
        run.targets = run.tokens
    warm = [run.tape.new((5, *run.tokens.shape), "int64") for _ in range(1 + whole)]
    if whole:
        cs336.wedson_step(run)
    else:
        cs336.forward_only(run, gradients=False)
    del warm
    return run


def _bolong(line: Line) -> Programme:
    """The targets die with the function that made them. no_grad came after the longer recording."""
    run = course(line)
    run.targets = run.tokens
    cs336.forward_only(run, gradients=line["seq"] == "512")
    return run


def _niu(line: Line) -> Programme:
    return niu.Run(int(line["batch"]), int(line["seq"]), "steps" in line["phase"], kernels(line))


def _silmont(line: Line) -> Programme:
    return silmont.Attention(int(line["batch"]), int(line["seq"]), 16, kernels(line))


def _hanfa(line: Line) -> Programme:
    return hanfa.Model(768, 12, 12, 3072, 50000, (int(line["batch"]), int(line["seq"])), kernels(line))


SCRIPTS: dict[str, Callable[[Line], Programme]] = {
    "Hyperion-shuo_": _hyperion,
    "LINYUNLinYun_": _linyun,
    "Wedsonlin_": _wedson,
    "bolongcheng_": _bolong,
    "NiuHuangxiaozi_": _niu,
    "HanFa_": _hanfa,
    "silmont2000_mem_snapshot_": _silmont,
}


def tell(line: Line) -> Programme | None:
    """The programme of a line of the catalogue, run on the tape; None for one that is not told."""
    script = next((script for start, script in SCRIPTS.items() if line["trace"].startswith(start)), None)
    return script and script(line)
