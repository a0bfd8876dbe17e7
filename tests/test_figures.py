"""Drawn figures: their bytes are the package's and the meter's, and they can be read, on light, on dark, and aloud."""

from __future__ import annotations

import re
import shutil
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import nbformat
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from minigpt.memory import TrainingPlan, measure
from minigpt.memory.families import KNOWN
from minigpt.memory.figures import FIGURES
from minigpt.memory.figures.svg import DARK, FILLS, LIGHT, contrast
from minigpt.memory.units import gb, mb, readable
from minigpt.model import GPTConfig
from tests.tiny_course import LESSON, cells
from tools import ROOT, build, figures, place
from tools.notebook_html import to_html
from tools.published import published_rows

SVG = "{http://www.w3.org/2000/svg}"
every = pytest.mark.parametrize("name", FIGURES)


@cache
def drawn(name):
    return FIGURES[name]()


def words(name) -> list[str]:
    return [text.text for text in ElementTree.fromstring(drawn(name).svg).iter(f"{SVG}text")]


# ------------------------------------------------------------ what they say


def test_a_llama_block_keeps_what_the_lesson_derives():
    C, I = 4096, 11008  # noqa: E741
    said = words("llama-block-saved")
    expected = {f"4C = {4 * C:,}": 2, f"2C = {2 * C:,}": 8, f"2I = {2 * I:,}": 4, "not kept": 2}
    assert {words: said.count(words) for words in expected} == expected
    assert f"24C + 8I = {24 * C + 8 * I:,} bytes per token" in said
    assert f"and {4 * (2 + 32)} more: 4 for each norm and each head" in said


@pytest.mark.slow
def test_a_llama_block_with_lora_keeps_what_the_meter_reads():
    C, I, r = 4096, 11008, 8  # noqa: E741
    said = words("llama-block-lora")
    expected = {f"4C = {4 * C:,}": 8, f"2C = {2 * C:,}": 4, f"2I = {2 * I:,}": 3, f"4I = {4 * I:,}": 1, "not kept": 4}
    assert {words: said.count(words) for words in expected} == expected
    assert f"40C + 10I = {40 * C + 10 * I:,} bytes per token" in said
    plan = TrainingPlan(batch=1, seq_len=64, precision="bf16", method="lora")
    two, three = (measure(KNOWN["llama-7b"] | dict(num_hidden_layers=n), plan).ledger.activations for n in (2, 3))
    rest = 4 * (2 + 32) + 7 * 4 * r
    assert three - two == 64 * (40 * C + 10 * I + rest)
    assert [text for text in said if text.startswith(f"and {rest} more: ")]


@pytest.mark.slow
def test_a_llama_block_under_autocast_keeps_what_the_meter_reads():
    C, I = 4096, 11008  # noqa: E741
    said = words("llama-block-autocast")
    expected = {f"4C = {4 * C:,}": 4, f"2C = {2 * C:,}": 9, f"2I = {2 * I:,}": 4, "not kept": 4}
    assert {words: said.count(words) for words in expected} == expected
    assert f"34C + 8I = {34 * C + 8 * I:,} bytes per token" in said
    two, three = (
        measure(
            KNOWN["llama-7b"] | dict(num_hidden_layers=n), TrainingPlan(batch=1, seq_len=64, precision="bf16-autocast")
        ).ledger.activations
        for n in (2, 3)
    )
    copies = 2 * (4 * C * C + 3 * C * I)
    assert three - two == 64 * (34 * C + 8 * I + 4 * (2 + 32)) + copies
    assert f"and 136 more: norms and heads; once {mb(copies, 0)}: weights in 16 bits" in said


def test_a_minigpt_block_keeps_what_the_meter_reads():
    plan = TrainingPlan(batch=16, seq_len=256)
    one, two = (measure(GPTConfig.preset("nano", n_layer=n), plan).ledger.activations for n in (1, 2))
    said = words("minigpt-block")
    assert said.count("u = 512") == 8 and said.count("4u = 2,048") == 2
    assert "16u = 8,192 bytes per token" in said and "and 32 more: 8 for each norm, 4 for each of 4 heads" in said
    assert two - one == 16 * 256 * (8192 + 32)


