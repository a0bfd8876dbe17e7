"""Readings, the report that shows them, and notebooks as HTML: all readable with no network at all."""

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from minigpt.memory import readings
from minigpt.memory.buckets import BUCKETS, Ledger, Reserved, StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.families.architecture import family_class
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.plots import losses
from minigpt.memory.readings import load_readings, not_on_cpu, read_reading, save_reading
from tools import report, report_words, run
from tools.notebook_html import mathml, to_html

PREDICTED = StepMemory(Ledger(400, 400, 800, 3000, 50), Ledger(400, 0, 800, 3000, 50), "end of forward", frozen=100)
MEASURED = StepMemory(Ledger(400, 400, 800, 3100, 60), Ledger(400, 0, 800, 3100, 60), "end of forward", frozen=100)
EXTRA = {
    "validation": {"before": 5.5, "after": 1.25},
    "curve": {"train": [[0, 5.5], [10, 2.0]], "validation": [[0, 5.6], [10, 1.25]]},
    "samples": [{"prompt": "def read_", "before": "<zz>", "after": "text(path):"}],
}


def save(folder, case="nano, fp32", **changes):
    values = dict(lab="lab02", device="cpu", instrument="MemoryMeter", predicted=PREDICTED, measured=MEASURED)
    values |= dict(architecture=Architecture.of("gpt2"), plan=TrainingPlan(batch=4))
    return save_reading(folder, case=case, **(values | changes))


