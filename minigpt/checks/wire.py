"""Values on their way between a judge and the process in which a student's code runs.

    data = send(value)                      the judge's: a pickle; an answer or a probe goes by its name
    value = receive(data, find)             in the other process: ``find(kind, name)`` has what goes by its name
    data = pack(value, keep)                there: plain data; ``keep(value)`` numbers what is no plain value
    value = unpack(data, kept)              the judge's: ``kept(number, kind, shown)`` stands in for what is kept there

A student's process can write whatever it likes, so what comes from it is no pickle: JSON, and the bytes of tensors'
storages behind it. What may be in it: None, bool, int, float, str, list, tuple, dict, torch.Size, dtype, device,
Ledger, GPTConfig, tensors (with their class's name, requires_grad, and the storage that they share or are a view of),
and verdicts. ``unpack`` raises ValueError for everything else, and for what is larger than ``LIMIT``.

Left out: quantized tensors, and tensors of other devices than the CPU and meta, which arrive on the CPU. In a pickle
two tensors that share a storage do so no longer, unless they are one tensor.
"""

from __future__ import annotations

import builtins
import io
import json
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import astuple, fields
from math import prod
from typing import Any

import numpy
import torch
from torch import Tensor

from minigpt.checks.comparing import plain, show
from minigpt.checks.verdict import Wrong
from minigpt.memory.buckets import Ledger
from minigpt.model import GPTConfig

LIMIT = 2**29  # bytes of one value
TEXT = 2**24  # bytes of it that are not numbers of tensors
DEPTH = 100  # of lists in lists
RECORDS = {"Ledger": Ledger, "GPTConfig": GPTConfig}
ID = re.compile(r"[a-z0-9-]{1,60}([+][a-z0-9-]{1,60}){0,9}")
NAMES = re.compile(r"[A-Za-z_]\w{0,60}")


# ---------------------------------------------------------------- from the judge


class _Sender(pickle.Pickler):
    def persistent_id(self, obj):
        return getattr(type(obj), "by_name", lambda _: None)(obj)

    def reducer_override(self, obj):
        module = str(getattr(obj, "__module__", "")) if callable(obj) else ""
        if module.startswith("minigpt.checks.") and not module.startswith("minigpt.checks.probes."):
            raise ValueError(f"{obj!r} is the judge's own, and cannot be sent to an answer; hand over plain values")
        return NotImplemented


class _Receiver(pickle.Unpickler):
    find: Callable[[str, Any], Any]

    def persistent_load(self, pid):
        return self.find(*pid)


def send(value) -> bytes:
    """Raises ValueError for what the other process could not read: a local function, a class of a judge's module."""
    data = io.BytesIO()
    try:
        _Sender(data).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"cannot be sent to an answer: {error}") from None
    return data.getvalue()


def receive(data: bytes, find: Callable[[str, Any], Any]):
    reader = _Receiver(io.BytesIO(data))
    reader.find = find
    return reader.load()


# ---------------------------------------------------------------- from the student's process


