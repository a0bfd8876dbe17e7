"""LoRA: freeze a linear layer's weight W and learn a low-rank change to it.

    y = W x + b + s B A x         A (r, in), B (out, r);  B starts at zero, so training starts at the base model
    W' = W + s B A                the same layer after merging

    lora     s = alpha / r            Hu et al. 2021, arXiv 2106.09685
    rslora   s = alpha / sqrt(r)      Kalajdzievski 2023, arXiv 2312.03732: a larger r no longer shrinks the update
    dora     V = W + s B A;  W' = (m / ||V||) V       Liu et al. 2024, arXiv 2402.09353

In DoRA ||V|| is the length of each row of V and m, ``out`` numbers that start at ||W||, is learned too. The norm counts
as a constant in backward, and the bias is not scaled. A layer trains r (in + out) parameters, with DoRA ``out`` more.
The numbers are peft 0.21's: A starts uniform in +-1/sqrt(in); adapters are float32 on a 16-bit base unless told
otherwise; a layer casts its input to the adapter's type and its result back. Files have peft's tensor names.

Left out: embeddings, convolutions, several adapters at once, DoRA with rsLoRA's scale, other starts (PiSSA, LoftQ).
Merging keeps no copy of W, which would cost what the adapter saves, so unmerging brings W back to rounding error only:
that of W's own type, which on a 4-bit base is large, since both ways quantize again.
A row of zeros in W has no direction, and DoRA makes NaN of it, as in peft.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from minigpt.memory.families import Architecture
from minigpt.values import check_choice, is_number

KINDS = ("lora", "rslora", "dora")
ALL_LINEAR = "all-linear"
SETTINGS = {"rank", "alpha", "kind", "dropout", "targets", "linears"}  # in a file's header


class LoRALinear(nn.Module):
    """A frozen linear layer with an adapter beside it: (..., in_features) -> (..., out_features).

    ``base`` is an ``nn.Linear``, or anything with in_features, out_features and a forward. Merging and DoRA read its
    weight, from ``base.dequantize()`` (out, in) where there is one, and merging writes it, with
    ``base.requantize(weight)`` where there is one. ``adapter_dtype`` None takes the type of the base's weight.
    Raises ValueError for a value that is not allowed.
    """

    lora_magnitude_vector: nn.Parameter  # of DoRA
    norms: Tensor  # of DoRA, while merged

    def __init__(
        self, base: nn.Linear, rank: int = 8, alpha: float = 16, kind: str = "lora", *, dropout: float = 0.0,
        adapter_dtype: torch.dtype | None = torch.float32, generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(alpha, dropout, adapter_dtype, generator)
        sizes = shapes(base.in_features, base.out_features, rank, kind)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.rank, self.alpha, self.kind, self.dropout = rank, alpha, kind, dropout
        self.scaling = alpha / math.sqrt(rank) if kind == "rslora" else alpha / rank
        self.merged = False
        self.base = base.requires_grad_(False)
        W = self.base_weight()
        like: dict[str, Any] = dict(device=W.device, dtype=adapter_dtype or W.dtype)
        A = torch.empty(sizes["lora_A"])
        nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)  # uniform in +-1/sqrt(in)
        self.lora_A = nn.Parameter(A.to(**like))  # (r, in)
        self.lora_B = nn.Parameter(torch.zeros(sizes["lora_B"], **like))  # (out, r)
        if kind == "dora":
            self.lora_magnitude_vector = nn.Parameter(torch.linalg.norm(W, dim=1).to(**like))  # (out,)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)  # (..., out)
        if self.merged:
            return y
        h = x.to(self.lora_A.dtype)  # (..., in); a copy where the base is 16-bit, and backward keeps it
        if dropping := self.training and self.dropout > 0:
            h = F.dropout(h, self.dropout)
        if self.kind != "dora":
            dtype = y.dtype  # y is replaced, not kept beside the sum: that is one output less at the peak
            y = y + F.linear(F.linear(h, self.lora_A), self.lora_B) * self.scaling  # (..., out)
            return y.to(dtype)

        # As in peft: y = W x + b is there already, so W h is taken from it, unless dropout made h another input.
        W = self.base_weight().to(h.dtype)  # (out, in); a copy where the base is 16-bit
        norms = torch.linalg.norm(W + self.scaling * self.product().to(h.dtype), dim=1)  # (out,)
        update = F.linear(F.linear(h, self.lora_A), self.lora_B)  # (..., out)
        scale = self.lora_magnitude_vector / norms  # (out,)
        bias = getattr(self.base, "bias", None)
        Wh = F.linear(h, W) if dropping else y if bias is None else y - bias  # (..., out)
        return (y + ((scale - 1) * Wh + scale * update * self.scaling)).to(y.dtype)

    @torch.no_grad()
    def product(self) -> Tensor:
        """B A, (out, in), a constant to autograd.

        peft sends an identity matrix (in, in) through A and B instead: the same numbers, more temporary bytes.
        """
        return self.lora_B @ self.lora_A

    @torch.no_grad()
    def base_weight(self) -> Tensor:
        """The base's weight W, (out, in), dequantized if need be."""
        dequantize = getattr(self.base, "dequantize", None)
        return dequantize() if dequantize else self.base.weight

    @torch.no_grad()
    def merge(self) -> None:
        """Write W' into the base, in place. Until ``unmerge`` the adapter is idle and takes no gradient."""
        self._expect(merged=False)
        weight = self.base_weight() + self.product() * self.scaling  # V, (out, in)
        if self.kind == "dora":
            self.register_buffer("norms", torch.linalg.norm(weight, dim=1), persistent=False)  # (out,), for unmerge
            weight = (self.lora_magnitude_vector / self.norms)[:, None] * weight
        self._set(weight, merged=True)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Undo ``merge``, to rounding error."""
        self._expect(merged=True)
        weight = self.base_weight()  # W', (out, in)
        if self.kind == "dora":
            weight = weight / (self.lora_magnitude_vector / self.norms)[:, None]
            del self.norms
        self._set(weight - self.product() * self.scaling, merged=False)

    def _expect(self, merged: bool, name: str = "this layer") -> None:
        if self.merged != merged:
            raise ValueError(f"the adapter of {name} is {'merged already' if self.merged else 'not merged'}")

    def _set(self, weight: Tensor, merged: bool) -> None:
        write = getattr(self.base, "requantize", None) or self.base.weight.copy_
        write(weight)
        self.merged = merged
        for parameter in self.parameters(recurse=False):  # the adapter's own; the base's lie deeper
            parameter.requires_grad_(not merged)


def inject(
    model: nn.Module, rank: int = 8, alpha: float = 16, targets: str | list[str] | tuple = ("q_proj", "v_proj"),
    kind: str = "lora", *, dropout: float = 0.0, adapter_dtype: torch.dtype | None = torch.float32,
    generator: torch.Generator | None = None,
) -> list[str]:  # fmt: skip
    """Freeze ``model``, put a LoRALinear in place of each target, and return their names.

    A target is a layer's name, in full or the end of it ("q_proj"). "all-linear" is every linear layer of the blocks,
    which are what has a number in its name: so never an output head. A layer whose weight is another's too, like
    MiniGPT's head, is refused: an adapter would change one use of the weight, and merging would change both.
    Raises ValueError for a value that is not allowed, and leaves the model as it was.
    """
    _check(alpha, dropout, adapter_dtype, generator)
    linears = _select(model, targets)
    for name, linear in linears.items():
        shapes(linear.in_features, linear.out_features, rank, kind, name)
    model.requires_grad_(False)
    options: dict[str, Any] = dict(dropout=dropout, adapter_dtype=adapter_dtype, generator=generator)
    for name, linear in linears.items():
        model.set_submodule(name, LoRALinear(linear, rank, alpha, kind, **options).train(linear.training))
    return list(linears)


def merge(model: nn.Module) -> None:
    """Write every adapter into its weight. Raises ValueError if the model has none, or one is merged already."""
    for layer in _adapters(model, merged=False).values():
        layer.merge()


def unmerge(model: nn.Module) -> None:
    """Take every adapter out of its weight, to rounding error. Raises ValueError if one is not merged."""
    for layer in _adapters(model, merged=True).values():
        layer.unmerge()


def save(model: nn.Module, path: str | Path) -> None:
    """Write the adapters alone to one safetensors file, whole or not at all; their settings are in its header.

    Raises ValueError if the model has no adapters, or adapters with different settings.
    """
    layers, path = _adapters(model), Path(path)
    settings = [dict(rank=x.rank, alpha=x.alpha, kind=x.kind, dropout=x.dropout) for x in layers.values()]
    if any(other != settings[0] for other in settings):
        raise ValueError("model has adapters that differ in rank, alpha, kind or dropout; a file holds one of each")
    described = {**settings[0], "targets": list(layers), "linears": _linears(model)}
    header = {"format": "pt", "lora": json.dumps(described)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        save_file({key: p.detach().contiguous() for key, p in _parameters(layers).items()}, f"{folder}/new", header)
        Path(folder, "new").replace(path)


def load(model: nn.Module, path: str | Path) -> list[str]:
    """Inject the adapters that ``save`` wrote into ``model``, which has none yet, and return their layers' names.

    Raises ValueError if the file is missing, not from ``save`` or for another model, and leaves the model as it was.
    """
    try:
        with safe_open(path, "pt") as file:
            settings = json.loads((file.metadata() or {}).get("lora", "{}"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:  # the last two: of the header's JSON
        raise ValueError(f"path is {str(path)!r}, which cannot be read: {error}") from None
    if not isinstance(settings, dict) or settings.keys() != SETTINGS:
        raise ValueError(f"path is {str(path)!r}, which has no adapter settings in its header; save() writes them")
    if (found := settings.pop("linears")) != (here := _linears(model)):  # as many blocks, so none stays without
        raise ValueError(f"path is {str(path)!r}, made for a model of {found} linear layers; this model has {here}")
    left_over = dict(tensors)
    for name, x in _select(model, settings["targets"]).items():
        for part, shape in shapes(x.in_features, x.out_features, settings["rank"], settings["kind"], name).items():
            found = tuple(tensors[_key(name, part)].shape) if _key(name, part) in tensors else None
            if found != shape:
                raise ValueError(f"path is {str(path)!r}: {_key(name, part)} is {found}, the model needs {shape}")
            if not left_over.pop(_key(name, part)).isfinite().all():
                raise ValueError(f"path is {str(path)!r}: {_key(name, part)} holds NaN or infinity")
    if left_over:
        raise ValueError(f"path is {str(path)!r}: the model has no place for {next(iter(left_over))}")
    names = inject(model, **settings, adapter_dtype=next(iter(tensors.values())).dtype)
    for key, parameter in _parameters(_adapters(model)).items():
        parameter.data.copy_(tensors[key])
    return names


def trainable_parameters(model: nn.Module) -> int:
    """How many parameters take a gradient; a shared one counts once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def adapter_parameters(architecture, rank: int = 8, targets=("q_proj", "v_proj"), kind: str = "lora") -> int:
    """How many parameters ``inject`` would train: r (in + out) summed over the targets, without building a model.

    ``architecture`` is anything that ``Architecture.of`` takes. Raises ValueError for a value that is not allowed.
    """
    architecture = Architecture.of(architecture)
    block = {f"blocks.0.{t.name}_proj": t.shape for t in architecture.block_tensors() if t.kind == "linear"}
    adapters = [shapes(n_in, n_out, rank, kind, name) for name, (n_out, n_in) in _match(targets, block, {}).items()]
    return architecture.n_layer * sum(math.prod(shape) for adapter in adapters for shape in adapter.values())


