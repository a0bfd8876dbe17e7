"""Comparing an answer with the truth: whole numbers, ledgers, tensors and texts, as plain values.

Values that an answer made are first turned into plain ones (``plain``), and differences are computed here. So an int
subclass that equals everything, a patched ``math.isclose`` and NaN get nothing.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import torch

from minigpt.checks.naming import FACTORS, LARGE_UNITS, Hints, Slips, diagnose, ruled_out
from minigpt.checks.verdict import Wrong
from minigpt.memory.buckets import Ledger


def plain(value):
    """``value`` with numbers, texts, lists and mappings as Python's own types; anything else as it is."""
    if isinstance(value, (bool, torch.Tensor)) or value is None:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Ledger):
        return Ledger(**{field.name: plain(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Mapping):
        return {plain(key): plain(value[key]) for key in value}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    number = _number(value)
    return value if number is None or _is_truth_value(value) else number


def whole(value, what: str) -> int:
    """``value`` as a plain int: an int, a numpy integer or a 0-d integer tensor. Raises Wrong otherwise."""
    if _is_truth_value(value):
        raise Wrong("truth-value", f"{what}: {show(value)} is a truth value; a whole number is asked for")
    try:
        index = operator.index(value)  # always a plain int, whatever the class says about itself
    except TypeError:
        index = None
    if index is not None:
        if index.bit_length() > 200:  # which nobody reads, and Python may refuse to print
            raise Wrong("absurd", f"{what}: it is a number of about {index.bit_length() * 3 // 10} digits")
        return index
    number = _float(value)
    if number is None:
        comma = ": is there a comma behind it?" if type(value) is tuple and len(value) == 1 else ""
        raise Wrong("wrong-type", f"{what}: {_kind(value)}; a whole number (int) is asked for{comma}")
    if not math.isfinite(number):
        raise Wrong("not-finite", f"{what}: {number} is not a number of anything; a whole number (int) is asked for")
    hint = ": where you divide, divide with //" if number == int(number) else ""
    raise Wrong("float-for-int", f"{what}: {show(number)} is a float; a whole number (int) is asked for{hint}")


def _is_truth_value(value) -> bool:
    return type(value).__name__ in ("bool_", "bool") or getattr(value, "dtype", None) is torch.bool


def _float(value) -> float | None:
    """A real number as a plain float, past whatever a subclass says; None for anything else."""
    if isinstance(value, float):
        return float.__float__(value)
    try:
        return float.__float__(float(value)) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _number(value) -> int | float | None:
    """A plain int where the value is whole by type, else a plain float, or None."""
    try:
        return operator.index(value)
    except TypeError:
        alone = isinstance(value, np.ndarray) and value.size == 1  # an array of one element is taken as that
        return _number(value.item()) if alone else _float(value)


def same(a, b) -> bool:
    """Whether two values are equal, compared as plain values; tensors by every element and the dtype."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return False
        return a.shape == b.shape and a.dtype == b.dtype and _distance(a, b) == 0
    if is_dataclass(a) and is_dataclass(b) and type(a) is type(b):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(itertools.starmap(same, zip(a, b)))
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and str.__eq__(str.__str__(a), str.__str__(b))
    x, y = _number(a), _number(b)
    if x is None or y is None:  # nothing that this module can look into: ask it
        alike = type(a) is type(b) and (type(a).__eq__ is object.__eq__ or (a == b) is True)
        return alike or repr(a) == repr(b)
    return x == y or (x != x and y != y)


def values(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """The tensor's numbers, detached, float64 on the CPU. Raises Wrong where it has none to compare."""
    with torch._C.DisableTorchFunctionSubclass():
        tensor = torch.Tensor.detach(tensor)
        kinds = {"meta": tensor.is_meta, "sparse": tensor.layout != torch.strided, "complex": tensor.is_complex()}
        if odd := [kind for kind, found in kinds.items() if found]:
            raise Wrong("odd-tensor", f"{what}: a {odd[0]} tensor is given; a plain one is asked for")
        return torch.Tensor.to(tensor, "cpu", torch.float64)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference between two tensors of one shape; NaN where only one of them is NaN."""
    if not a.numel():
        return 0.0
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        a, b = values(a, "the answer"), values(b, "the answer")
        alike = (a == b) | (a.isnan() & b.isnan())  # equal infinities too, whose difference is NaN
        return torch.where(alike, 0.0, (a - b).abs()).max().item()


def integer(
    got, expected: int, what: str, *, wrong: Hints | None = None, slips: Slips | None = None, unit: str = ""
) -> None:
    """``got`` must be the whole number ``expected``. ``unit`` "bytes" also tries the mistakes bytes invite."""
    if unit == "bytes":
        _refuse_large_units(got, expected, what)
    got = whole(got, what)
    if not got == expected:
        id, sentence = diagnose(got, expected, wrong, slips, unit)
        raise Wrong(id, f"{what}: {sentence}")
    ruled_out(slips or {})


def buckets(
    got, expected, what: str, *, wrong: Mapping[str, Hints] | None = None,
    slips: Mapping[str, Slips] | None = None,
    only: Iterable[str] = (),
) -> None:  # fmt: skip
    """A ledger, bucket by bucket: a mapping (or a Ledger) of integer bytes against ``expected``'s keys.

    ``wrong`` and ``slips`` map a bucket's name to the hints for that bucket. All wrong buckets are named, but for those
    that are not in ``only``, if it is given.
    """
    if isinstance(expected, Ledger):
        expected = expected.as_dict()
    if isinstance(got, Ledger):  # it always has five buckets; those that nobody asked for may be empty
        got = {bucket: nbytes for bucket, nbytes in got.as_dict().items() if nbytes or bucket in expected}
    if not isinstance(got, Mapping):
        keys = ", ".join(expected)
        raise Wrong("wrong-type", f"{what}: {_kind(got)}; a dict of bytes is asked for, with the keys {keys}")
    missing = [key for key in expected if key not in got]
    extra = [show(key) for key in got if key not in expected]
    if missing or extra:
        parts = [f"it lacks {', '.join(missing)}"] * bool(missing) + [f"it has {', '.join(extra)}"] * bool(extra)
        raise Wrong("wrong-keys", f"{what}: {' and '.join(parts)}; the buckets are {', '.join(expected)}")
    problems, numbers, total = [], {}, sum(expected.values())
    for bucket in only or expected:
        name, truth = f"{what}, {bucket}", expected[bucket]
        _refuse_large_units(got[bucket], truth, name)
        numbers[bucket] = number = whole(got[bucket], name)
        if not number == truth:
            others = {"total": (f"that is the total; the bucket asked for is {bucket}", total)}
            for other, nbytes in expected.items():
                if nbytes not in (0, truth):
                    same_bytes = [name for name, size in expected.items() if size == nbytes]
                    others[f"figure-of-{other}"] = (f"that is the figure of {' and of '.join(same_bytes)}", nbytes)
            hints, changes = (wrong or {}).get(bucket), (slips or {}).get(bucket)
            id, sentence = diagnose(number, truth, hints, changes, "bytes", others, bucket)
            problems.append((id, f"{name}: {sentence}"))
    if problems and len(numbers) == len(expected) and sum(numbers.values()) == total:
        problems.append(("total-right", "The total is right: the bytes are in the wrong buckets."))
    if problems:
        ids, sentences = zip(*problems)
        raise Wrong("+".join(dict.fromkeys(ids)), "\n".join(sentences))
    for bucket in only or expected:
        ruled_out((slips or {}).get(bucket, {}), bucket)


def close(
    got, expected, what: str, *, rtol: float = 1e-5, atol: float = 1e-7, wrong: Hints | None = None, dtype=None
) -> None:
    """Every element of ``got`` within ``atol + rtol * |expected|``: a number or tensor, or a mapping of tensors.

    ``wrong`` has the value that a mistake gives, of the same form. ``dtype`` is also checked, if given.
    """
    if isinstance(expected, Mapping):
        for key, truth in expected.items():
            hints = {id: (sentence, value[key]) for id, (sentence, value) in (wrong or {}).items() if key in value}
            if not isinstance(got, Mapping) or key not in got:
                raise Wrong("missing", f"{what}: {key} is missing")
            close(got[key], truth, f"{what}, {key}", rtol=rtol, atol=atol, wrong=hints, dtype=dtype)
        return
    truth = _tensor(expected, what)
    if got is None:
        raise Wrong("none", f"{what}: there is none (None)")
    if dtype is not None and getattr(got, "dtype", None) != dtype:
        found = getattr(got, "dtype", type(got).__name__)
        raise Wrong("wrong-dtype", f"{what}: its dtype is {found}; {dtype} is asked for")
    value = _tensor(got, what)
    if value.shape != truth.shape:
        turned = value.shape == truth.shape[::-1]
        raise Wrong(
            "transposed" if turned else "wrong-shape",
            f"{what}: its shape is {tuple(value.shape)}, not {tuple(truth.shape)}{': it is transposed' * turned}",
        )
    if _near(value, truth, rtol, atol):
        return
    for id, (sentence, other) in (wrong or {}).items():
        other = _tensor(other, what)
        if other.shape == truth.shape and _near(value, other, rtol, atol):
            raise Wrong(id, f"{what}: {sentence}")
    if not value.isfinite().all().item():
        raise Wrong("not-finite", f"{what}: it holds NaN or infinity")
    for id, (sentence, factor) in FACTORS.items():
        if truth.abs().max().item() > 0 and _near(value, truth * factor, rtol, atol):
            raise Wrong(id, f"{what}: {sentence}")
    if truth.numel() == 1:
        mine, right = (_number_text(number.item()) for number in (value, truth))
        raise Wrong("differs", f"{what}: it is {mine}, and should be {right}")
    raise Wrong(
        "differs",
        f"{what}: it differs by up to {_distance(value, truth):.3g}, "
        f"where values are up to {truth.abs().max().item():.3g}",
    )


def _number_text(number: float) -> str:
    """Six digits, and thousands apart."""
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:.6g}"


def choice(got, expected, what: str, *, wrong: Hints | None = None) -> None:
    """``got`` must be the text (or None) ``expected``."""
    text = str.__str__(got) if isinstance(got, str) else got
    if expected is None and text is None or type(text) is str and text == expected:
        return
    if text is not None and type(text) is not str:
        raise Wrong("wrong-type", f"{what}: {_kind(got)}; a text is asked for")
    hints = {value: (id, sentence) for id, (sentence, value) in reversed((wrong or {}).items())}  # the first one wins
    id, sentence = hints.get(text, ("wrong-choice", f"the answer is {expected!r}"))
    raise Wrong(id, f"{what}: {show(text)} is not right: {sentence}")


def _refuse_large_units(got, expected: int, what: str) -> None:
    number = _float(got)
    for name, size in LARGE_UNITS.items():
        if number and expected and abs(number * size / expected - 1) < 6e-3 and not isinstance(got, int):
            raise Wrong(f"in-{name.lower()}", f"{what}: {number:g} is in {name}; whole bytes (int) are asked for")


def _tensor(value, what: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return values(value, what)
    number = _float(value)
    if number is None:
        raise Wrong("wrong-type", f"{what}: {_kind(value)}; a number or tensor is asked for")
    return torch.tensor(number, dtype=torch.float64)


def _near(a: torch.Tensor, b: torch.Tensor, rtol: float, atol: float) -> bool:
    return bool(((a - b).abs() <= atol + rtol * b.abs()).all().item())  # NaN is not <= anything


def show(value) -> str:
    text = f"{value:,}" if type(value) in (int, float) else re.sub(" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value) -> str:
    return f"{show(value)} is of type {type(value).__name__}"
