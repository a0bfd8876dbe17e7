"""The replay of recordings, on small ones worked by hand: what is right passes, each difference is found."""

from __future__ import annotations

import gzip

import pytest

from minigpt.memory.predicted.allocator import Options
from tools.recordings import main, options_of, read, replay

MIB = 2**20
#: Began with a segment of 2 MiB, its first 512 bytes in use for 4. A large block waits for another stream.
PLAIN = """event,action,address,size,stream,note
,init_segment,0,2097152,0,s
,init_block,0,512,0,4
1,alloc,512,1000,0,fwd
2,segment_alloc,4194304,20971520,0,
3,alloc,4194304,3145728,0,fwd
4,alloc,7340032,3145728,0,bwd
5,free_requested,4194304,3145728,0,
6,free_requested,0,4,0,
7,free_completed,0,4,0,
8,alloc,0,100,0,bwd
9,free_completed,4194304,3145728,0,
10,alloc,4194304,2097152,0,opt
11,free_requested,7340032,3145728,0,
12,free_completed,7340032,3145728,0,
13,free_requested,4194304,2097152,0,
14,free_completed,4194304,2097152,0,
15,segment_free,4194304,20971520,0,
16,segment_alloc,33554432,27262976,0,
17,alloc,33554432,26214400,0,fwd
,final_segment,0,2097152,0,s
,final_segment,33554432,27262976,0,l
,final_block,0,512,0,used
,final_block,512,1024,0,used
,final_block,1536,2095616,0,free
,final_block,33554432,27262976,0,used
"""
#: Three pages of 20 MiB, the one in the middle of a hole given back and mapped again.
EXPANDABLE = """event,action,address,size,stream,note
,init_segment,0,20971520,0,lx
,init_block,0,15728640,0,15728640
1,segment_map,20971520,41943040,0,
2,alloc,15728640,31457280,0,fwd
3,alloc,47185920,15728640,0,fwd
4,free_requested,15728640,31457280,0,
5,free_completed,15728640,31457280,0,
6,segment_unmap,20971520,20971520,0,
7,segment_map,20971520,20971520,0,
8,alloc,15728640,20971520,0,fwd
9,segment_map,100000000000,2097152,0,
10,alloc,100000000000,512,0,fwd
,final_segment,0,62914560,0,lx
,final_segment,100000000000,2097152,0,sx
,final_block,0,15728640,0,used
,final_block,15728640,20971520,0,used
,final_block,36700160,10485760,0,free
,final_block,47185920,15728640,0,used
,final_block,100000000000,512,0,used
,final_block,100000000512,2096640,0,free
"""


@pytest.fixture
def folder(tmp_path):
    """A function that writes a folder of recordings, as {name: (text, allocator)}."""

    def write(**recordings: tuple[str, str]):
        (tmp_path / "traces").mkdir()
        lines = ["trace,allocator,peak_allocated,peak_reserved"]
        for name, (text, words) in recordings.items():
            with gzip.open(tmp_path / "traces" / f"{name}.csv.gz", "wt", encoding="utf8") as file:
                file.write(text)
            lines.append(f"{name},{words},,")
        (tmp_path / "catalog.csv").write_text("\n".join(lines), encoding="utf8")
        return tmp_path

    return write


def test_recordings_worked_by_hand_are_exact(folder, capsys):
    assert main([str(folder(plain=(PLAIN, "default"), growing=(EXPANDABLE, "expandable_segments")))]) == 0
    printed = capsys.readouterr().out
    for words in ("plain", "6 / 6", "2 / 2", "4 / 4", "growing", "3 / 3", "2 of 2 recordings are exact"):
        assert words in printed, words


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("1,alloc,512,", "1,alloc,1024,", "after 0 requests it places 1,000 bytes at 512, the recording at 1024"),
        ("2,segment_alloc,4194304,20971520", "2,segment_alloc,4194304,4194304", "the recording one of 4,194,304"),
        ("2,segment_alloc,4194304,20971520,0,\n", "", "takes a segment of 20,971,520 bytes, which the"),
        ("3,alloc", "3,alloc,24,8,0,fwd\n3,alloc", "takes no segment, which the recording does"),
        ("segment_free,4194304", "segment_free,0", "at 4194304 back, which the recording does not"),
        ("11,free_requested,7340032", "11,free_requested,8", "has no block at 8 that the recording frees"),
        ("15,segment_free", "15,segment_free,99,9,0,\n15,segment_free", "keeps 1 segments that the"),
    ],
)
def test_a_difference_is_found_and_named(folder, capsys, old, new, words):
    assert old in PLAIN
    assert main([str(folder(plain=(PLAIN.replace(old, new, 1), "default")))]) == 1
    printed = capsys.readouterr().out
    assert words in printed and "0 of 1 recordings are exact" in printed


@pytest.mark.parametrize(
    "old, new",
    [
        (",final_block,512,1024", ",final_block,512,2048"),
        ("0,s\n,final_segment,3", "0,l\n,final_segment,3"),
        ("15,segment_free,4194304,20971520,0,\n", ""),  # the segment is too small for what follows, and only stays
    ],
)
def test_another_end_is_found(folder, old, new):
    assert PLAIN.count(old) == 1
    assert main([str(folder(plain=(PLAIN.replace(old, new), "default")))]) == 1


def test_another_option_is_found(folder):
    assert main([str(folder(growing=(EXPANDABLE, "default")))]) == 1


def test_a_peak_that_the_catalog_has_otherwise_is_named(folder, capsys):
    path = folder(plain=(PLAIN, "default"))
    catalog = path / "catalog.csv"
    text = catalog.read_text(encoding="utf8")
    catalog.write_text(text.replace("plain,default,,", "plain,default,27264512,29360128"), encoding="utf8")
    assert main([str(path)]) == 0
    catalog.write_text(text.replace("plain,default,,", "plain,default,27264513,29360128"), encoding="utf8")
    assert main([str(path)]) == 1
    assert "its peak_allocated is 27,264,512, the catalog's 27,264,513" in capsys.readouterr().out


def test_a_folder_without_recordings_is_named(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "it must hold catalog.csv" in capsys.readouterr().err
    (tmp_path / "catalog.csv").write_text("name\nplain\n", encoding="utf8")
    assert main([str(tmp_path)]) == 2
    assert "has a line without trace" in capsys.readouterr().err


def test_the_words_of_a_catalog():
    assert options_of("default") == Options()
    assert options_of("expandable_segments") == Options(expandable_segments=True)
    assert options_of("max_split_size_mb:64") == Options(max_split_size_mb=64)


def test_the_peaks_of_a_replay_are_those_of_its_events(folder):
    rows = read(folder(plain=(PLAIN, "default")) / "traces" / "plain.csv.gz")
    result = replay(rows, Options())
    assert result.exact and (result.allocated, result.reserved) == (26 * MIB + 512 + 1024, 28 * MIB)