class _Packer:
    def __init__(self, keep: Callable[[Any], int]) -> None:
        self.keep = keep
        self.storages: dict[int, torch.UntypedStorage] = {}  # by address of the object: kept, so that none is used anew

    def form(self, value, depth: int = 0):
        """``value`` as JSON: what has no form of its own in it is a list that begins with a word."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if value.bit_length() < 64 else ["int", hex(value)]
        if kind is numpy.bool_:
            return ["bool_", bool(value)]
        if depth > DEPTH:
            return self.kept(value)
        if issubclass(kind, Tensor):
            return self.tensor(value)
        if kind in (torch.dtype, torch.device):
            return [kind.__name__, str(value).removeprefix("torch.")]
        if kind.__name__ in RECORDS and kind is RECORDS[kind.__name__]:
            return [kind.__name__, *(self.form(part, depth + 1) for part in astuple(value))]
        if issubclass(kind, Wrong):
            return _verdict(value)
        for base, word in ((torch.Size, "size"), (tuple, "tuple"), (list, "list")):
            if issubclass(kind, base):
                return [word, *(self.form(part, depth + 1) for part in base.__iter__(value))]
        if issubclass(kind, dict):
            return ["dict", *([self.form(k, depth + 1), self.form(v, depth + 1)] for k, v in dict.items(value))]
        number = plain(value)
        return self.form(number, depth + 1) if type(number) in (str, int, float) else self.kept(value)

    def kept(self, value):
        kind = type(value)
        try:
            shown = show(value)
        except Exception:
            shown = f"something of type {kind.__name__}"
        return ["kept", self.keep(value), kind.__name__, shown]

    def tensor(self, value: Tensor):
        kind, grad = type(value).__name__, value.requires_grad
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            dtype, shape = str(value.dtype)[6:], list(value.shape)
            if value.is_meta or value.layout != torch.strided:
                return ["meta" if value.is_meta else "sparse", dtype, shape, grad, kind]
            if value.is_quantized:
                return self.kept(value)
            bare = Tensor.as_subclass(Tensor.detach(value), Tensor).cpu().resolve_conj().resolve_neg()
            storage = bare.untyped_storage()
            self.storages.setdefault(storage._cdata, storage)
            where = list(self.storages).index(storage._cdata)
            return ["tensor", dtype, shape, grad, kind, where, list(bare.stride()), bare.storage_offset()]


def pack(value, keep: Callable[[Any], int]) -> bytes:
    """Raises ValueError where it is larger than ``LIMIT``."""
    packer = _Packer(keep)
    form = packer.form(value)
    sizes = [storage.nbytes() for storage in packer.storages.values()]
    head = json.dumps([sizes, form]).encode()
    if len(head) > TEXT or sum(sizes) + len(head) > LIMIT:
        raise ValueError(f"it has {sum(sizes) + len(head):,} bytes; {LIMIT:,} are allowed, {TEXT:,} beside tensors")
    numbers = [torch.empty(0, dtype=torch.uint8).set_(storage).numpy() for storage in packer.storages.values()]
    return b"".join([struct.pack(">Q", len(head)), head, *(array.tobytes() for array in numbers)])


class _Unpacker:
    def __init__(self, storages: list[torch.UntypedStorage], kept: Callable[[int, str, str], Any]) -> None:
        self.storages, self.kept, self.left = storages, kept, LIMIT

    def value(self, form, depth: int = 0):
        if not isinstance(form, list):
            if isinstance(form, dict):
                raise ValueError("a JSON object")
            return form
        if depth > 2 * DEPTH:
            raise ValueError("too deep")
        word, *rest = form
        if word in ("list", "tuple", "size"):
            parts = [self.value(part, depth + 1) for part in rest]
            return parts if word == "list" else tuple(parts) if word == "tuple" else torch.Size(parts)
        if word == "dict":
            return {self.value(key, depth + 1): self.value(value, depth + 1) for key, value in rest}
        if word in RECORDS:
            parts = [self.value(part, depth + 1) for part in rest]
            return RECORDS[word](**{field.name: part for field, part in zip(fields(RECORDS[word]), parts, strict=True)})
        read: dict[str, Callable] = {
            "int": _int, "bool_": numpy.bool_, "dtype": _dtype, "device": torch.device, "wrong": _wrong,
            "kept": self.still_there, "meta": self.no_numbers, "sparse": self.sparse, "tensor": self.tensor,
        }  # fmt: skip
        return read[word](*rest)

    def still_there(self, number, kind, shown):
        if type(number) is not int or not NAMES.fullmatch(kind):
            raise ValueError("what is kept has no number or no type")
        return self.kept(number, kind, str(shown)[:100])

    def no_numbers(self, dtype, shape, grad, kind):
        return _dressed(torch.empty(_sizes(shape), dtype=_dtype(dtype), device="meta"), grad, kind)

    def sparse(self, dtype, shape, grad, kind):
        nowhere, nothing = torch.empty(len(_sizes(shape)), 0, dtype=torch.int64), torch.empty(0, dtype=_dtype(dtype))
        return _dressed(torch.sparse_coo_tensor(nowhere, nothing, shape, check_invariants=True), grad, kind)

    def tensor(self, name, shape, grad, kind, where, stride, offset):
        dtype, shape, stride, [offset, where] = _dtype(name), _sizes(shape), _sizes(stride), _sizes([offset, where])
        storage, itemsize = self.storages[where], dtype.itemsize
        self.left -= prod(shape) * itemsize  # a number may be shown again and again, and fill the judge's memory
        last = (
            offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if prod(shape) else offset - 1
        )
        if self.left < 0 or (last + 1) * itemsize > storage.nbytes():
            raise ValueError("a tensor is larger than its storage, or than allowed")
        return _dressed(torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride), grad, kind)


def unpack(data: bytes, kept: Callable[[int, str, str], Any]):
    """Raises ValueError for everything that ``pack`` does not write."""
    try:
        (length,) = struct.unpack(">Q", data[:8])
        if length > TEXT or len(data) > LIMIT + 8:
            raise ValueError("too large")
        sizes, form = json.loads(data[8 : 8 + length])
        at, storages = 8 + length, []
        if at + sum(_sizes(sizes)) != len(data):
            raise ValueError("not as many bytes as it says")
        for size in sizes:
            part = bytearray(data[at : at + size])
            numbers = torch.frombuffer(part, dtype=torch.uint8) if part else torch.empty(0, dtype=torch.uint8)
            storages.append(numbers.untyped_storage())
            at += size
        return _Unpacker(storages, kept).value(form)
    except ValueError:
        raise
    except Exception as error:  # whatever it is, it is the other side's
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _sizes(numbers) -> list[int]:
    if type(numbers) is not list or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise ValueError(f"{numbers!r} are no sizes")
    return numbers


def _int(text) -> int:
    return int(text, 16)


def _dtype(name) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def _dressed(tensor: Tensor, grad, kind) -> Tensor:
    """With requires_grad, and of a class of that name: judges look at the class, and say its name."""
    if kind in ("Parameter", "Buffer"):
        return torch.nn.Parameter(tensor, bool(grad)) if kind == "Parameter" else torch.nn.Buffer(tensor)
    if kind != "Tensor":
        if not NAMES.fullmatch(kind):
            raise ValueError("a tensor's class has no name")
        tensor = tensor.as_subclass(type(kind, (Tensor,), {}))
    return tensor.requires_grad_() if grad else tensor


# ---------------------------------------------------------------- verdicts


def _verdict(verdict: Wrong) -> list:
    cause = verdict.__cause__
    built_in = [kind.__name__ for kind in type(cause).__mro__ if kind.__module__ == "builtins"] if cause else []
    said = [built_in[0], str(cause)[:2000]] if built_in else ["", ""]
    return ["wrong", str(verdict.id), str(verdict)[:4000], *said]


def _wrong(id, sentence, kind, said) -> Wrong:
    """With a cause of a class that Python has, which says the same. It cannot say what only a judge says."""
    if not ID.fullmatch(id) or "earlier-part" in id or not (type(sentence) is type(said) is str):
        raise ValueError("a verdict without an id of its own")
    verdict, base = Wrong(id, sentence[:4000]), getattr(builtins, kind, None) if kind else None
    if isinstance(base, type) and issubclass(base, BaseException):
        text = said[:2000]
        methods = {"__init__": lambda self, *_: None, "__str__": lambda self: text}
        verdict.__cause__ = type(base.__name__, (base,), methods)()
    return verdict
