"""What TrainingPlan.like says of a library, asked of the library: its fields, signatures and source, one step of it.

LitGPT and torchtune are not among the course's dependencies: their rows were read in the sources that recipes.py names.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import weakref
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import minigpt.memory.recipes as module
from minigpt.memory import MemoryMeter, TrainingPlan, predict
from minigpt.memory.families import FAMILIES
from minigpt.memory.measured.building import build
from minigpt.memory.plan import OPTIM
from minigpt.memory.recipes import APART, RECIPES, recipe
from minigpt.memory.targets import PEFT
from tools.models import MODELS

HF, TRL, SCRIPT, UNSLOTH = (TrainingPlan.like(name, method="qlora") for name in list(RECIPES)[:4])


def field_of(kind, name: str):
    """The default of a dataclass's field."""
    return next(field.default for field in dataclasses.fields(kind) if field.name == name)


def default_of(function, name: str):
    return inspect.signature(function).parameters[name].default


def as_trainer_says(kind) -> dict:
    """The plan's words for the defaults of a configuration of transformers' Trainer."""
    bf16 = field_of(kind, "bf16")
    return {
        "autocast": not field_of(kind, "fp16") if bf16 is None else bf16,
        "checkpointing": "full" if field_of(kind, "gradient_checkpointing") else "none",
        "use_cache": field_of(kind, "use_cache"),
        **OPTIM[str(getattr(field_of(kind, "optim"), "value", field_of(kind, "optim")))],
    }


@pytest.mark.parametrize("library", ["hf-trainer", "trl-sft"])
def test_the_trainers_defaults(library):
    from transformers import TrainingArguments
    from trl import SFTConfig

    said = as_trainer_says({"hf-trainer": TrainingArguments, "trl-sft": SFTConfig}[library])
    plan = {"autocast": False, **recipe(library, "full")}
    assert {name: plan[name] for name in said} == said


def test_trl_turns_bf16_on_by_itself(tmp_path):
    from trl import SFTConfig

    assert SFTConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[]).bf16 is True
    assert SFTConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[], bf16=False).bf16 is False


def test_a_model_is_loaded_in_its_checkpoints_format(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS["llama-tied"]), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16
    assert (
        recipe("hf-trainer")["precision"] == recipe("trl-sft")["precision"] == recipe("script")["precision"] == "bf16"
    )


def test_trainer_holds_the_loss_alone_through_backward_and_frees_gradients_after_the_step(tmp_path):
    """Two real steps: whether the outputs are alive when backward begins, and gradients when the next forward does."""
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS["llama-tied"]))
    seen = {"logits alive": [], "gradients": [], "cache": []}

    def before(module, args, kwargs):
        seen["gradients"].append(any(parameter.grad is not None for parameter in module.parameters()))

    def after(module, args, kwargs, outputs):
        seen["outputs"] = weakref.ref(outputs)
        seen["cache"].append(outputs.past_key_values is not None)

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=1, optim="sgd",
    )  # fmt: skip
    row = {"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}
    trainer = Trainer(model=model, args=arguments, train_dataset=[row] * 2)
    backward = trainer.accelerator.backward

    def watched(loss, **kwargs):
        seen["logits alive"].append(seen["outputs"]() is not None)
        backward(loss, **kwargs)

    trainer.accelerator.backward = watched
    trainer.train()
    plan = TrainingPlan.like("hf-trainer")
    assert seen["logits alive"] == [plan.holds == "outputs"] * 2 == [False, False]
    assert seen["gradients"] == [plan.zero_grad != "before_forward"] * 2 == [False, False]
    assert seen["cache"] == [plan.use_cache] * 2


@pytest.mark.parametrize("bf16", [True, False])
def test_trainers_model_returns_float32_logits_and_a_step_of_it_is_predicted(bf16, tmp_path):
    """The forward and backward of Trainer(bf16=True), on the model that accelerate has prepared for it."""
    from transformers import Trainer, TrainingArguments

    plan = TrainingPlan.like("hf-trainer", batch=2, seq_len=16, autocast=bf16)
    model = build(MODELS["llama-grouped"], plan)
    options = dict(use_cpu=True, max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=9)
    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, bf16=bf16, optim="sgd", **options)
    trainer, phases, dtypes = Trainer(model, arguments, train_dataset=[ROW] * 2), {}, []

    def watched(prepared, inputs, num_items_in_batch=None):
        dtypes.append(prepared(**inputs).logits.dtype)
        with MemoryMeter(prepared, None, tuple(inputs.values())) as meter:
            meter.mark("forward")
            loss = trainer.compute_loss(prepared, inputs)
            meter.mark("backward")
            loss.backward()
        phases.update(most_in_each(meter.result()))
        return loss.detach()

    trainer.training_step = watched
    trainer.train()
    predicted = most_in_each(predict(MODELS["llama-grouped"], replace(plan, optimizer="sgd")))
    assert dtypes == [torch.float32 if bf16 else torch.bfloat16]
    assert {name: phases[name] for name in ("forward", "backward")} == {
        name: predicted[name] for name in ("forward", "backward")
    }


