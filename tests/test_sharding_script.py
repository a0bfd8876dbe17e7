"""``python -m minigpt.sharding`` as torchrun starts it, here as the only rank; several are in test_ranks."""

import re

import pytest
import torch

from minigpt.sharding import __main__ as script

AS_ONE = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=1, MASTER_ADDR="localhost", MASTER_PORT=0)


def test_a_rank_says_its_losses_and_what_it_keeps(monkeypatch, capsys):
    for name, value in AS_ONE.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(script, "pretraining_text", lambda split: torch.arange(100, dtype=torch.uint8))
    assert script.main(["--sharding", "zero1", "--steps", "2", "--seq-len", "8"]) == 0
    losses, keeps = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"zero1, ranks: 1, losses: \d\.\d{6}, \d\.\d{6}", losses)
    assert keeps == "rank 0 keeps weights 3.4 MB, gradients 3.4 MB, optimizer 6.8 MB"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there are no ranks: start it as torchrun"),
        (["--sharding", "zero4"], "argument --sharding: invalid choice"),
        (["--sharding", "ddp", "--no-reshard-after-forward"], "has no effect with sharding 'ddp'"),
    ],
)
def test_what_it_does_not_run(argv, message, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")  # and no other word of torchrun's
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit):
        script.main(argv)
    assert message in capsys.readouterr().err
