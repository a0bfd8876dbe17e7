"""The allocator's options and sizes: against the installed torch, whose parser of them is there without a GPU."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from minigpt.memory.predicted.allocator import Options, options
from minigpt.memory.units import MIB

TORCH = Path(torch.__file__).parent
ROUNDINGS = ["1", "2", "8", "[256:1,512:2,1024:4,>:8]", "[64:8,128:2,256:4,512:2,1024:4,>:1]", "[4:2]", "[>:4]",
             "[1:16,>:0]", "[32768:4,>:2]", "[65536:8]", "[8:2,2:4,>:16]"]  # fmt: skip


@pytest.fixture
def torch_settings():
    """torch's own parser of PYTORCH_ALLOC_CONF, and its settings put back afterwards."""
    parse = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if parse is None:
        pytest.skip("this torch has no allocator settings to ask")
    yield parse
    parse("large_segment_size_mb:20,expandable_segments:False")


@pytest.fixture
def torch_divisions(torch_settings):
    """How torch divides the power of two below a size, under the settings that it parsed last: a function of libc10."""
    name = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"
    try:
        function = getattr(ctypes.CDLL(str(TORCH / "lib" / "libc10.so")), name)
    except (AttributeError, OSError):
        pytest.skip("this torch has no such function to call")
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_size_t
    return function


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_divisions_are_those_that_torch_reads(rounding, torch_settings, torch_divisions):
    words = f"roundup_power2_divisions:{rounding}"
    torch_settings(words)
    ours = Options.parse(words)
    for exponent in range(9, 38):
        for size in (2**exponent, 2 ** (exponent + 1) - 1):
            steps = torch_divisions(size)
            assert ours.divisions[min(max(exponent - 20, 0), 15)] == steps, size
            step = 2**exponent // steps if steps > 1 and size > 512 * steps else 512
            assert ours.round(size) == -(-size // step) * step, size


@pytest.mark.parametrize(
    "words, right",
    [
        ("", True),
        ("large_segment_size_mb:11", True),
        ("large_segment_size_mb:10", False),
        ("max_split_size_mb:20", True),
        ("max_split_size_mb:19", False),
        ("large_segment_size_mb:40,max_split_size_mb:40", True),
        ("max_split_size_mb:39, large_segment_size_mb:40", False),
        ("max_non_split_rounding_mb:20", True),
        ("max_non_split_rounding_mb:19", False),
        ("garbage_collection_threshold:0.99", True),
        ("garbage_collection_threshold:1.0", False),
        ("roundup_power2_divisions:3", False),
        ("roundup_power2_divisions:[256:3]", False),
        ("roundup_power2_divisions:[100:2]", False),
        ("expandable_segments:True", True),
        ("expandable_segments:true", False),
    ],
)
def test_what_is_allowed_is_what_torch_allows(words, right, torch_settings):
    for parse in (torch_settings, Options.parse):
        torch_settings("large_segment_size_mb:20")
        if right:
            parse(words)
        else:
            with pytest.raises(ValueError):
                parse(words)


def test_constants_are_those_of_torchs_header():
    text = (TORCH / "include" / "c10" / "core" / "AllocatorConfig.h").read_text(encoding="utf8")
    for name, value in {
        "kMinBlockSize": options.MIN_BLOCK,
        "kSmallSize": options.SMALL_SIZE,
        "kSmallBuffer": options.SMALL_SEGMENT,
        "kMinLargeAlloc": options.MIN_LARGE,
        "kRoundLarge": options.ROUND_LARGE,
        "large_segment_size_": Options().large_segment_size_mb * MIB,
    }.items():
        assert re.search(rf"\b{name}(?: = |{{){value}\b", text), name


def test_every_option_of_torch_is_used_or_known_to_be_without_effect_or_refused():
    """The names that torch's header of CUDA's own options holds; the general ones are the fields of Options."""
    header = (TORCH / "include" / "c10" / "cuda" / "CUDAAllocatorConfig.h").read_text(encoding="utf8")
    keys = re.sub("//.*", "", header.split("keys{")[1].split("};")[0])
    keys = re.sub(r'"\s+"', "", keys)  # C joins two strings in a row
    names = {name for name in re.findall(r'"(\w+)"', keys) if "hip" not in name}
    assert len(names) >= 9
    assert names <= {*options.WITHOUT_EFFECT, "backend", "throw_on_cudamalloc_oom", "per_process_memory_fraction"}


def test_parsing_reads_values_and_passes_over_what_has_no_effect():
    words = "backend:native, pinned_num_register_threads:8,max_split_size_mb:128 ,expandable_segments:True"
    assert Options.parse(words) == Options(max_split_size_mb=128, expandable_segments=True)
    assert Options.parse("roundup_power2_divisions:[256:1,>:2]").roundup_power2_divisions == ((256, 1), (">", 2))
    fraction = Options.parse("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5")
    assert (fraction.garbage_collection_threshold, fraction.per_process_memory_fraction) == (0.8, 0.5)


@pytest.mark.parametrize(
    "words, message",
    [
        ("backend:cudaMallocAsync", "the option 'backend:cudaMallocAsync' is not known here; it must be one of"),
        ("throw_on_cudamalloc_oom:True", "the option 'throw_on_cudamalloc_oom:True' is not known here"),
        ("max_split_size_mb", "max_split_size_mb is '', which cannot be read as max_split_size_mb:VALUE"),
        ("max_split_size_mb:12.5", "max_split_size_mb is '12.5'"),
        ("max_split_size_mb:12", "max_split_size_mb is 12; it must be at least large_segment_size_mb, 20"),
        ("large_segment_size_mb:8", "large_segment_size_mb is 8; it must be more than 10"),
        ("expandable_segments:yes", "expandable_segments is 'yes'"),
        ("roundup_power2_divisions:[256]", r"roundup_power2_divisions is '\[256\]'"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction is 1.5; it must be from 0 to 1"),
    ],
)
def test_what_cannot_be_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        Options.parse(words)


@pytest.mark.parametrize(
    "nbytes, size, segment",
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB - 511, MIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounded up, it is no longer under 10 MiB
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (25 * MIB, 25 * MIB, 26 * MIB),
        (26 * MIB, 26 * MIB, 26 * MIB),
    ],
)
def test_sizes_by_hand(nbytes, size, segment):
    default = Options()
    assert (default.round(nbytes), default.segment_size(size)) == (size, segment)


@pytest.mark.parametrize("nbytes, size", [(1200 * 1024, 1280 * 1024), (1024 * 1024, 1024 * 1024), (1537, 2048)])
def test_rounding_to_a_quarter_of_a_power_of_two_by_hand(nbytes, size):
    """1200 of 1024 to 2048 in four steps is 1280 (the example of torch's source); small ones go to 512 as ever."""
    assert Options(roundup_power2_divisions=4).round(nbytes) == size


def test_splitting_by_hand():
    small, large = True, False
    default = Options()
    assert [default.splits(512, rest, small) for rest in (0, 511, 512)] == [False, False, True]
    assert [default.splits(2 * MIB, rest, large) for rest in (512, MIB, MIB + 512)] == [False, False, True]
    assert [Options(max_split_size_mb=32).splits(size * MIB, 8 * MIB, large) for size in (31, 32)] == [True, False]
    assert Options(expandable_segments=True).splits(2 * MIB, 512, large)