ROW = {"input_ids": [*range(1, 17)], "labels": [*range(1, 17)]}


def most_in_each(step) -> dict[str, int]:
    """The largest total of each phase."""
    most: dict[str, int] = {}
    for phase, ledger in step.timeline():
        most[phase] = max(most.get(phase, 0), ledger.total)
    return most


def test_pefts_adapters():
    from peft import LoraConfig, get_peft_model
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as mapping

    plan = TrainingPlan.like("hf-trainer", method="lora")
    assert (plan.rank, plan.lora_dropout) == (field_of(LoraConfig, "r"), field_of(LoraConfig, "lora_dropout"))
    assert default_of(get_peft_model, "autocast_adapter_dtype") is True and plan.adapter_dtype == "fp32"
    assert plan.targets == "peft" and set(PEFT) == set(mapping) & set(FAMILIES) - {"mixtral"}  # see targets.py


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"minigpt"}))
def test_pefts_own_targets_of_every_family(family):
    """Asked of peft, with a LoraConfig that names none: as many adapter parameters as predicted, or both refuse."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = next(it for it in MODELS.values() if isinstance(it, dict) and it["model_type"] == family)
    plan = TrainingPlan(method="lora", targets="peft", rank=2, seq_len=8)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    if family not in PEFT:
        with pytest.raises(ValueError, match="Please specify `target_modules`|No `target_modules` passed"):
            get_peft_model(model, LoraConfig(r=2))
        with pytest.raises(ValueError, match=f"targets is 'peft'; peft has none of its own for {family}"):
            predict(config, plan)
    else:
        trained, _ = get_peft_model(model, LoraConfig(r=2)).get_nb_trainable_parameters()
        assert predict(config, plan).trainable == 4 * trained


def test_four_bits_by_transformers_and_peft():
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    assert BitsAndBytesConfig(load_in_4bit=True).bnb_4bit_use_double_quant is HF.double_quantization is False
    assert default_of(prepare_model_for_kbit_training, "use_gradient_checkpointing") is True
    assert (HF.kbit_preparation, HF.checkpointing) == (SCRIPT.kbit_preparation, SCRIPT.checkpointing)
    assert HF.kbit_preparation and HF.checkpointing == "reentrant"


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint. the use_reentrant parameter")
@pytest.mark.parametrize(
    ("turn_on", "kind"),
    [
        (lambda model: model.gradient_checkpointing_enable(), "full"),
        (lambda model: model.gradient_checkpointing_enable(field_of(trl_config(), KWARGS)), TRL.checkpointing),
        (lambda model: kbit_prepared(model), HF.checkpointing),
    ],
    ids=["transformers", "trl", "peft"],
)
def test_which_kind_of_checkpointing_a_library_turns_on(turn_on, kind):
    """Asked of a step: only the reentrant kind is an operation of its own in the graph of the loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS["llama-tied"]))
    turn_on(model)
    tokens = torch.ones(1, 4, dtype=torch.int64)
    loss = model.train()(input_ids=tokens, labels=tokens, use_cache=False).loss
    names, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        names.add(node.name())
        waiting += [then for then, _ in node.next_functions if then is not None]
    assert model.is_gradient_checkpointing
    assert ("CheckpointFunctionBackward" in names) == (kind == "reentrant")


KWARGS = "gradient_checkpointing_kwargs"


def trl_config():
    from transformers import TrainingArguments
    from trl import SFTConfig

    assert field_of(SFTConfig, KWARGS) == field_of(TrainingArguments, KWARGS)
    return SFTConfig


def kbit_prepared(model):
    from peft import prepare_model_for_kbit_training

    model.is_loaded_in_4bit = True
    prepare_model_for_kbit_training(model)


def test_trls_four_bits_and_loss():
    """Its trainer never calls peft's preparation, makes adapters of a 4-bit base bfloat16, and has a fused head."""
    import trl.trainer.sft_trainer as module

    source = inspect.getsource(module)
    cast = source.split("if _is_quantized_model:")[1].split("# Data collator")[0]
    assert "param.data = param.data.to(torch.bfloat16)" in cast and TRL.adapter_dtype == "same"
    assert "prepare_model_for_kbit_training" not in source and not TRL.kbit_preparation
    assert "outputs = model(**inputs, fused_lm_head=True)" in source and TRL.loss == "trl"
    assert TrainingPlan.like("trl-sft", method="lora").adapter_dtype == "fp32"