def test_policies_hold_what_the_prediction_has_at_its_fullest():
    """Less the gradient that comes in and the one of down's input, 5u; nothing runs again without a checkpoint."""
    from minigpt.memory.predicted.step import predict

    config, said = GPTConfig.preset("nano", n_layer=9), words("checkpointing")
    for policy in ("full", "sqrt", "every", "selective", "offload"):
        plan = TrainingPlan(batch=32, seq_len=256, optimizer="sgd", checkpointing=policy)
        peak, u = predict(config, plan).peak, 4 * plan.tokens * config.n_embd
        host = 9 if policy == "offload" else 0  # on a CPU the copies are in the same memory
        held = (peak.total - peak.weights - peak.gradients) / u - host
        assert abs(held - 5 - drawn_units(said, policy)) < 0.7, policy
    assert drawn_units(said, "none") == 9 * 16


def drawn_units(said: list[str], policy: str) -> int:
    """The sum that stands in the policy's row: the third of its texts."""
    return int(said[said.index(policy) + 2].removesuffix("u"))


def test_the_shapes_of_a_llama_block_are_the_model_s():
    from transformers import LlamaConfig

    config = LlamaConfig()
    said = words("llama-block")
    assert said.count("C × C") == 4 and said.count("C × I") == 2 and said.count("I × C") == 1
    assert f"LLaMA-7B: C = {config.hidden_size:,}, I = {config.intermediate_size:,}, and 32 such blocks." in said


@pytest.mark.slow
def test_the_card_holds_what_the_meter_reads():
    step = measure("llama-7b", TrainingPlan(batch=4, seq_len=512, precision="bf16"))
    said = words("card-ledger")
    for bucket in ("weights", "optimizer", "gradients", "temporary", "activations"):
        assert f"{bucket} {gb(getattr(step.ledger, bucket), 1)}" in said
    assert f"{gb(step.peak.total, 1)} of tensors" in said


def test_lora_counts_what_peft_adds():
    n, r = 4096, 8
    said = " ".join(words("lora"))
    assert f"{n * n:,} numbers" in said and f"= {r * n:,}" in said
    assert f"trained: {2 * r * n:,} numbers, {2 * r / n:.2%} of W's" in said
    assert readable(2 * n * n) in said and readable(16 * 2 * r * n) in said


def test_segments_are_what_the_rules_give_by_hand():
    """Two small blocks; 6, a hole and 6 in a segment of 20; 25 in one of 26, whose last MiB is not split off."""
    said = words("segments")
    assert f"allocated: {0.75 + 0.75 + 6 + 6 + 26} MiB" in said
    assert f"reserved: {2 + 20 + 26} MiB" in said and f"nvidia-smi: {2 + 20 + 26 + 141} MiB" in said
    contexts = {row["notes"].partition("process = reserved + ")[2].split(" ")[0] for row in published_rows()}
    assert {round(float(context)) for context in contexts - {""}} == {141}


def test_each_stage_keeps_what_its_formula_says():
    """State of P / W parameters, then gradients, then weights, for P parameters in float32, whose sum 4 divides."""
    from minigpt.model import GPT

    nano, said = GPTConfig.preset("nano"), words("sharding")
    sizes = [p.numel() for p in GPT(nano).parameters()]
    P, tensors = sum(sizes), len(sizes)
    steps = {1: 4 * tensors, 4: 4 * (nano.n_layer + 1)}  # AdamW's counter, for each tensor or flat shard
    for weights, gradients, state in ((1, 1, 1), (1, 1, 4), (1, 4, 4), (4, 4, 4)):
        kept = 4 * P // weights + 4 * P // gradients + 8 * P // state + steps[state]
        assert f"{mb(kept)} on each" in said


def test_nf4_takes_the_bytes_of_real_tensors():
    import torch

    from minigpt.nf4 import quantize

    one, many = quantize(torch.randn(64)), quantize(torch.randn(64 * 256), double_quantization=True)
    codes, absmax = one.packed.nbytes, one.absmax.nbytes
    said = " ".join(words("nf4"))
    assert f"{codes} + {absmax} = {codes + absmax} bytes: {(codes + absmax) / 8:g} bits per weight" in said
    scales, above = many.absmax.codes.nbytes, many.absmax.absmax.nbytes
    bits = 8 * (many.packed.nbytes + scales + above) / (64 * 256)
    assert f"256 × {codes} + {scales} + {above} bytes: {bits:.3f} bits per weight" in said


