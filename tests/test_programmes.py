"""Recorded programmes, told again from configuration alone: their requests and peaks as facts, without the recordings.

Facts of public recordings (MIT), by their names in the forks of stanford-cs336/assignment2-systems: how many requests,
bytes asked for in all, and the peaks of what torch's allocator had allocated and reserved.
"""

from __future__ import annotations

import csv
import gzip

import pytest

from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.predicted.allocator import Allocator
from minigpt.memory.predicted.reserved import replay
from minigpt.memory.snapshot import requests as made
from tools import programmes
from tools.recorded.scripts import tell
from tools.recordings import options_of

XL, MEDIUM, LARGE = "xl 2560x32x32", "medium 1024x24x16", "large 1280x36x20"
FORWARD, STEP = "one forward", "one full step"
FACTS = [  # trace, model, batch, length, precision, phase, allocator; requests, asked, allocated, reserved
    ("LINYUNLinYun_forward_972da1", XL, 4, 128, "fp32", FORWARD, "default",
     1704, 9_043_384_448, 13_859_874_816, 13_889_437_696),
    ("LINYUNLinYun_forward_9a3860", XL, 4, 128, "fp32", FORWARD, "default",
     1704, 9_043_384_448, 19_384_430_592, 19_537_068_032),
    ("LINYUNLinYun_forward_8bc56a", XL, 4, 2048, "fp32", FORWARD, "default",
     1704, 531_367_035_008, 22_869_993_472, 25_195_184_128),
    ("LINYUNLinYun_full_step_f23d54", XL, 4, 512, "fp32", STEP, "default",
     5002, 189_659_940_189, 70_370_929_664, 74_769_760_256),
    ("LINYUNLinYun_full_step_f68696", XL, 4, 128, "bf16 autocast", STEP, "default",
     6158, 72_912_001_165, 68_630_923_776, 74_134_323_200),
    ("Wedsonlin_training_0db7d8", MEDIUM, 4, 128, "fp32", STEP, "default",
     6526, 34_448_091_337, 7_026_606_592, 7_235_174_400),
    ("Wedsonlin_inference_1cfc21", MEDIUM, 4, 1024, "fp32", FORWARD, "default",
     1280, 56_655_331_424, 2_879_401_984, 3_204_448_256),
    ("Hyperion-shuo_fw_bf16_9ed017", LARGE, 1, 128, "bf16 autocast", "no_grad forward and loss", "default",
     2570, 2_968_741_456, 5_922_787_840, 6_186_598_400),
    ("Hyperion-shuo_fw_with_grad_cdf88b", LARGE, 1, 128, "fp32", "forward and loss with grad", "default",
     1991, 1_315_083_928, 5_632_149_504, 5_676_990_464),
    ("bolongcheng_fwd_0df6e0", XL, 4, 512, "fp32", FORWARD, "expandable_segments",
     1704, 55_507_181_696, 42_537_453_568, 43_132_125_184),
("Hyperion-shuo_fw_with_grad_bf16_7fe70b", LARGE, 1, 512, "bf16 autocast", "forward and loss with grad", "default",
     2570, 9_257_203_792, 13_828_918_272, 13_857_980_416),
    ("HanFa_inference_21506e", "", 32, 128, "fp32", "25 forwards", "default",
     6651, 148_592_424_456, 2_309_814_272, 2_577_399_808),
    ("silmont2000_mem_snapshot_b61be4", "", 8, 4096, "fp32", "attention", "default",
     36, 8_091_861_260, 3_249_144_832, 3_781_165_056),
]  # fmt: skip
COLD = [  # the peak of allocated bytes depends on where a device puts segments: within 0.5%
    ("forward", 100, 785, 1_698_296_816, 416_297_472, 463_470_592),
    ("forward", 200, 785, 4_373_928_016, 882_670_592, 945_815_552),
    ("3 full steps", 100, 3853, 9_130_960_035, 695_675_904, 786_432_000),
    ("3 full steps", 200, 3907, 16_960_632_083, 1_234_635_264, 1_390_411_776),
]


