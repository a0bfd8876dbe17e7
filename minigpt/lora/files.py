"""Adapters in a file: one safetensors file with the adapters alone, under the names that peft gives them.

    base_model.model.blocks.0.attn.q_proj.lora_A.weight    (r, in), as lora_B (out, r)
    base_model.model.blocks.0.attn.q_proj.lora_magnitude_vector    (out,), of DoRA

The header's entry "lora" holds the settings as JSON: what ``inject`` needs to make the adapters again, and how many
linear layers the model has, so that a file for a model of another depth is refused.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from minigpt.lora.injection import adapters, inject
from minigpt.lora.layer import LoRALinear, shapes
from minigpt.lora.matching import select

SETTINGS = {"rank", "alpha", "kind", "dropout", "targets", "linears"}


def adapter_tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """All adapters' parameters, by their names in a file. Raises ValueError if the model has none."""
    return {_key(name, part): p for name, x in adapters(model).items() for part, p in x.adapter_tensors().items()}


def save(model: nn.Module, path: str | Path) -> None:
    """Write the adapters alone to one safetensors file, whole or not at all; their settings are in its header.

    Missing folders on the way to ``path`` are made. Raises ValueError if the model has no adapters, or adapters with
    different settings.
    """
    layers, path = adapters(model), Path(path)
    settings = [dict(rank=x.rank, alpha=x.alpha, kind=x.kind, dropout=x.dropout) for x in layers.values()]
    if any(other != settings[0] for other in settings):
        raise ValueError("model has adapters that differ in rank, alpha, kind or dropout; a file holds one of each")
    described = {**settings[0], "targets": list(layers), "linears": _linears(model)}
    header = {"format": "pt", "lora": json.dumps(described)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        save_file({key: p.detach().contiguous() for key, p in adapter_tensors(model).items()}, f"{folder}/new", header)
        Path(folder, "new").replace(path)


def load(model: nn.Module, path: str | Path) -> list[str]:
    """Inject the adapters that ``save`` wrote into ``model``, which has none yet, and return their layers' names.

    Raises ValueError if the file is missing, not from ``save`` or for another model, and leaves the model as it was.
    """
    settings, tensors = _read(path)
    if (found := settings.pop("linears")) != (here := _linears(model)):  # as many blocks, so none stays without
        raise ValueError(f"path is {str(path)!r}, made for a model of {found} linear layers; this model has {here}")
    _check_tensors(tensors, settings, model, path)
    names = inject(model, **settings, adapter_dtype=next(iter(tensors.values())).dtype)
    for key, parameter in adapter_tensors(model).items():
        parameter.data.copy_(tensors[key])
    return names


def _read(path: str | Path) -> tuple[dict, dict[str, Tensor]]:
    """The settings in a file's header, and its tensors by name."""
    try:
        with safe_open(path, "pt") as file:
            settings = json.loads((file.metadata() or {}).get("lora", "{}"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:  # the last two: of the header's JSON
        raise ValueError(f"path is {str(path)!r}, which cannot be read: {error}") from None
    if not isinstance(settings, dict) or settings.keys() != SETTINGS:
        raise ValueError(f"path is {str(path)!r}, which has no adapter settings in its header; save() writes them")
    return settings, tensors


def _check_tensors(tensors: dict[str, Tensor], settings: dict, model: nn.Module, path: str | Path) -> None:
    """Raise ValueError unless ``tensors`` are what the adapters of ``model`` will need, no more and no less."""
    left_over = dict(tensors)
    for name, x in select(model, settings["targets"]).items():
        for part, shape in shapes(x.in_features, x.out_features, settings["rank"], settings["kind"], name).items():
            found = tuple(tensors[_key(name, part)].shape) if _key(name, part) in tensors else None
            if found != shape:
                raise ValueError(f"path is {str(path)!r}: {_key(name, part)} is {found}, the model needs {shape}")
            if not left_over.pop(_key(name, part)).isfinite().all():
                raise ValueError(f"path is {str(path)!r}: {_key(name, part)} holds NaN or infinity")
    if left_over:
        raise ValueError(f"path is {str(path)!r}: the model has no place for {next(iter(left_over))}")


def _linears(model: nn.Module) -> int:
    """How many linear layers the model has; one with an adapter counts once."""
    kinds = [type(module) for module in model.modules() if hasattr(module, "in_features")]
    return len(kinds) - kinds.count(LoRALinear)


def _key(name: str, part: str) -> str:
    """An adapter tensor's name in a file, as peft has it."""
    return f"base_model.model.{name}.{part}" + (".weight" if part in ("lora_A", "lora_B") else "")
