"""A training run, saved and put back: what a file must hold so that a resumed run gives the same losses.

A checkpoint holds the model, the optimizer, the loss scale, the random state, the plan and the history. (Not to be
confused with gradient checkpointing, which saves no file.)
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minigpt.train import History, TrainPlan

STATE = {"model", "optimizer", "scaler", "random", "random_cuda", "plan", "history"}  # of a checkpoint


def save_checkpoint(path, model, optimizer, scaler, plan: TrainPlan, history: History) -> None:
    """Write the state of a run to ``path``, whole or not at all. Raises OSError if the disk is full, for one."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all(),
        "plan": asdict(plan),
        "history": asdict(history),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    except RuntimeError as error:  # what torch's writer makes of a full disk
        raise OSError(f"cannot write {path}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path, model, optimizer, scaler, plan: TrainPlan) -> dict:
    """Put a run back where ``save_checkpoint`` left it; returns its history, the fields of a ``History``.

    Raises ValueError, and changes nothing, if there is no such file, or it is damaged or for another plan or model.
    """
    if path is None or not Path(path).is_file():
        raise ValueError(f"checkpoint is {path and str(path)!r}; to resume, it must be a file that train() wrote")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or state.keys() != STATE:
            raise ValueError("it holds something else")
    except Exception as error:  # torch raises many kinds for a file that it cannot read
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"checkpoint is {str(path)!r}, which is no checkpoint of train(): {reason}") from None
    for name, value in asdict(plan).items():
        if state["plan"].get(name) != value:
            raise ValueError(f"{name} is {value!r}, but the checkpoint's plan has {state['plan'].get(name)!r}")
    for name, (saved, ours) in dict(
        model=(_shapes(state["model"]), _shapes(model.state_dict())),
        optimizer=(_sizes(state["optimizer"]), _sizes(optimizer.state_dict())),
    ).items():
        if saved != ours:
            raise ValueError(f"checkpoint is {str(path)!r}, which belongs to another {name}; start without resume")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["random"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"])
    return state["history"]


def _shapes(state: dict) -> dict:
    return {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}


def _sizes(state: dict) -> list[int]:
    return [len(group["params"]) for group in state["param_groups"]]
