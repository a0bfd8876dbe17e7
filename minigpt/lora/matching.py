"""Which linear layers of a model a list of targets names.

    "q_proj", "attn.q_proj"    every layer whose name is this, or ends in it after a dot
    "all-linear"               every linear layer of the blocks, which are what has a number in its name: no output head

A linear layer is what has in_features and out_features: ``nn.Linear``, and quantized ones. A layer whose weight is
another's too, like MiniGPT's head, is refused: an adapter would change one use of the weight, and merging both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from torch import nn

from minigpt.lora.layer import LoRALinear

ALL_LINEAR = "all-linear"


def select(model: nn.Module, targets: str | Collection[str]) -> dict[str, nn.Linear]:
    """The linear layers of ``model`` that ``targets`` names, by name, in the model's order.

    Raises ValueError as ``match`` does, and for a model that has an adapter.
    """
    owners = defaultdict(list)  # of each parameter: its names, several where it is tied
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)].append(name)
    linears, refused = {}, {}
    for name, module in model.named_modules():
        names = owners[id(getattr(module, "weight", None))]
        if isinstance(module, LoRALinear):
            raise ValueError(f"model has an adapter at {name} already; it must be a model without adapters")
        if not hasattr(module, "in_features") or not hasattr(module, "out_features"):
            refused[name] = f"not a linear layer ({type(module).__name__})"
        elif len(names) > 1:
            refused[name] = f"tied: {' and '.join(names)} are one tensor, and merging would change both"
        else:
            linears[name] = module
    return match(targets, linears, refused)


def match(targets: str | Collection[str], linears: dict, refused: dict[str, str]) -> dict:
    """The part of ``linears``, a dictionary by name, that ``targets`` names, in the order of ``linears``.

    ``refused`` are the names of other layers, each with the reason why it takes no adapter. Raises ValueError unless
    ``targets`` is "all-linear" or a list of names; for a name that no layer has; and for one of a refused layer.
    """
    allowed = f"allowed: {ALL_LINEAR!r}, or a list of {', '.join(dict.fromkeys(n.split('.')[-1] for n in linears))}"
    blocks = {name: linear for name, linear in linears.items() if any(part.isdigit() for part in name.split("."))}
    if targets == ALL_LINEAR and blocks:
        return blocks
    if not targets or not isinstance(targets, (list, tuple, set)):
        raise ValueError(f"targets is {targets!r}; {allowed}")
    chosen = set()
    for target in targets:
        found = [name for name in (*linears, *refused) if f".{name}".endswith(f".{target}")]
        reasons = [f"{name} is {refused[name]}" for name in found if name in refused]
        if reasons or not found:
            raise ValueError(f"targets has {target!r}, but {(reasons or ['no layer has that name'])[0]}; {allowed}")
        chosen.update(found)
    return {name: linears[name] for name in linears if name in chosen}