def test_a_script_keeps_what_nobody_turns_off():
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices
    from transformers import AutoConfig

    plan = TrainingPlan.like("script")
    assert AutoConfig.for_model("llama").use_cache is plan.use_cache is True
    assert default_of(torch.optim.AdamW, "foreach") is None and default_of(torch.optim.AdamW, "fused") is None
    assert "cuda" in _get_foreach_kernels_supported_devices() and plan.optimizer_loop == "foreach"


@pytest.mark.skipif(find_spec("unsloth") is None, reason="unsloth could not be installed on this machine")
def test_unsloths_defaults():
    """Read, not imported: the import patches other libraries."""
    models = Path(find_spec("unsloth").origin).parent / "models"
    loader, llama, rl = ((models / f"{name}.py").read_text(encoding="utf8") for name in ("loader", "llama", "rl"))
    loading, adapting = signature(loader, "from_pretrained"), signature(llama, "get_peft_model")
    assert loading["load_in_4bit"] is True and TrainingPlan.like("unsloth").method == "qlora"
    assert loading["use_gradient_checkpointing"] == adapting["use_gradient_checkpointing"] == "unsloth"
    assert UNSLOTH.checkpointing == "reentrant" and "the CPU's memory" in APART["unsloth"][0]
    assert "use_reentrant = True" in llama and "use_reentrant = False" not in llama
    assert "_gc_kwargs['use_reentrant'] = True" in rl
    assert (adapting["r"], adapting["lora_dropout"]) == (UNSLOTH.rank, UNSLOTH.lora_dropout)
    targets = assigned(llama, "_DEFAULT_TARGET_MODULES")
    named = TrainingPlan(targets=",".join(targets)).targets.split(",")
    assert set(named) == {"q", "k", "v", "o", "gate", "up", "down"} and UNSLOTH.targets == "all-linear"
    assert "bnb_4bit_use_double_quant = True" in llama and UNSLOTH.double_quantization
    assert OPTIM[entry(rl, "optim")] == {"optimizer": UNSLOTH.optimizer}
    assert "loss = unsloth_fused_ce_loss(" in llama and UNSLOTH.loss == "fused"


def signature(source: str, name: str) -> dict:
    """The literal defaults of the first function of that name in a file's source."""
    function = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name)
    arguments = function.args.args[-len(function.args.defaults) :]
    pairs = zip(arguments, function.args.defaults)
    return {a.arg: d.value for a, d in pairs if isinstance(d, ast.Constant)}


def assigned(source: str, name: str):
    """The literal that a name is bound to in a file's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


def entry(source: str, key: str):
    """The literal under a key of the first dictionary that has it in a file's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for k, v in zip(node.keys, node.values):
                if isinstance(k, ast.Constant) and k.value == key and isinstance(v, ast.Constant):
                    return v.value
    raise LookupError(key)


@pytest.mark.parametrize(
    ("library", "method"), [(name, method) for name, methods in RECIPES.items() for method in methods]
)
def test_a_recipe_is_a_plan_that_is_predicted_or_refused_by_name(library, method):
    plan = TrainingPlan.like(library, method=method, batch=3, seq_len=16)
    assert (plan.method, plan.batch, plan.seq_len) == (method, 3, 16)
    try:
        assert predict(MODELS["llama-grouped"], plan).peak.total > 0
    except ValueError as error:
        assert "measured only" in str(error)


@pytest.mark.parametrize("library", ["transformers", "accelerate", "peft", "trl", "unsloth"])
def test_the_versions_that_were_read_are_the_tested_ones(library):
    pins = (Path(__file__).parent.parent / "constraints.txt").read_text(encoding="utf8")
    pinned = re.search(rf"^{library}==([\w.]+)", pins, re.MULTILINE)[1]
    assert f"{library} {pinned}" in module.__doc__


def test_changes_win_and_batch_is_never_a_librarys():
    assert TrainingPlan.like("trl-sft", checkpointing="none", use_cache=True).use_cache
    assert TrainingPlan.like("litgpt").method == "lora"
    assert not {"batch", "seq_len", "accumulation", "card"} & {
        n for r in RECIPES.values() for p in r.values() for n in p
    }
    assert APART.keys() == RECIPES.keys()


def test_another_library_is_named():
    with pytest.raises(ValueError, match="like is 'keras'; allowed: hf-trainer, trl-sft, script, unsloth, litgpt"):
        TrainingPlan.like("keras")
    with pytest.raises(ValueError, match="method is 'full'; allowed: qlora, lora"):
        TrainingPlan.like("unsloth", method="full")
