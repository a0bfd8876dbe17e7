"""What a library has no word for, what is no file, and what the command does with either."""

from __future__ import annotations

import re

import pytest

from minigpt.memory import TrainingPlan
from minigpt.memory.__main__ import main
from minigpt.memory.configurations import LIBRARIES, beside, read, write
from tests.test_configurations import DDP, FSDP2, PLANS, ZERO


@pytest.mark.parametrize(
    ("library", "plan", "message"),
    [
        ("accelerate", ZERO, "sharding is 'zero2', for which accelerate has no word: allowed: ddp, fsdp2"),
        ("accelerate", {}, "sharding is 'none', for which accelerate has no word"),
        ("accelerate", {**FSDP2, "precision": "bf16-autocast"}, "precision is 'bf16-autocast', for which accelerate"),
        ("accelerate", {**FSDP2, "precision": "bf16", "autocast": True}, "autocast is True, for which accelerate has"),
        ("accelerate", {**FSDP2, "checkpointing": "sqrt"}, "checkpointing is 'sqrt', for which accelerate has no word"),
        ("accelerate", {**DDP, "gradient_as_bucket_view": True}, "gradient_as_bucket_view is True, for which"),
        ("transformers", DDP, "sharding is 'ddp', for which transformers has no word: allowed: fsdp2"),
        ("transformers", {**FSDP2, "checkpointing": "offload"}, "checkpointing is 'offload', for which transf"),
        ("transformers", {**FSDP2, "optimizer": "kahan_adamw"}, "optimizer is 'kahan_adamw', for which transf"),
        ("transformers", {**FSDP2, "optimizer_loop": "single"}, "optimizer_loop is 'single', for which transf"),
        ("deepspeed", FSDP2, "sharding is 'fsdp2', for which deepspeed has no word: allowed: zero1, zero2, zero3"),
        ("deepspeed", {**ZERO, "precision": "bf16"}, "precision is 'bf16', for which deepspeed has no word"),
        ("deepspeed", {**ZERO, "precision": "fp32", "optimizer": "galore"}, "optimizer is 'galore', for which deep"),
        ("deepspeed", {**ZERO, "precision": "fp32", "optimizer": "paged_adamw8bit"}, "optimizer is 'paged_adamw8bit'"),
        ("deepspeed", {**ZERO, "optimizer_in_backward": True}, "optimizer_in_backward is True, for which deep"),
        ("fairscale", FSDP2, "library is 'fairscale'; allowed: accelerate, transformers, deepspeed"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_library_has_no_word_for_is_named(library, plan, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        write(TrainingPlan(**plan), library)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("text", ["", "[]", "{", "a: b: c", "\x00", "7", '{"a": 1}', "null", None, 3, b"{}"])
def test_what_is_no_file_is_a_sentence(library, text):
    with pytest.raises(ValueError, match="^(?!.*Traceback).{10,}"):
        read(text, library)


@pytest.mark.parametrize(("library", "plan"), [(library, plans[0]) for library, plans in PLANS.items()], ids=str)
def test_a_file_with_one_wrong_line_is_a_sentence_or_another_plan(library, plan):
    """Each line's value a list, and each key misspelt: never another error than a ValueError."""
    text = write(TrainingPlan(**plan), library)
    lines = [line for line in text.splitlines() if ":" in line and not line.startswith("#")]
    for line in lines:
        value = text.replace(line, re.sub(r": .*?(,?)$", r": [7]\1", line))
        key = text.replace(line, re.sub(r'("?): ', r"x\1: ", line, count=1) if line[-1] != ":" else "x" + line)
        for wrong in (value, key):
            if wrong == text:
                continue
            try:
                assert read(wrong, library) is not None
            except ValueError as error:
                assert len(str(error)) > 10
        if line[-1] not in "{[:":
            with pytest.raises(ValueError):
                read(key, library)


def test_the_command_writes_it(tmp_path, capsys):
    arguments = ["nano", "--sharding", "fsdp2", "--ranks", "4", "--write", "accelerate"]
    plan, path = TrainingPlan(**FSDP2), tmp_path / "config.yaml"
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == write(plan, "accelerate", "Block") and err == "\n".join(beside(plan, "accelerate")) + "\n"
    assert main([*arguments, "--to", str(path)]) == 0 and path.read_text() == out
    assert capsys.readouterr().out == ""
    path.unlink()
    for more, message in (
        (["--checkpointing", "sqrt"], "checkpointing is 'sqrt', for which"),
        (["--json"], "write is 'accelerate'; with it json has no effect"),
        (["--sharding", "zero1"], "sharding is 'zero1', for which accelerate"),
        (["--write", "fairscale"], "library is 'fairscale'; allowed:"),
        (["--shard-offload", "optimizer"], "shard_offload is 'optimizer'; with sharding"),
    ):
        assert main([*arguments, "--to", str(path), *more]) == 2
        assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main(["nano", "--to", str(path)]) == 2 and "to is " in capsys.readouterr().err
    for no_file in (str(tmp_path), ""):
        assert main([*arguments, "--to", no_file]) == 2
        assert f"to is {no_file!r}, which cannot be written: it is no file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