class Loads(HTMLParser):
    """Everything that a browser would fetch for a page: sources, style sheets, imports. Links are not fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found = re.findall(r"@import[^;]*|url\((?!['\"]?(?:data:|#))[^)]*\)", page)
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        for name in ("src", "srcset", "data", "poster") + (("href",) if tag in ("link", "image", "base") else ()):
            if values.get(name) and not values[name].startswith("data:"):
                self.found.append(f"{tag} {name}={values[name]}")
        if tag in ("script", "iframe"):
            self.found.append(tag)
        if tag == "a":
            self.ids.append(values.get("href"))


def test_a_reading_comes_back_as_it_was_saved(tmp_path):
    path = save(tmp_path / "new folder", extra=EXTRA)
    assert path.name == "lab02-nano-fp32.json"
    reading = read_reading(path)
    assert (reading.predicted, reading.measured, reading.extra) == (PREDICTED, MEASURED, EXTRA)
    assert family_class(reading.architecture["family"])(**reading.architecture) == Architecture.of("gpt2")
    assert TrainingPlan(**reading.plan) == TrainingPlan(batch=4)
    assert load_readings(tmp_path / "new folder") == [reading] and load_readings(tmp_path / "none") == []


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"lab": ""}, "lab is ''"),
        ({"predicted": {"weights": 3}}, "predicted is a dict; it must be a StepMemory"),
        ({"extra": {"loss": float("nan")}}, "cannot be written as JSON"),
        ({"extra": {"loss": {1}}}, "cannot be written as JSON"),
        ({"extra": 5}, "extra is 5; it must be a dictionary"),
        ({"extra": []}, r"extra is \[\]; it must be a dictionary"),
        ({"measured": ""}, "measured is a str; it must be a StepMemory"),
        ({"measured": []}, "measured is a list; it must be a StepMemory"),
    ],
)
def test_a_wrong_reading_is_refused_and_nothing_is_written(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        save(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_reading_and_no_rest(tmp_path, monkeypatch):
    path = save(tmp_path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(readings.os, "replace", full)
    with pytest.raises(ValueError, match="No space left on device"):
        save(tmp_path, measured=None)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda text: text[:40], "not valid JSON"),
        (lambda text: "[1]", "format must be 1"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format must be 1"),
        (lambda text: text.replace('"peak_at"', '"peak_when"'), "'peak_at' is missing"),
        (lambda text: text.replace('"weights": 400', '"weights": 400.5', 1), "integer bytes"),
        (lambda text: text.replace('"weights": 400', '"heights": 400', 1), "integer bytes"),
    ],
)
def test_a_broken_reading_is_named(tmp_path, change, words):
    path = save(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=words) as refusal:
        load_readings(tmp_path)
    assert path.name in str(refusal.value)


def test_what_a_cpu_could_not_do_is_said_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LEDGER_READINGS", raising=False)
    not_on_cpu("time it")  # says it, even where nobody collects
    monkeypatch.setenv("LEDGER_READINGS", str(tmp_path))
    monkeypatch.setenv("LEDGER_NOTEBOOK", "lab02-x")
    not_on_cpu("train on all pairs")
    assert capsys.readouterr().out == "Not on a CPU: time it\nNot on a CPU: train on all pairs\n"
    written = (tmp_path / readings.NOT_ON_CPU).read_text()
    assert json.loads(written) == {"notebook": "lab02-x", "what": "train on all pairs"}


@pytest.mark.parametrize(
    "predicted, measured, words",
    [
        (5, 5, "exact"), (0, 0, "exact"), (7, 0, "+7 B"), (99, 100, "-1.00%"), (100_001, 100_000, "+1 B"),
        (101_704, 100_000, "+1.70%"), (100_005, 100_000, "+0.01%"),
    ],
)  # fmt: skip
def test_errors_in_words(predicted, measured, words):
    assert report_words.error(predicted, measured) == words


def test_allocated_and_reserved_are_replayed_for_a_named_card_or_read(tmp_path):
    def rows(**steps):
        return report.table(read_reading(save(tmp_path, extra={"card": "T4"}, **steps)))["rows"]

    replayed = replace(PREDICTED, card=Reserved(6 * 10**6, "", 8 * 10**6, "", 0))
    read = replace(PREDICTED, card=Reserved(6 * 10**6, "", 10 * 10**6, "", 0))
    assert [row[1][-2:] for row in rows(predicted=replayed)] == [["6.000 (T4)", "8.000 (T4)"], ["", ""], ["", ""]]
    assert rows(predicted=replayed, measured=PREDICTED)[0][1][-2:] == ["6.000 (T4)", "8.000 (T4)"]
    both = rows(predicted=replayed, measured=read)
    assert [name for name, _ in both] == ["predicted", "measured", "error"]
    assert [cells[-2:] for _, cells in both] == [["6.000", "8.000"], ["6.000", "10.000"], ["exact", "-20.00%"]]
    assert rows(predicted=PREDICTED, measured=read)[1][1][-2:] == ["6.000", "10.000"]
    assert {len(cells) for _, cells in both} == {len(BUCKETS) + 3}


@pytest.fixture
def run_folder(tmp_path):
    """A runner's folder with two notebooks, one failed, and three readings, one of them not measured."""
    folder = tmp_path / "run"
    save(folder / "readings", extra=EXTRA)
    save(folder / "readings", case="<b>bold</b>", measured=PREDICTED)
    save(folder / "readings", case="on a card", measured=None)
    not_on_cpu("train on `all` pairs", folder / "readings")
    common = dict(kind="lab", seconds=30, minutes_budget=1, ram=5 * 10**8, ram_budget=10**9, vram=None)
    common |= dict(vram_budget=2 * 10**9, parameters={"SEED": 1}, fingerprint="")
    notebooks = [
        dict(common, name="01-good", title="Good", status="passed", problems=[]),
        dict(common, name="lab02-bad", title="Bad", status="failed", problems=["cell 3 failed with KeyError: 'x'"]),
    ]
    facts = dict(python="3.11", system="Linux", cpu="a CPU", cores=2, ram=2**34, gpu=None, vram=None)
    facts["packages"] = {"torch": "2.13.0", "unsloth": None}
    results = {"environment": facts, "finished": "2026-01-01 10:00", "notebooks": notebooks}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "01-good.html").write_text("<p>the executed notebook</p>")
    return folder


def test_the_report_is_one_page_that_fetches_nothing(run_folder, tmp_path):
    path, broken = report.build(run_folder, tmp_path / "report")
    page = path.read_text()
    loads = Loads(page)
    assert broken == [] and loads.found == []
    assert loads.ids == ["#shorter", "../run/01-good.html"]  # the one notebook that is there
    assert (path.parent / loads.ids[1]).exists()
    assert os.listdir(path.parent) == ["index.html"]


