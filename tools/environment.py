"""What this machine is: processor, memory, card, versions. Asks torch in a process of its own, which then ends."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "unsloth", "nbgrader", "papermill", "jupyterlab")
ASK = """
import json, torch
gpu = torch.cuda.is_available()
card = torch.cuda.get_device_properties(0) if gpu else None
print(json.dumps([card.name, card.total_memory] if gpu else [None, None]))
"""


def describe() -> dict:
    """Facts about this machine. ``gpu`` is the card's name as torch sees it, or None; sizes are bytes."""
    answer = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    gpu, vram = json.loads(answer.stdout.splitlines()[-1]) if answer.returncode == 0 else (None, None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(), "cores": cores, "ram": psutil.virtual_memory().total,
        "gpu": gpu, "vram": vram, "packages": versions(),
    }  # fmt: skip


def versions() -> dict[str, str | None]:
    """The version of each of the course's packages; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def cpu_name() -> str:
    """The processor's name; on Linux from /proc/cpuinfo, on macOS from sysctl."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        answer = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return answer.stdout.strip() or platform.processor()
    return platform.processor() or platform.machine()


def vram_in_use() -> int | None:
    """Bytes in use on all cards, by nvidia-smi; None where it is not there."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True)
    numbers = [line.strip() for line in answer.stdout.splitlines()]
    return sum(int(n) for n in numbers if n.isdigit()) * 2**20 if answer.returncode == 0 else None
