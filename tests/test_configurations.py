"""Files made from plans against the libraries' own readers, what those take in silence, and back again."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from minigpt.memory import TrainingPlan
from minigpt.memory.configurations import LIBRARIES, beside, plugin_arguments, read, write
from minigpt.memory.configurations.accelerate import FSDP_KEYS
from minigpt.memory.configurations.words import OF_DTENSORS, SCRIPT

FSDP2, DDP = dict(sharding="fsdp2", ranks=4), dict(sharding="ddp", ranks=2)
ZERO = dict(sharding="zero2", ranks=8, precision="bf16-master")
BOTH = [
    {**FSDP2},
    {**FSDP2, "reshard_after_forward": False, "param_dtype": "bf16"},
    {**FSDP2, "shard_offload": "parameters", "checkpointing": "full", "param_dtype": "fp16"},
    {**FSDP2, "method": "qlora", "precision": "bf16", "optimizer_loop": "fused"},
]
PLANS = {
    "accelerate": [*BOTH, {**FSDP2, "checkpointing": "offload"}, {**DDP}, {**DDP, "precision": "bf16-autocast"}],
    "transformers": [*BOTH, {**FSDP2, "batch": 3, "accumulation": 5, "optimizer": "sgd"}],
    "deepspeed": [
        {**ZERO, "batch": 3, "accumulation": 5},
        {**ZERO, "sharding": "zero1", "precision": "fp32", "shard_offload": "optimizer"},
        {**ZERO, "sharding": "zero3", "precision": "bf16-master-grad32", "shard_offload": "optimizer"},
        {**ZERO, "sharding": "zero3", "precision": "bf16-autocast", "shard_offload": "parameters"},
        {**ZERO, "precision": "fp16-autocast", "method": "lora"},
    ],
}
CASES = [(library, plan) for library, plans in PLANS.items() for plan in plans]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """accelerate's plugin reads the environment, and writes to it."""
    for name in [*filter(lambda name: name.startswith(("FSDP_", "ACCELERATE_")), os.environ)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")


@pytest.mark.parametrize(("library", "plan"), CASES, ids=str)
def test_what_is_written_is_read_back(library, plan):
    plan = TrainingPlan(**plan)
    found, own = read(write(plan, library), library), LIBRARIES[library]
    assert found == {name: getattr(plan, name) for name in found}
    sharded = {"sharding", "shard_offload", "reshard_after_forward"} if plan.sharding == "fsdp2" else {"sharding"}
    assert sharded <= set(found) <= set(own.WRITTEN)
    assert library == "transformers" or "ranks" in found
    assert library == "deepspeed" or plan.sharding == "ddp" or set(own.WRITTEN) - set(found) <= {"precision"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_field_of_the_plan_is_somebodys(library):
    named = [field.name for field in fields(TrainingPlan)]
    own = LIBRARIES[library]
    kinds = [plan for name, plan in CASES if name == library]
    said = {*own.WRITTEN, *(name for plan in kinds for name in own.words(TrainingPlan(**plan)))}
    outside = {"ranks"} if library == "transformers" else set()
    assert set(named) == said | SCRIPT | outside
    assert all(str(plan["ranks"]) in beside(TrainingPlan(**plan), library)[0] for plan in kinds if outside)


# ------------------------------------------------------------ accelerate


def launched(path) -> tuple[dict[str, str], int]:
    """What ``accelerate launch`` makes of the file: the environment of a rank, and how many there are."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, *_ = _validate_launch_command(arguments)
    return prepare_multi_gpu_env(arguments), arguments.num_processes


@pytest.mark.parametrize("plan", PLANS["accelerate"], ids=str)
def test_accelerate_reads_it(plan, tmp_path, monkeypatch):
    """Its reader takes the file, and its launcher hands the ranks the plugin that ``plugin_arguments`` makes."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.commands.config.config_args import load_config_from_file

    plan = TrainingPlan(**plan)
    path = tmp_path / "config.yaml"
    path.write_text(write(plan, "accelerate", "Block"))
    found = load_config_from_file(str(path))
    assert (found.distributed_type.value, found.num_processes) == (
        {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}[plan.sharding],
        plan.ranks,
    )
    half = {"bfloat16": "bf16", "float16": "fp16", None: "no"}[plan.autocast_dtype]
    assert found.mixed_precision == (half if plan.sharding == "ddp" else plan.param_dtype.replace("same", "no"))
    if plan.sharding == "ddp":
        return assert_no_fsdp(found)
    own = FullyShardedDataParallelPlugin(**plugin_arguments(plan, "Block"))
    environment, ranks = launched(path)
    for name, value in environment.items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    theirs = FullyShardedDataParallelPlugin()
    assert ranks == plan.ranks and environment["ACCELERATE_MIXED_PRECISION"] == found.mixed_precision
    if found.mixed_precision != "no":
        theirs.set_mixed_precision(found.mixed_precision)
    same = ("fsdp_version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "auto_wrap_policy",
            "activation_checkpointing_offload", "transformer_cls_names_to_wrap", "mixed_precision_policy")  # fmt: skip
    assert {name: getattr(own, name) for name in same} == {name: getattr(theirs, name) for name in same}
    assert own.auto_wrap_policy is not None
    assert type(own.cpu_offload).__name__ == ("CPU" * (plan.shard_offload != "none") + "OffloadPolicy")


def assert_no_fsdp(found) -> None:
    assert found.fsdp_config == {}


def test_every_key_is_an_option_of_accelerates_launcher():
    from accelerate.commands.launch import launch_command_parser

    options = {option.dest for option in launch_command_parser()._actions}
    assert set(FSDP_KEYS) <= options and "fsdp_reshard_after_forwards" not in options


def test_the_plugin_can_reduce_in_float32_and_the_file_cannot():
    import torch
    from accelerate import FullyShardedDataParallelPlugin

    for precision, param_dtype in (("fp32", "bf16"), ("bf16", "same")):
        plan = TrainingPlan(**FSDP2, precision=precision, param_dtype=param_dtype, reduce_dtype="fp32")
        policy = FullyShardedDataParallelPlugin(**plugin_arguments(plan)).mixed_precision_policy
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
        for library in ("accelerate", "transformers"):
            with pytest.raises(ValueError, match=f"reduce_dtype is 'fp32', for which {library} has no word"):
                write(plan, library)


def test_what_accelerate_refuses_itself():
    from accelerate import FullyShardedDataParallelPlugin

    with pytest.raises(ValueError, match="reshard_after_forward is 2; it must be True or False"):
        TrainingPlan(**FSDP2, reshard_after_forward=2)
    with pytest.raises(ValueError, match="reshard_after_forward set to 2"):
        FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=2)


@pytest.mark.parametrize("line", ["  fsdp_reshard: true", "  fsdp_version: 3", "mixed_precision: bf61"])
def test_what_accelerate_takes_in_silence_is_refused(line, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    text = write(TrainingPlan(**FSDP2), "accelerate")
    key = line.split(":")[0]
    kept = "\n".join(old for old in text.splitlines() if not old.startswith(key + ":"))
    wrong = f"{kept}\n{line}\n" if line.startswith(" ") else f"{line}\n{kept}\n"
    path = tmp_path / "config.yaml"
    path.write_text(wrong)
    load_config_from_file(str(path))  # no error
    with pytest.raises(ValueError, match=key.strip()):
        read(wrong, "accelerate")


def test_bitsandbytes_and_adafactor_do_not_go_through_dtensors():
    """Why they are refused: the kernels have no rule for a DTensor."""
    import bitsandbytes
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers.optimization import Adafactor

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        kinds = [getattr(bitsandbytes.optim, name) for name in ("AdamW8bit", "PagedAdamW", "Lion")]
        for kind in (*kinds, Adafactor):
            layer = torch.nn.Linear(96, 96)
            fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
            layer(torch.randn(2, 96)).sum().backward()
            with pytest.raises((RuntimeError, NotImplementedError), match="DTensor|sharding strategy"):
                kind(layer.parameters()).step()
    finally:
        torch.distributed.destroy_process_group()
    for optimizer in ("adamw8bit", "paged_adamw", "lion", "adafactor", "galore"):
        assert optimizer not in OF_DTENSORS
        with pytest.raises(ValueError, match=f"optimizer is '{optimizer}', for which accelerate has no word"):
            write(TrainingPlan(**FSDP2, optimizer=optimizer), "accelerate")


# ------------------------------------------------------------ transformers


@pytest.mark.parametrize("plan", PLANS["transformers"], ids=str)
def test_transformers_reads_it(plan, tmp_path):
    """Its parser takes every key, and hands accelerate the plugin's arguments."""
    from accelerate import FullyShardedDataParallelPlugin
    from transformers import HfArgumentParser, TrainingArguments

    plan = TrainingPlan(**plan)
    said = json.loads(write(plan, "transformers", "Block"))
    here = dict(use_cpu=True, output_dir=str(tmp_path), report_to=[])  # no GPU takes part in this test
    (found,) = HfArgumentParser(TrainingArguments).parse_dict({**said, **here})
    own, theirs = (
        FullyShardedDataParallelPlugin(**arguments)
        for arguments in (plugin_arguments(replace(plan, param_dtype="same"), "Block"), found.fsdp_plugin_args)
    )
    for name in ("fsdp_version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "auto_wrap_policy",
                 "transformer_cls_names_to_wrap"):  # fmt: skip
        assert getattr(own, name) == getattr(theirs, name)
    assert (found.bf16, found.fp16) == (plan.param_dtype == "bf16", plan.param_dtype == "fp16")
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (plan.batch, plan.accumulation)
    assert found.optim.value == said["optim"]


def test_what_transformers_takes_in_silence_is_refused(tmp_path):
    from transformers import TrainingArguments

    said = json.loads(write(TrainingPlan(**FSDP2), "transformers"))
    said["fsdp_config"]["reshard"] = False
    TrainingArguments(**{**said, "output_dir": str(tmp_path), "use_cpu": True})  # no error
    with pytest.raises(ValueError, match="'reshard' is no word of fsdp_config that a plan has"):
        read(json.dumps(said), "transformers")


# ------------------------------------------------------------ DeepSpeed, where it is installed


def deepspeeds(config: dict, ranks: int, monkeypatch):
    """DeepSpeed's own reading of the configuration, in a world of so many ranks."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import deepspeed.runtime.config as theirs

    world = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *group: ranks)
    monkeypatch.setattr(theirs, "dist", world)
    return theirs.DeepSpeedConfig(config)


needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed here")


@needs_deepspeed
@pytest.mark.parametrize("plan", PLANS["deepspeed"], ids=str)
def test_deepspeed_reads_it(plan, monkeypatch):
    plan = TrainingPlan(**plan)
    said = json.loads(write(plan, "deepspeed"))
    found = deepspeeds(said, plan.ranks, monkeypatch)
    zero = found.zero_config
    assert f"zero{int(zero.stage)}" == plan.sharding
    offloads = [part is not None and part.device == "cpu" for part in (zero.offload_optimizer, zero.offload_param)]
    assert offloads == [plan.shard_offload != "none", plan.shard_offload == "parameters"]
    assert found.bfloat16_config.enabled == (plan.regime.master == 4) and not found.float16_config.enabled
    assert found.torch_autocast_enabled == (plan.autocast_dtype is not None)
    assert (found.grad_accum_dtype == "fp32") == (plan.precision == "bf16-master-grad32")
    with pytest.raises(AssertionError, match="train_batch_size is not equal"):
        deepspeeds(said, plan.ranks + 1, monkeypatch)


@needs_deepspeed
@pytest.mark.parametrize("key", ["zero_optimisation", "offload_param"])
def test_what_deepspeed_takes_in_silence_is_refused(key, monkeypatch):
    plan = TrainingPlan(**ZERO)
    said = json.loads(write(plan, "deepspeed"))
    (said if key == "zero_optimisation" else said["zero_optimization"])[key] = {"device": "cpu", "pin_memory": True}
    deepspeeds(said, plan.ranks, monkeypatch)  # no error
    with pytest.raises(ValueError, match=key):
        read(json.dumps(said), "deepspeed")