def shapes(n_in: int, n_out: int, rank: int, kind: str, name: str = "this layer") -> dict[str, tuple[int, ...]]:
    """The tensors of one layer's adapter. Raises ValueError for a kind or rank that the layer cannot have."""
    check_choice(KINDS, kind=kind)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= min(n_in, n_out):
        allowed = f"an integer from 1 to {min(n_in, n_out)}"
        raise ValueError(f"rank is {rank!r}; it must be {allowed} for {name}, which is {n_out} x {n_in}")
    magnitude = {"lora_magnitude_vector": (n_out,)} if kind == "dora" else {}
    return {"lora_A": (rank, n_in), "lora_B": (n_out, rank), **magnitude}


def _check(alpha, dropout, adapter_dtype, generator) -> None:
    if not is_number(alpha) or not 0 < alpha < math.inf:
        raise ValueError(f"alpha is {alpha!r}; it must be a number above 0")
    if not is_number(dropout) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}; it must be a number of at least 0 and below 1")
    if adapter_dtype is not None and not getattr(adapter_dtype, "is_floating_point", False):
        raise ValueError(f"adapter_dtype is {adapter_dtype!r}; it must be a floating-point torch.dtype, or None")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"generator is {generator!r}; it must be a torch.Generator, or None")


def _select(model: nn.Module, targets) -> dict[str, nn.Linear]:
    """The linear layers of ``model`` that ``targets`` names, by name, in the model's order."""
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
    return _match(targets, linears, refused)


