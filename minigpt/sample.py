"""Continue a prompt with the base model:

    python -m minigpt.sample "def read_" --tokens 200 --temperature 0.8

The text is drawn one byte at a time from softmax(logits / temperature); temperature 0 takes the likeliest byte.

Left out: top-k, top-p, beams, a key-value cache.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import NoReturn

import torch

from minigpt.base import load_base
from minigpt.console import show
from minigpt.data import END, decode, encode
from minigpt.model import GPT
from minigpt.values import check_counts, is_number


def complete(model: GPT, prompt: str, tokens: int = 200, temperature: float = 0.8, seed: int = 0) -> str:
    """What ``model`` writes after ``prompt``: at most ``tokens`` bytes, up to the end of the document.

    Raises ValueError for an empty prompt, fewer than 1 token, or a temperature or seed out of range.
    """
    if not prompt:
        raise ValueError("the prompt is empty; give at least one character to continue")
    check_counts(tokens=tokens)
    check_counts(least=0, seed=seed)
    if not is_number(temperature) or not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature!r}; it must be a number of at least 0")
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    start = encode(prompt)[None].to(device)  # (1, T)
    was_training = model.training
    text = model.eval().generate(start, tokens, temperature, generator, stop=END)[0]  # (T + new,)
    model.train(was_training)
    return decode(text[start.size(1) :])


def pick_device(name: str) -> torch.device:
    """A device by name; "auto" is a GPU where there is one. Raises ValueError for an unknown or absent device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError):
        device = None
    if device is None or device.type == "meta":  # meta tensors have no values to draw from
        allowed = "auto, cpu, cuda" if torch.cuda.is_available() else "auto, cpu"
        raise ValueError(f"device is {name!r}; this machine has: {allowed}")
    return device


class Parser(argparse.ArgumentParser):
    """argparse with one sentence for bad values instead of the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="minigpt.sample", description="Continue a prompt with the base model.")
    parser.add_argument("prompt", help='text to continue, such as "def read_"')
    parser.add_argument("--tokens", type=int, default=200, help="bytes to write at most (200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest byte (0.8)")
    parser.add_argument("--seed", type=int, default=0, help="of the random draws (0)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")
    arguments = parser.parse_args(argv)
    try:
        model = load_base(pick_device(arguments.device))
        text = complete(model, arguments.prompt, arguments.tokens, arguments.temperature, arguments.seed)
    except ValueError as error:
        parser.error(str(error))
    show(arguments.prompt + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