def test_the_life_of_a_step_is_the_meter_s():
    step = measure(GPTConfig.preset("nano"), TrainingPlan(batch=16, seq_len=256))
    said = words("step-life")
    largest = {bucket: max(getattr(one, bucket) for _, one in step.timeline()) for bucket in step.peak.as_dict()}
    for bucket, nbytes in {**largest, "together": step.peak.total}.items():
        assert said[said.index(bucket) + 3] == mb(nbytes), bucket
    [fullest] = [line for line in said if line.startswith("fullest in ")]
    assert (
        f"in {step.peak_at.split(',')[0]}, " in fullest and "log_softmax" in fullest and "log_softmax" in step.peak_at
    )


# ------------------------------------------------------------ how they look


@every
def test_it_says_in_words_what_it_shows(name):
    figure = drawn(name)
    root = ElementTree.fromstring(figure.svg)  # well-formed
    title = root.find(f"{SVG}title")
    assert title is not None and title.text == figure.alt and root.get("aria-labelledby") == title.get("id")
    assert 100 < len(figure.alt) < 1000 and not set("[]\n`$") & set(figure.alt)
    assert figure._repr_svg_() == figure.svg == FIGURES[name]().svg  # the same every time
    assert not re.search(r"href|url\((?!#)|<script|font-face", figure.svg)  # nothing is fetched


@every
def test_text_is_legible_on_what_it_stands_on(name):
    """A ratio of at least 4.5 in both palettes, and the ground that its class names is the one below it."""
    root, ground = ElementTree.fromstring(drawn(name).svg), []
    for element in root:
        if element.tag == f"{SVG}rect" and "class" in element.attrib:
            ground.append((box_of(element), element.get("class").split()[0]))
        if element.tag != f"{SVG}text":
            continue
        box, kind = text_box(element), element.get("class").split()
        below = next(fill for shape, fill in reversed(ground) if contains(shape, middle(box)))
        assert kind[0] == f"on-{below}", element.text
        for palette in (LIGHT, DARK):
            fill = {**FILLS, **palette}[below]
            ink = palette["soft" if "soft" in kind else "ink"] if below in palette else fixed(drawn(name).svg, below)
            assert contrast(ink, fill) >= 4.5, element.text


def fixed(svg: str, fill: str) -> str:
    return re.search(rf"\.on-{fill} {{ fill: (#\w+); }}", svg)[1]


def test_contrast_is_wcag_s():
    assert contrast("#000000", "#ffffff") == 21 and round(contrast("#777777", "#ffffff"), 2) == 4.48


@every
def test_no_text_is_cut_or_crossed(name):
    """Measured in DejaVu Sans, one of the widest: each text lies inside its ground, and meets no line and no text."""
    shapes, lines, texts = [], [], []
    for order, element in enumerate(ElementTree.fromstring(drawn(name).svg)):
        if element.tag == f"{SVG}rect":
            shapes.append((order, box_of(element)))
        elif element.tag == f"{SVG}polyline":
            lines += [(order, segment) for segment in pairwise(points(element))]
        elif element.tag == f"{SVG}text":
            texts.append((element.text, text_box(element)))
    for said, box in texts:
        order, below = [(o, shape) for o, shape in shapes if contains(shape, middle(box))][-1]
        margin = 6 if below == shapes[0][1] else 2
        assert inside(box, below, margin), said
        for line_order, ((x0, y0), (x1, y1)) in lines:
            line = min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
            assert line_order < order or not meet(box, line), (said, line)
        assert [other for other, its in texts if meet(box, its)] == [said]


@every
def test_arrows_end_at_something(name):
    root = ElementTree.fromstring(drawn(name).svg)
    boxes = [box_of(e) for e in root.iter(f"{SVG}rect")][1:]
    texts = [text_box(e) for e in root.iter(f"{SVG}text")]
    for element in root.iter(f"{SVG}polygon"):
        if element.get("class") == "line-fill":
            x, y = points(element)[0]
            near = [b for b in boxes + texts if inside((x, y, x, y), b, -12) and not inside((x, y, x, y), b, 3)]
            assert near, (x, y)


