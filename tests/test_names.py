"""Names of models against transformers' count and published totals, unsloth's table of copies, the Hub's cache."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from minigpt.memory import Architecture
from minigpt.memory.names import KNOWN, PUBLISHERS, cached_config, known_name, resolve

# Parameters as published: safetensors' count on the model's page, the card (bloom, gpt-oss) or the paper (pythia).
# Falcon-7b and qwen3-0.6b, 1.7b: the page counts the tied head twice, and here it counts once. deepseek-v3: the page's
# count without the extra prediction layer, and without the routers' 58 x 256 corrections, buffers in transformers.
# gemma-3-4b and larger: KerasHub 0.32's count of the text model, and the 64 rows of the embedding that it leaves out.
PUBLISHED = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-30b": 32_528_943_616, "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "codellama-7b": 6_738_546_688, "codellama-13b": 13_016_028_160, "codellama-34b": 33_743_970_304,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824, "llama-3.3-70b": 70_553_706_496, "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384,
    "mistral-7b": 7_241_732_096, "mistral-7b-v0.2": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo": 12_247_782_400, "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-4b-2507": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704, "gemma-2b": 2_506_172_416, "gemma-7b": 8_537_680_896, "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320, "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_099_328 + 64 * 2560, "gemma-3-12b": 11_765_788_416 + 64 * 3840,
    "gemma-3-27b": 27_009_002_240 + 64 * 5376, "phi-1.5": 1_418_270_720, "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552, "phi-3-medium": 13_960_238_080, "phi-4": 14_659_507_200, "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400, "granite-3.1-2b": 2_533_531_648, "granite-3.1-8b": 8_170_848_256,
    "granite-3.3-2b": 2_533_539_840, "granite-3.3-8b": 8_170_864_640, "smollm3-3b": 3_075_098_624,
    "starcoder2-3b": 3_030_371_328, "starcoder2-7b": 7_173_923_840, "starcoder2-15b": 15_957_889_024,
    "pythia-14m": 14_067_712, "pythia-31m": 30_494_720, "pythia-70m": 70_426_624, "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016, "pythia-1b": 1_011_781_632, "pythia-1.4b": 1_414_647_808, "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320, "falcon-7b": 7_217_189_760 - 65024 * 4544,
    "opt-125m": 125_239_296, "opt-350m": 331_196_416, "opt-1.3b": 1_315_758_080, "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288, "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304, "bloom-1b7": 1_722_408_960, "bloom-3b": 3_002_557_440, "bloom-7b1": 7_069_016_064,
    "bloom": 176_247_271_424, "deepseek-v3": 671_026_419_200 - 58 * 256, "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672, "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_has_in_transformers_the_published_number_of_parameters_and_no_dropout(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**KNOWN[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]
    without_effect = ("classifier_dropout", "summary_first_dropout")  # of heads that a language model has not
    assert not [key for key, value in config.to_dict().items() if "drop" in key and value and key not in without_effect]
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]


@pytest.mark.parametrize("name", KNOWN)
def test_predict_counts_a_known_model_right_or_names_its_family(name):
    try:
        counted = Architecture.of(name).parameters
    except ValueError as error:
        assert f"model_type is {KNOWN[name]['model_type']!r}" in str(error)
    else:
        assert counted == PUBLISHED[name]


def unsloths_copies() -> list[tuple[str, ...]]:
    """Hub ids that unsloth takes for one model, by model; read, not imported, because unsloth patches libraries."""
    tree = ast.parse((Path(find_spec("unsloth").origin).parent / "models" / "mapper.py").read_text(encoding="utf8"))
    table = next(node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict))
    groups = []
    for key, value in zip(table.value.keys, table.value.values):
        if isinstance(value, ast.Tuple):
            groups.append((ast.literal_eval(key), *ast.literal_eval(value)))
    return groups


@pytest.mark.skipif(find_spec("unsloth") is None, reason="unsloth could not be installed on this machine")
def test_every_copy_is_the_model_that_it_copies():
    known = 0
    for group in unsloths_copies():
        names = {known_name(name) for name in group if name.split("/")[0].lower() in PUBLISHERS}
        assert len(names) <= 1, group
        known += names not in (set(), {None})
    assert known >= 60  # of about 300: the models that are listed here


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "qwen3-14b"),
        ("mistralai/Mistral-Nemo-Base-2407", "mistral-nemo"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("LLaMA-7B", "llama-7b"),
        ("codellama/CodeLlama-7b-Python-hf", None),  # another vocabulary
        ("Qwen/Qwen2.5-7B-Instruct-1M", None),  # another context
        ("someone/Llama-3.1-8B", None),  # may have grown a vocabulary
    ],
)
def test_a_hub_id_means_its_publishers_model(asked, name):
    assert known_name(asked) == name
    if name:
        assert resolve(asked) == KNOWN[name]


def test_what_resolve_gives_can_be_changed():
    resolve("gpt2")["n_layer"] = 1
    assert KNOWN["gpt2"]["n_layer"] == 12


def cache(folder: Path, repository: str, revisions: dict[str, dict], main: str | None = None) -> None:
    """A repository in the layout of huggingface_hub's cache: a config.json for each revision, the newest last."""
    root = folder / ("models--" + repository.replace("/", "--"))
    for age, (revision, config) in enumerate(revisions.items()):
        path = root / "snapshots" / revision / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(config))
        os.utime(path.parent, (age, age))
    if main:
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(main)