def test_the_report_says_what_happened(run_folder, tmp_path):
    page = report.build(run_folder, tmp_path / "report")[0].read_text()
    assert "2 training steps" in page and "1 equal to the byte, the largest difference 2.52% (nano, fp32)" in page
    assert ">-2.52%<" in page  # the table says the same: 4250 of 4360 bytes is 2.523% less
    said = ("1 of 2 notebooks passed", "KeyError", "It was a dry run", "unsloth not installed", "17.18 GB")
    for words in (*said, "train on <code>all</code> pairs"):
        assert words in page, words
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold</b>" not in page
    assert "5.500 before, 1.250 after" in page
    assert page.count('<svg role="img"') == 1 and all(f"background:{report.COLORS[name]}" in page for name in BUCKETS)
    assert page.index("The notebooks, executed") < page.index("The peak of one training step")


def test_a_run_that_shortened_nothing_is_no_dry_run(run_folder, tmp_path):
    (run_folder / "readings" / readings.NOT_ON_CPU).unlink()
    page = report.build(run_folder, tmp_path / "report")[0].read_text()
    assert "dry run" not in page and "Every notebook that ran here did all of its work" in page


def test_bars_of_one_model_share_a_scale_and_a_tick_is_where_the_meter_read(run_folder):
    found = [read_reading(path) for path in sorted((run_folder / "readings").glob("*.json"))]
    groups = report.groups(found)
    rows = {row["label"]: row for group in groups for lab in group["sets"] for row in lab["rows"]}
    assert len(groups) == 1 and len(rows) == 3
    wide = sum(percent for _, _, percent in rows["nano, fp32"]["parts"])
    assert rows["nano, fp32"]["tick"] == pytest.approx(100) and wide == pytest.approx(100 * 4250 / 4360)
    assert rows["on a card, fp32"]["tick"] is None and rows["on a card, fp32"]["error"] == "not measured"


def peaks(weights, optimizer, activations):
    ledger = Ledger(weights, 0, optimizer, activations, 0)
    return StepMemory(ledger, ledger, "end of forward")


def test_readings_have_names_with_their_dtypes_and_no_two_the_same(tmp_path):
    save(tmp_path, case="nano full", plan=TrainingPlan())
    save(tmp_path, case="nano full", lab="lab09", plan=TrainingPlan(precision="bf16-master"))
    save(tmp_path, case="nano LoRA on NF4", plan=TrainingPlan(method="qlora", precision="bf16"))
    save(tmp_path, case="nano QLoRA", plan=TrainingPlan(method="qlora", precision="bf16"))
    save(tmp_path, case="nano full", lab="lab03", plan=TrainingPlan(batch=4))
    found = {reading.lab + reading.case: name for reading, name in zip(*named(tmp_path))}
    assert found["lab02nano LoRA on NF4"] == "nano LoRA on NF4" and found["lab02nano QLoRA"] == "nano QLoRA, nf4 base"
    assert found["lab09nano full"] == "nano full, bf16-master"
    assert found["lab02nano full"] == "nano full, fp32 (lab02, 1 × 256 tokens)"
    assert found["lab03nano full"] == "nano full, fp32 (lab03, 4 × 256 tokens)"


def named(folder):
    found = load_readings(folder)
    return found, report_words.labels(found)


def test_a_group_says_what_it_means_and_why_adapters_cost_more(tmp_path):
    million = 10**6
    full, lora = peaks(8 * million, 16 * million, 30 * million), peaks(9 * million, million, 34 * million)
    dear = peaks(4 * million, million, 55 * million)
    for case, method, peak in (("full", "full", full), ("LoRA", "lora", lora), ("QLoRA", "qlora", dear)):
        save(tmp_path, case=f"nano {case}", predicted=peak, measured=peak, plan=TrainingPlan(method=method))
    text = report_words.meaning(sorted(load_readings(tmp_path), key=report.rung))
    assert text.startswith("Against full: LoRA 19% less, QLoRA 11% more. QLoRA needs more than full fine-tuning")
    assert "adds (activations 25.0 MB)" in text and "saves (weights 4.0 MB, optimizer 15.0 MB)" in text
    assert report_words.meaning(load_readings(tmp_path)[:1]) == ""


