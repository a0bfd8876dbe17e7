"""The base model that ships with the course: preset nano, pre-trained on the standard library's text.

    python -m minigpt.base                 trains it and writes assets/base.safetensors and assets/base.json
    load_base()                            the model, from the installed package

The weights are stored once each, in bfloat16: the tied head is left out and tied again on loading. ``base.json`` is
the record of the training run that made them.

Left out: a tokenizer (a token is a byte) and any text but Python source.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from tqdm import tqdm

from minigpt.console import show
from minigpt.data import SPLIT_SEED, pretraining_text, random_windows, windows_in_order
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, bits_per_byte, evaluate, train

PRESET = "nano"
BATCH, SEQ_LEN = 16, 256
ASSETS = "assets"
WEIGHTS, RECORD = "base.safetensors", "base.json"


def load_base(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> GPT:
    """The pre-trained nano, with its weights in ``dtype`` on ``device``. Raises ValueError if missing or damaged."""
    model = GPT(GPTConfig.preset(PRESET))
    with as_file(files("minigpt") / ASSETS / WEIGHTS) as path:
        if not path.is_file():
            raise ValueError(f"{WEIGHTS} is missing from the package; `python -m minigpt.base` makes it")
        try:
            state = load_file(path)
            model.load_state_dict({**state, "lm_head.weight": state["token_embedding.weight"]})
        except (SafetensorError, KeyError, RuntimeError, OSError) as error:
            reason = str(error).split("\n")[0]
            advice = "`python -m minigpt.base` makes it"
            raise ValueError(f"{path} does not hold the base model ({reason}); {advice}") from None
    return model.to(device=device, dtype=dtype)


def base_record() -> dict:
    """How the base was trained: steps, tokens, minutes, final validation loss in bits per byte, versions."""
    return json.loads((files("minigpt") / ASSETS / RECORD).read_text(encoding="utf-8"))


def pretrain(plan: TrainPlan, checkpoint: Path, resume: bool) -> tuple[GPT, dict]:
    """Train a fresh nano by ``plan``; returns the model, rounded to bfloat16, and the record of the run."""
    text, held_out = pretraining_text("train"), pretraining_text("validation")
    everything = windows_in_order(held_out, BATCH, SEQ_LEN)
    sample = everything[:: max(1, len(everything) // 8)]
    torch.manual_seed(plan.seed)
    model = GPT(GPTConfig.preset(PRESET))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.lr, betas=(0.9, 0.99), weight_decay=plan.weight_decay, fused=True
    )
    history = train(
        model,
        random_windows(text, BATCH, SEQ_LEN, plan.seed),
        plan,
        validation=sample,
        optimizer=optimizer,
        checkpoint=checkpoint,
        resume=resume,
    )
    model.to(torch.bfloat16)  # what is stored is what is measured
    loss = evaluate(model.float(), tqdm(everything, desc="validation", leave=False))
    return model.to(torch.bfloat16), {
        "preset": PRESET,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": plan.steps,
        "batch": BATCH,
        "seq_len": SEQ_LEN,
        "tokens": history.tokens,
        "minutes": round(history.seconds / 60, 1),
        "threads": torch.get_num_threads(),
        "lr": plan.lr,
        "weight_decay": plan.weight_decay,
        "precision": plan.precision,
        "seed": plan.seed,
        "split_seed": SPLIT_SEED,
        "training_bytes": len(text),
        "validation_bytes": len(held_out),
        "validation_bits_per_byte": round(bits_per_byte(loss), 4),
        "validation_curve": [[step, round(bits_per_byte(nats), 4)] for step, nats in history.validation],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def save_base(model: GPT, record: dict, folder: Path) -> None:
    """Write weights and record to ``folder``, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    half_written = [folder / f".{name}.{os.getpid()}" for name in (WEIGHTS, RECORD)]
    try:
        half_written[0].write_bytes(save(state))
        half_written[1].write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for source, name in zip(half_written, (WEIGHTS, RECORD)):
            os.replace(source, folder / name)
    finally:
        for path in half_written:
            path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Raise OSError now, and not after the training, if no file can be written to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="minigpt.base", description="Pre-train the base model.")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps of 16 x 256 tokens (2500)")
    parser.add_argument("--lr", type=float, default=3e-3, help="largest learning rate (0.003)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / ASSETS, help="folder for the two files")
    parser.add_argument("--checkpoint", type=Path, default=Path("build/base.pt"), help="file to resume from")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    arguments = parser.parse_args(argv)
    try:
        plan = TrainPlan(
            steps=arguments.steps,
            lr=arguments.lr,
            warmup=min(100, arguments.steps // 10),
            weight_decay=0.1,
            precision="bf16-autocast",
            eval_every=250,
            checkpoint_every=250,
        )
        check_writable(arguments.out)
        check_writable(arguments.checkpoint.parent)
        model, record = pretrain(plan, arguments.checkpoint, arguments.resume)
        save_base(model, record, arguments.out)
    except (ValueError, OSError) as error:
        print(f"minigpt.base: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("minigpt.base: stopped; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    size = (arguments.out / WEIGHTS).stat().st_size
    show(f"{record['validation_bits_per_byte']} bits per byte after {record['tokens']:,} tokens; {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
