"""python -m minigpt.memory: what it prints, for people and programs, and how it ends for any input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from minigpt.memory import BUCKETS, Architecture, TrainingPlan, predict, predict_evaluation
from minigpt.memory.__main__ import EVALUATION, MINIGPT, main, make_parser
from minigpt.memory.fits import fits
from minigpt.memory.gpus import GPUS
from minigpt.memory.measured.step import measure
from minigpt.memory.recipes import APART
from minigpt.memory.units import gb
from minigpt.model import PRESETS, GPTConfig
from tools.models import MODELS

T4 = ["--card", "t4", "--seq-len", "64"]


def test_the_ledger_is_printed(capsys):
    assert main(["gpt2", "--batch", "2", "--seq-len", "128", "--precision", "bf16"]) == 0
    out = capsys.readouterr().out
    assert "124,439,808 parameters" in out and all(bucket in out for bucket in BUCKETS) and "peak:" in out


@pytest.mark.slow
def test_the_answer_ends_it(capsys):
    arguments = ["smollm2-1.7b", "--like", "hf-trainer", "--method", "lora", "--batch", "16", "--seq-len", "2048"]
    assert main([*arguments, "--card", "RTX 4090"]) == 1
    plan = TrainingPlan.like("hf-trainer", method="lora", batch=16, seq_len=2048, card="RTX 4090")
    verdict = fits("smollm2-1.7b", plan)
    assert capsys.readouterr().out.endswith(f"\n{verdict}\n") and verdict.changes


@pytest.mark.parametrize(
    ("arguments", "status"), [([*T4], 0), ([], 0), (["--card", "T4", "--batch", "4096"], 1), (["--batch", "0"], 2)]
)
def test_the_exit_status_is_the_answer(arguments, status, capsys):
    assert main(["gpt2", *arguments]) == status


def test_json_is_the_record(capsys):
    plan = TrainingPlan(batch=8, seq_len=1024, attention="eager", card="T4")
    arguments = ["gpt2", "--batch", "8", "--seq-len", "1024", "--attention", "eager", "--card", "T4", "--json"]
    assert main(arguments) == 1
    record, step, verdict = json.loads(capsys.readouterr().out), predict("gpt2", plan), fits("gpt2", plan)
    assert list(record) == ["model", "parameters", "plan", "ledger", "peak", "evaluation", "frozen", "sent", "notes",
                            "verdict", "tensors"]  # fmt: skip
    assert TrainingPlan(**record["plan"]) == plan and record["parameters"] == Architecture.of("gpt2").parameters
    assert record["ledger"] == step.ledger.as_dict()
    assert record["peak"] == {**step.peak.as_dict(), "total": step.peak.total, "at": step.peak_at}
    assert list(record["verdict"]) == [
        "card", "fits", "sure", "needs", "room", "over", "share", "bf16_native", "longest_sequence", "largest_batch",
        "not_priced", "warnings", "changes", "assumed",
    ]  # fmt: skip
    assert record["verdict"]["changes"] == [
        {"fields": change.fields, "saves": change.saves, "costs": change.costs} for change in verdict.changes
    ]
    assert main(["gpt2", "--json"]) == 0 and json.loads(capsys.readouterr().out)["verdict"] is None


def test_a_size_of_minigpt_is_a_name(capsys):
    assert sorted(MINIGPT) == sorted(PRESETS)
    assert main(["Nano", "--batch", "2", "--json"]) == 0 and main(["nano", "--batch", "2", "--measure"]) == 0
    said, measured = capsys.readouterr().out.split("\n}\n", 1)
    step = predict(GPTConfig.preset("nano"), TrainingPlan(batch=2))
    record = json.loads(said + "}")
    assert record["peak"]["total"] == step.peak.total and record["model"] == "Nano"
    assert f"peak: {gb(step.peak.total)} =" in measured


def test_without_a_card_it_says_which_would_do(capsys):
    assert main(["gpt2", "--batch", "8", "--seq-len", "1024"]) == 0
    plan = TrainingPlan(batch=8, seq_len=1024)
    enough = [card for card in GPUS if fits("gpt2", plan, card).fits]
    assert capsys.readouterr().out.endswith(f"\nfits on: {', '.join(enough)}\n") and enough
    assert main(["llama-65b"]) == 0 and "fits on: none of the known cards" in capsys.readouterr().out


def test_help_is_the_plans_own():
    text = " ".join(make_parser().format_help().split())
    for field in fields(TrainingPlan):
        assert "--" + field.name.replace("_", "-") in text
        assert " ".join(field.metadata["help"].split()) in text
    assert "llama-3.1-405b" in text and "A100 80GB" in text


def test_every_field_can_be_given():
    given = {"targets": "q_proj", "card": "l4", "variant": "dora", "lora_dropout": 0.5, "use_cache": True, "rank": 3}
    words = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    parsed = vars(make_parser().parse_args(["gpt2", *words]))
    assert {name: parsed[name] for name in given} == given
    assert set(parsed) - set(given) == {"model", "like", "measure", "tensors", "json", "write", "to", *EVALUATION}


def test_an_evaluation_is_shown_if_it_is_asked_for(capsys):
    asked = ["--evaluate", "100", "--eval-batch", "4", *T4]
    evaluation = predict_evaluation("gpt2", TrainingPlan(seq_len=64, card="T4"), 100, 4)
    assert main(["gpt2", *asked]) == 0
    out = capsys.readouterr().out
    assert f"evaluation: {gb(evaluation.peak.total)} =" in out
    assert f"T4: fits: {gb(evaluation.card.reserved)} of " in out
    assert main(["gpt2", *asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["evaluation"]["total"] == evaluation.peak.total > record["peak"]["total"]
    assert record["evaluation"]["reserved"] == evaluation.card.reserved
    assert main(["gpt2", "--evaluate", "4000", *T4]) == 1  # the step fits, the set's logits do not
    assert "does not fit" in capsys.readouterr().out
    assert main(["gpt2", "--evaluate", "4000", "--prediction-loss-only", *T4]) == 0
    capsys.readouterr()
    assert main(["gpt2", *T4]) == 0 and "evaluation" not in capsys.readouterr().out
    assert main(["gpt2", "--eval-batch", "4"]) == 2 and "eval_batch is 4" in capsys.readouterr().err


def test_measuring_says_so(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS["llama-grouped"]))
    assert main([str(path), "--measure", "--seq-len", "16", "--card", "T4", "--json"]) == 0
    record, step = json.loads(capsys.readouterr().out), measure(MODELS["llama-grouped"], TrainingPlan(seq_len=16))
    assert record["ledger"] == step.ledger.as_dict() and record["peak"]["total"] == step.peak.total
    assert record["notes"][0].startswith("measured, not predicted: a real step on fake tensors, in ")
    assert record["verdict"]["fits"] and record["verdict"]["longest_sequence"] is None


def test_notes_of_a_library_and_beyond_the_context(capsys):
    assert main(["llama-2-7b", "--seq-len", "5000", "--like", "hf-trainer"]) == 0
    out = capsys.readouterr().out
    assert "warning: seq_len is 5,000, beyond the model's context of 4,096" in out
    assert main(["llama-2-7b", "--like", "litgpt"]) == 0 and APART["litgpt"][0] in capsys.readouterr().out


@pytest.mark.parametrize(("model", "said"), [("gpt2", True), ("google/gemma-2-9b", False), ("llama-7b", False)])
def test_dropout_that_a_known_model_leaves_out_is_said(model, said, capsys):
    main([model, "--method", "lora"])
    assert ("published with dropout 0.1, and is without it here" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such"],
        ["gpt2", "--batch", "-1"],
        ["gpt2", "--seq-len", "9999"],
        ["gpt2", "--batch", "9" * 30],
        ["gpt2", "--card", "A100"],
        ["gpt2", "--card", "GTX 970"],
        ["gpt2", "--like", "keras"],
        ["gpt2", "--precision", "int3"],
        ["gpt2", "--lora-dropout", "nan"],
        ["meta-llama/Llama-9-8B"],
        ["/"],
        [""],
    ],
    ids=" ".join,
)
def test_wrong_use_ends_in_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["gpt2", "--rank", "9" * 5000], ["gpt2", "--bat", "2"], ["gpt2", "--batch"], ["gpt2", "--batch", "2.5"]],
)
def test_wrong_options_end_in_one_sentence(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2 and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert len(printed.err) < 400


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"model_type": "mamba"}', '{"model_type": "llama", "vocab_size": 0}', "\xff"]
)
def test_a_broken_configuration_ends_in_one_sentence(content, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin1")
    assert main([str(path), *T4]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_huge_numbers_are_counted(capsys):
    assert main(["llama-7b", "--batch", str(10**17), "--seq-len", str(10**14), "--card", "T4"]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["gpt2", *T4]], ids=" ".join)
def test_a_closed_pipe_is_no_traceback(arguments):
    command = [sys.executable, "-m", "minigpt.memory", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_an_answer_needs_no_torch():
    code = (
        "import sys; from minigpt.memory.__main__ import main; status = main(['gpt2', '--card', 'T4']); "
        "print(status, [m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("\n0 []\n")