def _match(targets, linears: dict, refused: dict[str, str]) -> dict:
    """The part of ``linears`` (by name) that ``targets`` names; ``refused`` says why not of other layers."""
    allowed = f"allowed: {ALL_LINEAR!r}, or a list of {', '.join(dict.fromkeys(n.split('.')[-1] for n in linears))}"
    if targets == ALL_LINEAR:
        targets = [name for name in linears if any(part.isdigit() for part in name.split("."))]
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


def _adapters(model: nn.Module, merged: bool | None = None) -> dict[str, LoRALinear]:
    """The model's adapters by name. Raises ValueError if it has none, or one is not merged as ``merged`` says."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    if not layers:
        raise ValueError("model has no adapters; it must be one that inject() or load() gave them")
    for name, layer in layers.items():
        if merged is not None:
            layer._expect(merged, name)
    return layers


def _linears(model: nn.Module) -> int:
    """How many linear layers the model has; one with an adapter counts once."""
    kinds = [type(module) for module in model.modules() if hasattr(module, "in_features")]
    return len(kinds) - kinds.count(LoRALinear)


def _key(name: str, part: str) -> str:
    """An adapter tensor's name in a file, as peft has it."""
    return f"base_model.model.{name}.{part}" + (".weight" if part in ("lora_A", "lora_B") else "")


def _parameters(layers: dict[str, LoRALinear]) -> dict[str, nn.Parameter]:
    return {_key(name, part): p for name, layer in layers.items() for part, p in layer.named_parameters(recurse=False)}