def test_the_buffers_of_a_llama_are_explained(tmp_path):
    """Its rotary frequencies are the only buffers: asked from transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    llama = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape))
    buffers = sum(buffer.nbytes for buffer in llama.buffers())
    ledger = replace(MEASURED.ledger, weights=MEASURED.ledger.weights + buffers)
    save(tmp_path, measured=replace(MEASURED, ledger=ledger), predicted=MEASURED, architecture=Architecture.of({
        "model_type": "llama", **shape}))  # fmt: skip
    (said,) = report_words.notes(load_readings(tmp_path))
    assert f"finds {buffers} bytes less than the meter" in said and f"{buffers // 2} bytes each" in said
    save(tmp_path, measured=replace(MEASURED, ledger=ledger), predicted=MEASURED)
    assert report_words.notes(load_readings(tmp_path)) == [
        "nano, fp32: the buckets are the lab's own arithmetic, the peak is predict's."
    ]


def test_all_losses_of_a_lab_are_in_one_plot(tmp_path):
    two = {"train": [[0, 5.5], [9, 2]], "validation": [[0, 5.6], [9, 1.25]]}
    three = two | {"validation": [[0, 5.6], [5, 2], [9, 1.5]]}
    for case, curve, after in (("a", two, 1.25), ("b", three, 1.5)):
        save(tmp_path, case=case, extra={"curve": curve, "validation": {"before": 5.6, "after": after}})
    save(tmp_path, case="c", lab="lab09", extra={"curve": three})
    one, other = report.trained(load_readings(tmp_path))
    assert one["validation"] == "a, fp32 5.600 before, 1.250 after; b, fp32 5.600 before, 1.500 after"
    assert "Lowest at the end: a, fp32, 1.250 bits per byte" in one["svg"] and one["svg"].count("<svg") == 1
    assert other["validation"] == "" and "Lowest" not in other["svg"]
    drawn = losses({"a": two, "b": three}, "").get_lines()  # training and validation of each
    assert [line.get_linestyle() for line in drawn] == ["-", "None", "--", "--"]  # two points are no line


BROKEN = [
    {"lab": 5}, {"case": None}, {"architecture": []},
    {"architecture": {"n_layer": "x"}}, {"architecture": {"family": 1}},
    {"versions": 3}, {"extra": []}, {"extra": {"curve": 5}}, {"extra": {"curve": {"train": [1, 2]}}},
    {"extra": {"curve": {"train": [[1, float("inf")]]}}}, {"extra": {"validation": 5}},
    {"extra": {"validation": {"before": "x", "after": 1}}}, {"extra": {"samples": [{"prompt": "p"}]}},
    {"predicted": []}, {"measured": {"ledger": 5}}, {"predicted": {"ledger": list(BUCKETS)}},
]  # fmt: skip


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_one_broken_reading_costs_no_other(run_folder, tmp_path, capsys, change):
    path = run_folder / "readings" / "lab09-broken.json"
    good = json.loads((run_folder / "readings" / "lab02-nano-fp32.json").read_text())
    path.write_text(json.dumps(good | change))
    assert report.main(["--run", str(run_folder), "--output", str(tmp_path / "report")]) == 1
    complaint = capsys.readouterr().err
    page = (tmp_path / "report" / "index.html").read_text()
    assert "lab09-broken.json" in complaint and complaint.count("\n") == 1
    assert "lab09-broken.json" in page and "nano, fp32" in page


@pytest.mark.parametrize("left_out", ["validation", "curve", "samples"])
def test_a_reading_need_not_have_every_extra(run_folder, tmp_path, left_out):
    save(run_folder / "readings", extra={name: value for name, value in EXTRA.items() if name != left_out})
    path, broken = report.build(run_folder, tmp_path / "report")
    assert broken == [] and ("5.500 before" in path.read_text()) == (left_out != "validation")


@pytest.mark.parametrize("line", ["junk", "5", '{"a": 1}', '{"notebook": 1, "what": "x"}'])
def test_a_broken_note_is_named(run_folder, tmp_path, capsys, line):
    with open(run_folder / "readings" / readings.NOT_ON_CPU, "a") as file:
        file.write(line + "\n")
    assert report.main(["--run", str(run_folder), "--output", str(tmp_path / "report")]) == 1
    assert "not-on-cpu.jsonl has a line that no notebook wrote" in capsys.readouterr().err


RECORDS = [("notebooks", 5), ("notebooks", [5]), ("environment", {}), ("environment", None), ("finished", 1)]
RECORDS += [("seconds", "x"), ("problems", None), ("status", 1), ("ram", None), ("parameters", [])]


@pytest.mark.parametrize("name, wrong", RECORDS)
def test_a_record_of_other_types_is_one_sentence(run_folder, tmp_path, capsys, name, wrong):
    record = json.loads((run_folder / "results.json").read_text())
    (record if name in record else record["notebooks"][0])[name] = wrong
    (run_folder / "results.json").write_text(json.dumps(record))
    assert report.main(["--run", str(run_folder), "--output", str(tmp_path / "report")]) == 2
    complaint = capsys.readouterr().err
    assert "is not a runner's record" in complaint and complaint.count("\n") == 1
    assert run.load_results(run_folder) == []  # --resume starts anew, and says so
    assert "It is written anew" in capsys.readouterr().err


def test_a_broken_reading_is_shown_and_fails_the_report(run_folder, tmp_path, capsys):
    (run_folder / "readings" / "lab09-broken.json").write_text("{")
    assert report.main(["--run", str(run_folder), "--output", str(tmp_path / "report")]) == 1
    assert "lab09-broken.json" in (tmp_path / "report" / "index.html").read_text()
    assert "lab09-broken.json" in capsys.readouterr().err


@pytest.mark.parametrize("content, words", [(None, "no results in"), ("{", "not a runner's record"), ("[]", "not a")])
def test_a_report_of_nothing_is_one_sentence(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert report.main(["--run", str(tmp_path), "--output", str(tmp_path / "report")]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint and complaint.count("\n") == 1 and not (tmp_path / "report").exists()


def test_a_notebook_page_fetches_nothing_and_draws_formulas(tmp_path):
    badge = "[![Open in Colab](https://example.org/badge.svg)](https://example.org/x)"
    text = f"# Title\n{badge}\n\nInline $16 N$ bytes, and\n\n$$\\frac{{a}}{{b}}$$\n\n"
    text += "\\begin{align}a &= b\\end{align}\n\n```\n$5 and $6 are prices\n```\n\n```mermaid\ngraph LR\n```"
    outputs = [
        new_output("display_data", data={"application/javascript": "alert(1)", "text/plain": "plain instead"}),
        new_output("display_data", data={"text/html": "<script src='https://example.org/a.js'></script><i>kept</i>"}),
        new_output("display_data", data={"text/latex": "$$x^2$$"}),
        new_output("display_data", data={"text/markdown": "and $y_1$", "text/plain": ""}),
    ]
    cells = [new_markdown_cell(text), new_code_cell("1 + 1", outputs=outputs, execution_count=1)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "n.ipynb")
    to_html(tmp_path / "n.ipynb", tmp_path / "n.html")
    page = (tmp_path / "n.html").read_text()
    assert Loads(page).found == []
    assert page.count("<math") == 5 and "<mfrac>" in page
    for words in ("Open in Colab", "plain instead", "<i>kept</i>", "$5 and $6 are prices"):
        assert words in page, words


def test_a_formula_that_cannot_be_drawn_stays_readable():
    assert mathml(r"\sqrt", "inline") == r"<code>\sqrt</code>"
    brace = mathml(r"\underbrace{a + b}_{\text{both}}", "inline")
    assert '<munder><mrow class="brace"><mi>a</mi>' in brace and "\u23df" not in brace and "both" in brace
    aligned = mathml(r"\begin{aligned} a &= 1 \\ b &= 2 \end{aligned}", "block")
    assert aligned.count("<mtr>") == 2 and "&amp;" not in aligned


def test_readings_climb_the_ladder(tmp_path):
    cases = {"QLoRA Trainer": "qlora", "QLoRA": "qlora", "LoRA r=32": "lora", "LoRA r=8": "lora", "all": "full"}
    for case, method in cases.items():
        save(tmp_path, case=case, lab="lab09", plan=TrainingPlan(method=method, rank=4))
    save(tmp_path, case="zero", lab="lab02", plan={"method": ["odd"]})
    ordered = sorted(load_readings(tmp_path), key=report.rung)
    assert [reading.case for reading in ordered] == ["zero", "all", "LoRA r=8", "LoRA r=32", "QLoRA", "QLoRA Trainer"]


def test_a_cell_is_folded_once_though_tag_and_metadata_say_so(tmp_path):
    cell = new_code_cell("hidden = 1", metadata={"tags": ["hide-input"], "jupyter": {"source_hidden": True}})
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "n.ipynb")
    to_html(tmp_path / "n.ipynb", tmp_path / "n.html")
    assert (tmp_path / "n.html").read_text().count("<details") == 1