def test_another_hub_id_is_found_in_the_local_cache(tmp_path, monkeypatch):
    from huggingface_hub import try_to_load_from_cache

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    revisions = {"a" * 40: dict(KNOWN["llama-7b"]), "b" * 40: dict(KNOWN["llama-13b"])}
    cache(tmp_path, "someone/their-model", revisions, main="a" * 40)
    found = cached_config("someone/their-model")
    assert found == try_to_load_from_cache("someone/their-model", "config.json", cache_dir=tmp_path)
    assert Architecture.of("someone/their-model").parameters == PUBLISHED["llama-7b"]
    cache(tmp_path, "someone/detached", revisions)  # fetched by a commit: no main
    assert Architecture.of("someone/detached").parameters == PUBLISHED["llama-13b"]


def test_the_cache_is_where_huggingface_hub_keeps_it():
    """Every way to move it, one after the other in one process of its own."""
    code = """
import importlib, os
from huggingface_hub import constants
from minigpt.memory import names
variables = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"]
for given in [[], *[[v] for v in variables], ["HF_HOME", "XDG_CACHE_HOME"], ["HF_HOME", "HF_HUB_CACHE"], variables]:
    for variable in variables:
        os.environ.pop(variable, None)
    os.environ.update({v: "~/" + v.lower() for v in given})
    importlib.reload(constants)
    assert names._cache() == constants.HF_HUB_CACHE, given
print("same")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "same\n"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("lama-7b", "cannot read 'lama-7b': no such file, and no known model; did you mean llama-7b?"),
        ("qwen/qwen3-9b", r"'qwen/qwen3-9b' is neither known here nor in .*did you mean qwen3-8b\?"),
        ("someone/xyz", r"fetch it \(hf download someone/xyz config.json\), or give the path of its config.json"),
        ("no/such/config.json", "cannot read 'no/such/config.json': no such file"),
        ("", "cannot read ''"),
        ("\0", "cannot read"),
        ("x" * 10_000, "cannot read"),
    ],
)
def test_an_unknown_name_says_what_to_give(asked, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=message) as caught:
        Architecture.of(asked)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_configuration_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot read '.*config.json': No such file or directory"):
        resolve(tmp_path)


def test_a_config_without_sizes_is_no_llama_7b(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    with pytest.raises(ValueError, match="config.json' has model_type, dtype alone; a config.json states the model's"):
        Architecture.of(path)


@pytest.mark.parametrize("kind", sorted({config["model_type"] for config in KNOWN.values()}))
def test_what_transformers_writes_states_its_sizes(tmp_path, kind):
    from transformers import AutoConfig

    AutoConfig.for_model(kind).save_pretrained(tmp_path)  # all of it as by default
    assert resolve(tmp_path)["model_type"] == kind
