"""The checks of lab 08: their own arithmetic against bitsandbytes and torch, and the book that they close.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

import logging
import warnings

import pytest
import torch
import torch.nn.functional as F

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes.functional as bnb

from minigpt import nf4  # noqa: E402
from minigpt.checks import Wrong  # noqa: E402
from minigpt.checks.four_bits import asking, nested, quantizing, storage  # noqa: E402
from minigpt.checks.four_bits.asking import Weight, ask  # noqa: E402
from minigpt.memory.engine import layers  # noqa: E402
from minigpt.memory.families import Architecture  # noqa: E402
from tests.judged import refuses, swallow  # noqa: E402

NF4, DTYPES = quantizing.NF4, (torch.float32, torch.bfloat16, torch.float16)


# ---------------------------------------------------------------- the truth


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape, block", [((37, 50), 64), ((96, 40), 32), ((333, 101), 256), ((1,), 64)], ids=str)
def test_rounded_is_bitsandbytes(shape, block, dtype):
    weight = asking.random_weight(shape, dtype)
    packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    codes, absmax = quantizing.rounded(weight, NF4, block)
    assert codes.equal(quantizing.unpacked(packed, weight.numel())) and absmax.equal(state.absmax)


def test_the_sensitive_weights_tell_the_reciprocal_from_the_division():
    weight = quantizing.sensitive()
    assert weight.shape[0] > 50 and weight.shape[1] == 64
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4")
    theirs = quantizing.unpacked(packed, weight.numel())
    right, absmax = quantizing.rounded(weight, NF4)
    divided, _ = quantizing.rounded(weight, NF4, divide=True)
    assert right.equal(theirs) and absmax.equal(state.absmax)
    differ = (divided != theirs).view(-1, 64)
    assert differ[:, 1].all() and differ.sum() == len(weight)
    x = (weight * (1 / absmax)[:, None]).flatten()
    assert (x[:, None] - NF4).abs().argmin(1).equal(theirs.long())  # a fair answer: nearest by distance


def test_the_table_for_another_end_is_bitsandbytes_recipe():
    for end in (0.9677083, 0.99):  # bitsandbytes' own function needs scipy
        above, below = (torch.special.ndtri(torch.linspace(end, 0.5, n).double())[:-1] for n in (9, 8))
        values = torch.cat([above, -below, torch.zeros(1)]).sort().values
        quantizing.table(lambda end, values=values: (values / values.max()).float(), end)
    with refuses("not-finite", "not finite: the quantiles of 0 and of 1 are infinite"):
        quantizing.table(lambda end: torch.cat([torch.linspace(-1, 0, 15), torch.tensor([torch.inf])]), 0.99)


@pytest.mark.parametrize("n, block", [(63, 64), (1651, 64), (40001, 64), (100001, 128), (70000, 32)])
def test_bytes_are_the_courses(n, block):
    for double in (False, True):
        weight = nf4.quantize(asking.random_weight(n), block, double)
        assert storage.stored(n, block, double) == nf4.storage_bytes(weight)
    if block == 64:
        assert sum(layers.quantized_bytes(n, True, tables=False)) == storage.stored(n, 64, True)


def test_bits_are_the_published_ones():
    bits = storage.scale_bits(Architecture.of("llama-7b").linear_parameters)
    assert bits["before"] == 0.5 and round(bits["after"], 3) == 0.127 and round(bits["saved"], 3) == 0.373  # QLoRA
    assert bits["saved_gb"] == pytest.approx(14.14 - 13.84, abs=0.01)  # LitGPT, on an A100
    for id, (_, values) in storage.bit_mistakes(10**9, 128).items():
        for key, value in values.items():
            assert value != pytest.approx(storage.scale_bits(10**9, 128)[key], rel=1e-4), id


def test_double_quantization_of_the_course_passes():
    def forward(absmax, tables):
        offset, table = absmax.mean(), tables["signed"]
        rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        second = rows.abs().amax(1)
        codes = torch.bucketize(rows / second[:, None], (table[1:] + table[:-1]) / 2).view(-1)[: len(absmax)]
        return codes.to(torch.uint8), second, offset

    def back(codes, second, offset, tables):
        return tables["signed"][codes.int()] * second.repeat_interleave(256)[: len(codes)] + offset

    weight = Weight((200, 320), seed=7)
    nested.quantizes(forward, weight)
    nested.restores(back, weight)
    coarse = {name: (table * 50).round() / 50 for name, table in nested.TABLES.items()}
    with refuses("differs", "codes differ, by up to"):
        nested.quantizes(lambda absmax, tables: forward(absmax, coarse), weight)


# ---------------------------------------------------------------- the closed book


def packed_by_parameter():
    from bitsandbytes.nn import Params4bit

    return Params4bit(torch.ones(64, 1), quant_type="nf4").to("cpu")


WEIGHT = torch.ones(64)
ASKING = {
    "quantize_4bit": lambda: bnb.quantize_4bit(WEIGHT, quant_type="nf4"),
    "quantize_blockwise": lambda: bnb.quantize_blockwise(WEIGHT)[0],
    "the kernel": lambda: torch.ops.bitsandbytes.quantize_4bit(WEIGHT, 64, "nf4", torch.uint8),
    "a parameter": packed_by_parameter,
    "the table": lambda: bnb.get_4bit_type("nf4", device="cpu"),
    "nf4.quantize": lambda: nf4.quantize(WEIGHT),
    "nf4.quantize_statistics": lambda: nf4.quantize_statistics(WEIGHT),
    "nf4.derive_code": nf4.derive_code,
    "quantized_bytes": lambda: layers.quantized_bytes(64, True),
    "quantizing.rounded": lambda: quantizing.rounded(WEIGHT, NF4),
    "quantizing.unpacked": lambda: quantizing.unpacked(torch.ones(2, dtype=torch.uint8), 4),
    "nested._decode": lambda: nested._decode(torch.ones(2, dtype=torch.uint8), torch.ones(1), torch.zeros(())),
    "storage.stored": lambda: storage.stored(64),
    "storage.scale_bits": lambda: storage.scale_bits(64),
    "storage.bit_mistakes": lambda: storage.bit_mistakes(64),
    "storage.byte_slips": lambda: storage.byte_slips(64),
}


@pytest.mark.parametrize("what", ASKING)
def test_the_book_is_closed_and_open_again_after(what):
    for answer in (ASKING[what], swallow(ASKING[what])):
        with pytest.raises(
            Wrong, match="the answer asks (bitsandbytes|the course's own arithmetic) for the result"
        ) as no:
            ask(answer)
        assert no.value.id in ("asks-bitsandbytes", "asks-course")
    assert ASKING[what]() is not None


def test_the_closed_book_leaves_torch_alone_and_refuses_nan():
    assert ask(lambda x: F.pad(x, (0, 2)).view(2, -1).abs().amax(1), WEIGHT).tolist() == [1, 1]
    with refuses("not-finite", "numbers that are not finite: does it divide by a 0"):
        ask(lambda: (WEIGHT, 0 * (1 / torch.zeros(2))))


def test_what_was_asked_before_is_not_remembered_for_an_answer():
    assert storage.stored(64) == storage.stored(64) == 36
    with refuses("asks-course"):
        ask(storage.stored, 64)
    assert storage.stored(64) == 36


def test_an_answer_must_follow_its_arguments_to_another_device():
    codes = torch.tensor([1, 2], dtype=torch.uint8)
    asking.follows_device(lambda codes, n: codes[:n].int(), codes, 1)
    asking.follows_device(lambda codes, tables: tables["signed"][codes.long()], codes, nested.TABLES)
    with refuses("other-device", "the arguments lie on the device meta and the result on cpu"):
        asking.follows_device(lambda codes: torch.zeros(len(codes)), codes)
    for answer in (lambda codes: codes + torch.ones(2), lambda codes: codes.numpy(), lambda codes: codes.sum().item()):
        with refuses(
            "needs-values", "must work on any device; on meta, .*: .*\n    line [0-9]+ of the answer's cell: "
        ):
            asking.follows_device(answer, codes)


# ---------------------------------------------------------------- what is returned


class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.ones((), dtype=torch.bool)


@pytest.mark.parametrize(
    "wrong, id, says",
    [
        ([1, 2], "wrong-type", "of type list; a torch.Tensor"),
        (torch.zeros(2).as_subclass(Agreeable), "wrong-type", "of type Agreeable; a torch.Tensor"),
        (torch.zeros(2, 1), "not-flat", r"the shape is \(2, 1\), not \(2,\): make it flat"),
        (torch.zeros(3), "one-more", r"the shape is \(3,\), not \(2,\): one too many"),
        (torch.zeros(4), "wrong-shape", r"the shape is \(4,\), not \(2,\)$"),
        (torch.zeros(2, dtype=torch.int64), "wrong-dtype", "the dtype is int64; float32 is asked for"),
    ],
)
def test_what_is_no_such_vector_is_refused(wrong, id, says):
    with refuses(id, says):
        asking.vector(wrong, 2, torch.float32, "x", {"one-more": ("one too many", 3), "later": ("another", 3)})
