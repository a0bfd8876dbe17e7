"""The codec between a judge and a student's process: plain values, replies that are none, and no pickle back."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minigpt import checks
from minigpt.checks import answers, probes, wire
from minigpt.checks.adapters.layer import Case
from minigpt.checks.comparing import same
from minigpt.checks.probes import layers
from minigpt.memory import Ledger
from minigpt.model import GPT, GPTConfig
from tests.judged import TINY, alike


def across(value):
    """``value``, as a judge gets it."""
    return wire.unpack(wire.pack(value, lambda _: 7), lambda number, kind, shown: (number, kind, shown))


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text() | st.sampled_from(
    [2**4000, -(2**64), torch.bfloat16, torch.device("cpu"), torch.Size([2, 0, 3]), Ledger(1, 2), TINY]
)  # fmt: skip
keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
nested = st.recursive(
    plain, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner), max_leaves=20
)


@settings(max_examples=100, deadline=None)
@given(nested)
def test_plain_values_come_as_they_are(value):
    assert alike(across(value), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool,
                                   torch.complex64, torch.float8_e4m3fn])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (1, 0, 4)])
def test_tensors_come_with_their_bits(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    got = across([tensor])[0]
    assert (got.dtype, got.shape, type(got)) == (dtype, tensor.shape, torch.Tensor)
    assert got.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_what_a_judge_looks_at_in_a_tensor_comes_along():
    whole = torch.arange(12.0).reshape(3, 4)
    view, turned, again = across((whole[1:2], whole.T, whole))
    assert same(view, whole[1:2]) and same(turned, whole.T) and turned.stride() == whole.T.stride()
    assert view.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()  # it keeps the whole alive
    assert view.untyped_storage().nbytes() == 48
    frozen, trained = across([nn.Parameter(whole, False), nn.Parameter(whole)])
    assert isinstance(frozen, nn.Parameter) and (frozen.requires_grad, trained.requires_grad) == (False, True)
    assert across(trained * 2).requires_grad
    meta = across(torch.empty(5, 10**9, dtype=torch.bfloat16, device="meta"))
    assert (meta.device.type, meta.shape, meta.dtype) == ("meta", (5, 10**9), torch.bfloat16)
    own = across(whole.as_subclass(type("Mine", (torch.Tensor,), {})))
    assert type(own).__name__ == "Mine" and same(own.as_subclass(torch.Tensor), whole)
    assert across(whole.to_sparse()).layout == torch.sparse_coo
    assert same(across(torch.conj(torch.tensor([1 + 2j]))).real, torch.tensor([1.0]))


def test_a_verdict_comes_with_what_caused_it():
    verdict = checks.Wrong("raises-mine", "it fails")
    verdict.__cause__ = type("Mine", (ValueError,), {})("no rank of 0")
    got = across(verdict)
    assert (got.id, str(got), str(got.__cause__)) == ("raises-mine", "it fails", "no rank of 0")
    assert isinstance(got.__cause__, ValueError)
    verdict.__cause__ = KeyError("P")
    assert str(across(verdict).__cause__) == "'P'"


def test_what_is_no_plain_value_stays_where_it_is():
    got = across({"x": nn.Linear(2, 3), "y": [{1, 2}], "z": np.arange(3)})
    assert got["x"] == (7, "Linear", "Linear(in_features=2, out_features=3, bias=True)")
    assert got["y"] == [(7, "set", "{1, 2}")] and got["z"] == (7, "ndarray", "array([0, 1, 2])")
    deep: list = []
    deep.append((deep, 3))
    assert "kept" in json.dumps(json.loads(wire.pack((deep,), lambda _: 0)[8:]))  # and so ends


def message(form, sizes=(), data=b"") -> bytes:
    head = json.dumps([list(sizes), form]).encode()
    return struct.pack(">Q", len(head)) + head + data


@pytest.mark.parametrize("reply", [
    b"", b"\0" * 8, b"\xff" * 30, message(3)[:-1], message(3) + b"x", b"\0" * 7 + b"\x04nope",
    message(["nothing"]), message([]), message({"a": 1}), message(["list", ["tensor"]]), message(["int", "7.5"]),
    message(["dict", [["list"], 1]]), message(["dict", 3]), message(["size", "a"]),
    message(["GPTConfig", 1, 2]), message(["GPTConfig", 1, 8, 3, 4, 5, "sdpa"]), message(["Ledger"]),
    message(["dtype", "nn"]), message(["dtype", "load"]), message(["device", "nowhere"]), message([["list"]]),
    message(["kept", "0", "A", ""]),
    message(["kept", 0, "A B", ""]), message(["tensor", "float32", [2], False, "Tensor", 0, [1], 0], [4], b"abcd"),
    message(["tensor", "float32", [2**40, 2**40], False, "Tensor", 0, [0, 0], 0], [4], b"abcd"),
    message(["tensor", "float32", [1], False, "Tensor", 0, [1], 2**62], [4], b"abcd"),
    message(["tensor", "float32", [1], False, "Tensor", 0, [-1], 0], [4], b"abcd"),
    message(["tensor", "float32", [1], False, "Tensor", 1, [1], 0], [4], b"abcd"),
    message(["tensor", "int8", [4], True, "Tensor", 0, [1], 0], [4], b"abcd"),
    message(["list", *[["tensor", "int8", [2**28], False, "Tensor", 0, [0], 0]] * 3], [1], b"a"),
    message(["meta", "float32", [-1], False, "Tensor"]), message(["tensor"], [-4, 8], b"abcd"),
    message(["wrong", "earlier-part", "the rest follows from it", "", ""]), message(["wrong", "A B", "", "", ""]),
    message(["wrong", "a+earlier-part", "", "", ""]), message(["wrong", "a", 3, "", ""]),
    struct.pack(">Q", 10**6) + b"[" * 10**6, message("a") + b"0" * 100,
])  # fmt: skip
def test_a_reply_that_is_none_is_refused(reply):
    with pytest.raises(ValueError):
        wire.unpack(reply, lambda *_: None)


forms = st.recursive(
    plain.filter(lambda value: isinstance(value, (int, float, str, type(None)))),
    lambda inner: st.lists(inner) | st.tuples(st.sampled_from([
        "list", "tuple", "dict", "size", "int", "bool_", "dtype", "device", "kept", "meta", "sparse", "tensor", "wrong",
        "Ledger", "GPTConfig",
    ]), st.lists(inner)).map(lambda pair: [pair[0], *pair[1]]),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(forms, st.binary(max_size=8))
def test_whatever_is_typed_in_is_read_or_refused(form, data):
    try:
        wire.unpack(message(form, [len(data)], data), lambda *_: None)
    except ValueError:
        pass


def test_what_is_too_large_is_refused_on_both_sides(monkeypatch):
    data = wire.pack(torch.zeros(1000), lambda _: 0)
    monkeypatch.setattr(wire, "LIMIT", 3999)
    with pytest.raises(ValueError, match="3,999 are allowed"):
        wire.pack(torch.zeros(1000), lambda _: 0)
    with pytest.raises(ValueError, match="too large"):
        wire.unpack(data, lambda *_: None)


def test_a_judge_sends_nothing_that_only_judges_have():
    for what in (Case(2, 3, 1, 4), Case, answers.value, [lambda: 3]):
        with pytest.raises(ValueError, match="cannot be sent"):
            wire.send(what)
    there = answers.Channel()
    sent = wire.send([answers.Answer("f", there), answers.Kept(3, "it", there), layers.run, GPT(TINY), GPTConfig])
    got = wire.receive(sent, lambda *name: name)
    assert got[:3] == [("answer", "f"), ("kept", 3), ("probe", "layers.run")] and got[4] is GPTConfig
    assert got[3].lm_head.weight is got[3].token_embedding.weight  # tied there, too


def test_only_probes_are_called_by_name():
    assert probes.named("layers.run") is layers.run
    for name in (
        "layers.make",
        "layers.torch",
        "calling.call",
        "layers",
        "os.system",
        "..checks.call",
        "layers.nobody",
    ):
        with pytest.raises((ValueError, ImportError)):
            probes.named(name)