def text_box(element) -> tuple[float, float, float, float]:
    size = float(element.get("font-size"))
    weight = "bold" if "bold" in element.get("class").split() else "normal"
    path = TextPath((0, 0), element.text, size=size, prop=FontProperties(family="DejaVu Sans", weight=weight))
    wide = path.get_extents().x1 if element.text.strip() else 0
    x, y = float(element.get("x")), float(element.get("y")) - 0.35 * size
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[element.get("text-anchor")]
    return left, y - 0.5 * size, left + wide, y + 0.5 * size


def box_of(element) -> tuple[float, float, float, float]:
    x, y, w, h = (float(element.get(key)) for key in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def points(element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]


def middle(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def contains(box, point) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def inside(small, large, margin: float) -> bool:
    x0, y0, x1, y1 = large
    return (
        x0 + margin <= small[0]
        and small[2] <= x1 - margin
        and y0 + min(margin, 1) <= small[1]
        and small[3] <= y1 - min(margin, 1)
    )


def meet(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# ------------------------------------------------------------ where they stand


def test_every_figure_is_shown_and_every_picture_is_there():
    shown = set()
    for path in [*ROOT.glob("lessons/*.ipynb"), *ROOT.glob("labs/*/*.ipynb"), *ROOT.glob("index.ipynb")]:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                for alt, address in re.findall(r"!\[([^\]]*)\]\(([^():\s]+)\)", cell.source):
                    file = (path.parent / address).resolve()
                    assert file.exists() and len(alt) > 20, (path, address)
                    shown.add(file.stem)
    assert shown == set(FIGURES) == {path.stem for path in (ROOT / figures.FOLDER).iterdir()}


def test_a_figure_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"figure is 'lor'; allowed: llama-block, .*"):
        figures.Figures().on("lessons/01-x.ipynb")("lor")


def test_a_figure_is_built_refreshed_and_never_over_somebody_s_drawing(course, capsys):
    root = course(**{"lessons/01-tiny.md": LESSON + '\n[[ figure("lora") ]]\n'})
    assert build.main([], root) == 0
    path = root / "lessons/figures/lora.svg"
    assert path.read_text() == drawn("lora").svg
    sources = [cell.source for cell in cells(root, "lessons/01-tiny.ipynb").values()]
    assert f"![{drawn('lora').alt}](figures/lora.svg)" in sources
    path.write_text(path.read_text().replace("LoRA", "lora"))  # an older version of it
    assert build.main(["--check"], root) == 1 and "stale: lessons/figures/lora.svg" in capsys.readouterr().err
    assert build.main([], root) == 0 and path.read_text() == drawn("lora").svg
    path.write_text("<svg/>")
    assert build.main([], root) == 1 and "was run or made by hand" in capsys.readouterr().err


def test_work_has_the_figures_and_pages_have_them_inside(course):
    root = course(**{"lessons/01-tiny.md": LESSON + '\n[[ figure("lora") ]]\n'})
    assert build.main([], root) == 0
    place.fill(root)
    copy = root / "work/lessons/figures/lora.svg"
    assert copy.read_text() == drawn("lora").svg
    copy.write_text("mine")
    (root / "lessons/figures/lora.svg").write_text("<svg/>")
    said = place.fill(root)
    assert copy.read_text() == "mine" and (copy.parent / "lora.new.svg").read_text() == "<svg/>"
    assert [sentence for sentence in said if "is yours and stays as it is" in sentence]
    executed = root / "build/run/01-tiny.ipynb"
    executed.parent.mkdir(parents=True)
    shutil.copy(root / "lessons/01-tiny.ipynb", executed)
    to_html(executed, root / "page.html", source=root / "lessons/01-tiny.ipynb")
    assert "data:image/svg+xml;base64,PHN2Zy8+" in (root / "page.html").read_text()


def test_a_picture_can_travel_inside_a_notebook(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.svg").write_text("<svg/>")
    source = "![A b](figures/a.svg) ![c](figures/none.svg) ![d](https://x.org/e.svg)"
    carried = figures.carried(source, tmp_path)
    assert carried == source.replace("figures/a.svg", "data:image/svg+xml;base64,PHN2Zy8+")