def line(trace, model, batch, seq, precision, phase, allocator="default") -> dict[str, str]:
    return dict(trace=trace, model=model, batch=str(batch), seq=str(seq), precision=precision, phase=phase,
                allocator=allocator, cublas_workspace="8519680")  # fmt: skip


def outcome(line: dict[str, str]) -> tuple[int, int, int, int]:
    programme = tell(line)
    assert programme is not None
    sizes = made.told(programme.tape, programme.began).sizes
    allocator = Allocator(options_of(line["allocator"]))
    replay(programme.tape, allocator, programme.began)
    return len(sizes), sum(sizes), allocator.statistics.allocated.peak, allocator.statistics.reserved.peak


@pytest.mark.parametrize("fact", FACTS, ids=[fact[0] for fact in FACTS])
def test_a_recorded_programme_comes_out_to_the_byte(fact):
    assert outcome(line(*fact[:7])) == fact[7:]


@pytest.mark.parametrize("fact", COLD, ids=[f"{fact[0]}, {fact[1]} tokens" for fact in COLD])
def test_a_programme_from_an_empty_gpu(fact):
    phase, tokens, requests, asked, allocated, reserved = fact
    told = outcome(line("NiuHuangxiaozi_", "", 10, tokens, "fp32", phase))
    assert told[:2] == (requests, asked) and told[3] == reserved
    assert told[2] == pytest.approx(allocated, rel=0.005)


# ------------------------------------------------------------ the comparison, on a recording made here


@pytest.fixture
def folder(tmp_path):
    """A recording of what is told of silmont2000's programme, with addresses that never repeat."""
    given = line("silmont2000_mem_snapshot_made", "", 2, 64, "fp32", "attention")
    programme = tell(given)
    assert programme is not None
    rows, places, top = [], {}, 0
    for _, record, kind in programme.tape.events:
        if kind == BORN:
            places[record], top = top, top + record.nbytes
            rows.append(["", "alloc", places[record], record.nbytes, 0, ""])
        elif kind == DEAD:
            rows.append(["", "free_requested", places[record], record.nbytes, 0, ""])
    allocator = Allocator()
    replay(programme.tape, allocator)
    peaks = allocator.statistics
    given |= dict(peak_allocated=str(peaks.allocated.peak), peak_reserved=str(peaks.reserved.peak))
    return write(tmp_path, given, rows), given, rows


def write(path, given, rows):
    (path / "traces").mkdir(exist_ok=True)
    with open(path / "catalog.csv", "w", newline="", encoding="utf8") as file:
        catalog = csv.DictWriter(file, list(given))
        catalog.writeheader()
        catalog.writerow(given)
    with gzip.open(path / "traces" / f"{given['trace']}.csv.gz", "wt", newline="", encoding="utf8") as file:
        csv.writer(file).writerows([["event", "action", "address", "size", "stream", "note"], *rows])
    return path


def test_a_programme_that_is_told_right_parts_nowhere(folder, capsys):
    path, *_ = folder
    (row,) = programmes.table(programmes.compare_folder(path))
    assert row.parting is None and row.close and row.allocated[0] == row.allocated[1]
    assert "1 of 1 programmes are told request by request" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["size", "free"])
def test_the_first_request_that_differs_is_named(folder, capsys, change):
    path, given, rows = folder
    requests = [i for i, row in enumerate(rows) if row[1] == "alloc"]
    place = requests[9] if change == "size" else next(i for i, row in enumerate(rows) if row[1] == "free_requested")
    if change == "size":
        rows[place][3] += 4
    else:
        del rows[place]
    write(path, given, rows)
    (row,) = programmes.table(programmes.compare_folder(path))
    expected = 9 if change == "size" else sum(i < place for i in requests)
    assert row.parting == expected and f"{expected:,}" in capsys.readouterr().out
