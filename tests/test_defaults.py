"""What libraries do by default, as the course's texts say it: asked of the installed library, and found in the text.

A row has the default, how the library is asked, and the words that state it in a text. Where a library changes, the
first test fails; where a sentence changes, the second. ``TrainingPlan.like`` is asked in tests/test_recipes.py.
"""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

CONTENT = Path(__file__).parent.parent / "content"
QLORA, LAB, STATE = "lessons/09-qlora.md", "labs/lab09-qlora.md", "lessons/04-optimizer-state.md"
CHECKPOINTING, ALIGNMENT = "lessons/06-checkpointing.md", "lessons/15-alignment.md"


def argument(where: str, name: str):
    """The default of a parameter, or of a field of a dataclass, where ``where`` is "module:name"."""
    module, _, thing = where.partition(":")
    return inspect.signature(getattr(pytest.importorskip(module), thing)).parameters[name].default


def unsloth(function: str, name: str):
    """The default of a parameter in Unsloth's source: read, not imported, since the import patches other libraries."""
    if find_spec("unsloth") is None:
        pytest.skip("unsloth could not be installed on this machine")
    from tests.test_recipes import signature

    source = Path(find_spec("unsloth").origin).parent / "models" / "llama.py"
    return signature(source.read_text(encoding="utf8"), function)[name]


HF, TRL = "transformers:TrainingArguments", "trl:SFTConfig"
DPO, GRPO = "trl:DPOConfig", "trl:GRPOConfig"
BITS, LORA = "transformers:BitsAndBytesConfig", "peft:LoraConfig"
KBIT, ADAPT = "peft:prepare_model_for_kbit_training", "peft:get_peft_model"
ARGUMENTS = [  # where, parameter, default, the text, and the words there
    (KBIT, "use_gradient_checkpointing", True, QLORA, "_kbit_training(use_gradient_checkpointing=True)"),
    (KBIT, "use_gradient_checkpointing", True, LAB, "_kbit_training(model, use_gradient_checkpointing=True)"),
    (TRL, "gradient_checkpointing", True, QLORA, "SFTConfig(gradient_checkpointing=True)"),
    (TRL, "gradient_checkpointing", True, LAB, "SFTConfig(gradient_checkpointing=True)"),
    (TRL, "bf16", None, QLORA, "SFTConfig(bf16=None)"),
    (HF, "gradient_checkpointing", False, QLORA, "TrainingArguments(gradient_checkpointing=False)"),
    (HF, "gradient_checkpointing_kwargs", None, QLORA, "the newer kind"),
    (TRL, "gradient_checkpointing_kwargs", None, QLORA, "the newer kind"),
    (HF, "bf16", False, QLORA, "`bf16=False`"),
    (ADAPT, "autocast_adapter_dtype", True, QLORA, "get_peft_model(autocast_adapter_dtype=True)"),
    (BITS, "bnb_4bit_use_double_quant", False, QLORA, "bnb_4bit_use_double_quant=False"),
    (BITS, "bnb_4bit_compute_dtype", None, QLORA, "bnb_4bit_compute_dtype=None"),
    ("bitsandbytes.optim:AdamW8bit", "min_8bit_size", 4096, QLORA, "min_8bit_size=4096"),
    ("bitsandbytes.optim:PagedAdamW8bit", "min_8bit_size", 4096, LAB, "with fewer than 4,096 elements: float32"),
    ("bitsandbytes.optim:AdamW8bit", "min_8bit_size", 4096, STATE, "fewer than 4,096 elements keeps float32"),
    ("transformers.optimization:Adafactor", "beta1", None, STATE, "has no $m$"),
    (HF, "optim", "adamw_torch_fused", STATE, "`fused`, what transformers' `Trainer` takes"),
    ("torch.optim:AdamW", "foreach", None, STATE, "`foreach`, torch's choice on a GPU"),
    (BITS, "load_in_4bit", False, LAB, "| 4 bits | nothing is quantized |"),
    (BITS, "bnb_4bit_quant_type", "fp4", LAB, '| the codes `"nf4"` | `"fp4"` |'),
    (BITS, "bnb_4bit_use_double_quant", False, LAB, "| double quantization | float32 scales |"),
    (BITS, "bnb_4bit_compute_dtype", None, LAB, "| products of 4-bit matrices in bfloat16 | in float32 |"),
    (LORA, "r", 8, LAB, "| rank, alpha | 8 and 8 |"),
    (LORA, "lora_alpha", 8, LAB, "| rank, alpha | 8 and 8 |"),
    (LORA, "target_modules", None, LAB, "| every matrix of the blocks | for a llama: q and v alone |"),
    (LORA, "task_type", None, LAB, "| a causal language model | no task |"),
    (HF, "per_device_train_batch_size", 8, LAB, "| sequences in one forward pass | 8 |"),
    (HF, "gradient_accumulation_steps", 1, LAB, "| passes before one optimizer step | 1 |"),
    (HF, "num_train_epochs", 3.0, LAB, "| steps | 3 epochs |"),
    (HF, "learning_rate", 5e-5, LAB, "| learning rate | 5e-5 |"),
    (HF, "optim", "adamw_torch_fused", LAB, "| paged 8-bit AdamW | torch's AdamW |"),
    (HF, "bf16", False, LAB, "| autocast to bfloat16, for adapters, head and attention | they compute in float32 |"),
    ("torch.optim:AdamW", "foreach", None, "lessons/01-four-buckets.md", "torch's AdamW"),
    (LORA, "target_modules", None, "lessons/07-lora.md", "peft's own default for a llama is adapters on q and v"),
    ("torch.utils.checkpoint:checkpoint", "use_reentrant", None, CHECKPOINTING, "`use_reentrant=None`"),
    (TRL, "gradient_checkpointing", True, CHECKPOINTING, "| trl: `SFTConfig()` | the newer"),
    (TRL, "gradient_checkpointing_kwargs", None, CHECKPOINTING, "| the newer, through transformers |"),
    (DPO, "beta", 0.1, ALIGNMENT, "`DPOConfig(beta=0.1)`"),
    (DPO, "max_length", 1024, ALIGNMENT, "`DPOConfig(max_length=1024)`"),
    (DPO, "precompute_ref_log_probs", False, ALIGNMENT, "`DPOConfig(precompute_ref_log_probs=False)`"),
    (DPO, "gradient_checkpointing", True, ALIGNMENT, "`DPOConfig(gradient_checkpointing=True)`"),
    (DPO, "bf16", None, ALIGNMENT, "`DPOConfig(bf16=None)`"),
    (DPO, "disable_dropout", True, ALIGNMENT, "and no dropout"),
    (GRPO, "beta", 0.0, ALIGNMENT, "`GRPOConfig(beta=0.0)`"),
    (GRPO, "epsilon", 0.2, ALIGNMENT, "`GRPOConfig(epsilon=0.2)`"),
    (GRPO, "num_generations", 8, ALIGNMENT, "`GRPOConfig(num_generations=8)`"),
    (GRPO, "max_completion_length", 512, ALIGNMENT, "`GRPOConfig(max_completion_length=512)`"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "name", "default", "text", "words"), ARGUMENTS)
def test_the_library_has_the_default_that_the_text_states(where, name, default, text, words):
    found = argument(where, name)
    assert (str(found) if isinstance(default, str) else found) == default


@pytest.mark.parametrize(("text", "words"), [row[3:] for row in ARGUMENTS])
def test_the_text_states_it(text, words):
    assert words in (CONTENT / text).read_text(encoding="utf8")


def test_unsloth_turns_checkpointing_on():
    assert unsloth("get_peft_model", "use_gradient_checkpointing") == "unsloth"
    for text in (QLORA, LAB):
        assert 'get_peft_model(use_gradient_checkpointing="unsloth")' in (CONTENT / text).read_text(encoding="utf8")


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=11)
    return LlamaForCausalLM(LlamaConfig(**sizes)).train()


def kind_of_checkpoint(model) -> dict:
    """What the model's blocks hand to torch's checkpoint."""
    return model.model.layers[0]._gradient_checkpointing_func.keywords


def test_transformers_takes_the_newer_kind_and_lets_the_embedding_s_output_take_a_gradient():
    model = tiny_llama().requires_grad_(False)
    model.gradient_checkpointing_enable()
    assert kind_of_checkpoint(model) == {"use_reentrant": False}
    assert model.get_input_embeddings()(torch.tensor([[1]])).requires_grad
    asked = inspect.signature(model.gradient_checkpointing_enable).parameters
    assert (asked["every_n_layers"].default, asked["offload"].default) == (1, False)
    text = (CONTENT / CHECKPOINTING).read_text(encoding="utf8")
    assert '| the newer: `{"use_reentrant": False}` |' in text and "enable_input_require_grads()" in text
    assert "gradient_checkpointing_enable(every_n_layers=k)" in text and "_enable(offload=True)" in text


def test_peft_leaves_the_kind_to_torch_which_takes_the_older_one():
    peft = pytest.importorskip("peft")
    model = tiny_llama()
    model.is_loaded_in_4bit = True
    peft.prepare_model_for_kbit_training(model)
    assert kind_of_checkpoint(model) == {}
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
        out = torch.utils.checkpoint.checkpoint(torch.sin, x)
    assert "CheckpointFunction" in out.grad_fn.name()
    text = (CONTENT / CHECKPOINTING).read_text(encoding="utf8")
    assert "| reentrant: it hands on `{}`, and torch decides |" in text


def test_transformers_puts_the_longest_batch_first_where_it_groups_by_length():
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = [*range(100, 200), 860, *range(200, 300)]
    assert all(get_length_grouped_indices(lengths, 8)[0] == 100 for _ in range(5))
    words = " ".join(str(get_length_grouped_indices.__doc__).split())
    assert "so that an OOM happens sooner rather than later" in words  # lesson 11 quotes it


def test_get_peft_model_lets_the_embedding_s_output_take_a_gradient():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_llama(), peft.LoraConfig(target_modules=["q_proj"]))
    assert model.get_input_embeddings()(torch.tensor([[1]])).requires_grad == model.base_model.is_gradient_checkpointing
    checkpointed = tiny_llama()
    checkpointed.gradient_checkpointing_enable()
    checkpointed._require_grads_hook.remove()  # transformers' own
    model = peft.get_peft_model(checkpointed, peft.LoraConfig(target_modules=["q_proj"]))
    assert model.get_input_embeddings()(torch.tensor([[1]])).requires_grad


def test_unsloth_s_checkpoints_are_reentrant():
    if find_spec("unsloth") is None:
        pytest.skip("unsloth could not be installed on this machine")
    source = (Path(find_spec("unsloth").origin).parent / "models" / "llama.py").read_text(encoding="utf8")
    assert "use_reentrant = True" in source
    text = (CONTENT / CHECKPOINTING).read_text(encoding="utf8")
    assert '`get_peft_model(use_gradient_checkpointing="unsloth")` | reentrant' in text


def test_without_a_compute_dtype_four_bit_products_are_float32():
    from transformers import BitsAndBytesConfig

    assert BitsAndBytesConfig(load_in_4bit=True).bnb_4bit_compute_dtype == torch.float32


def test_bitsandbytes_blocks_are_64_weights_and_256_scales():
    bnb = pytest.importorskip("bitsandbytes.functional")
    _, state = bnb.quantize_4bit(torch.randn(256, 256), quant_type="nf4", compress_statistics=True)
    assert (state.blocksize, state.state2.blocksize) == (64, 256)
    assert "one scale per 64 weights" in (CONTENT / QLORA).read_text(encoding="utf8")


@pytest.mark.parametrize(("elements", "dtype"), [(4095, torch.float32), (4096, torch.uint8)])
def test_bitsandbytes_keeps_8_bit_moments_from_4096_elements_on_with_a_scale_for_256(elements, dtype):
    from bitsandbytes.optim import AdamW8bit

    weight = torch.nn.Parameter(torch.zeros(elements))
    weight.grad = torch.ones_like(weight)
    optimizer = AdamW8bit([weight])
    optimizer.step()
    state = optimizer.state[weight]
    assert state["state1"].dtype == dtype
    if dtype == torch.uint8:
        assert state["absmax1"].numel() == elements // 256


def test_bitsandbytes_pages_from_100_000_elements_on():
    """On a CPU nothing is paged, so this is read in the optimizer's source."""
    from bitsandbytes.optim.optimizer import Optimizer8bit

    assert "if not self.is_paged or p.numel() < 1e5:" in inspect.getsource(Optimizer8bit.get_state_buffer)
    for text in (QLORA, LAB, STATE):
        assert "100,000 elements" in (CONTENT / text).read_text(encoding="utf8")


def test_bitsandbytes_own_embeddings_ask_for_32_bits_of_state():
    from bitsandbytes.nn import StableEmbedding
    from bitsandbytes.optim import GlobalOptimManager

    asked = GlobalOptimManager.get_instance().module_weight_config_triple
    before, embedding = len(asked), StableEmbedding(4, 4)
    assert asked[before:] == [(embedding, "weight", {"optim_bits": 32})]
    del asked[before:]
    assert "`StableEmbedding`, where a model has it, asks for 32 bits" in (CONTENT / STATE).read_text(encoding="utf8")


def test_no_text_states_another_default():
    """Each ``function(name=value)`` in a sentence, of the functions above: the default, or an option asked for."""
    asked = {"Trainer(bf16=True)", "prepare_model_for_kbit_training(use_gradient_checkpointing=False)"}
    known = {(where.partition(":")[2], name): default for where, name, default, *_ in ARGUMENTS}
    for path in sorted(CONTENT.glob("*/*.md")):
        prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf8"), flags=re.MULTILINE | re.DOTALL)
        for call, function, inside in re.findall(r"`((\w+)\(([^`]*)\))`", prose):
            for name, value in re.findall(r"(\w+)=([\w.\"]+)", inside):
                default = known.get((function, name), value)
                assert value in (default, repr(default)) or call in asked, (path.name, call)


# ------------------------------------------------------------ what accelerate does with a plugin


@pytest.fixture
def one_rank(monkeypatch):
    """A world of one rank, as a launcher tells a script of it; gone afterwards, accelerate's state too."""
    import socket

    from accelerate.state import AcceleratorState

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        world = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=1, MASTER_PORT=free.getsockname()[1])
    for name, value in dict(world, MASTER_ADDR="127.0.0.1", FSDP_CPU_RAM_EFFICIENT_LOADING="false").items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # without it accelerate sets the number of torch's threads
    AcceleratorState._reset_state(True)  # another test's Trainer has made one
    yield
    AcceleratorState._reset_state(True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_accelerate_on_a_cpu_takes_an_fsdp_plugin_and_trains_with_ddp(one_rank):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    assert accelerator.distributed_type.value == "MULTI_CPU" and not accelerator.is_fsdp2
    prepared = accelerator.prepare(torch.nn.Linear(4, 4))
    assert isinstance(prepared, torch.nn.parallel.DistributedDataParallel)
    assert not any(isinstance(p, torch.distributed.tensor.DTensor) for p in prepared.parameters())


def test_accelerates_plugin_reduces_in_the_computed_dtype_and_makes_one_group_of_a_model():
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy="bf16")
    policy = plugin.mixed_precision_policy
    assert {policy.param_dtype, policy.reduce_dtype, policy.output_dtype} == {torch.bfloat16}
    assert plugin.auto_wrap_policy is None and plugin.reshard_after_forward is True


@pytest.mark.parametrize(("storage", "sharded"), [(torch.uint8, False), (torch.bfloat16, True)])
def test_accelerate_shards_4_bit_weights_unless_they_are_kept_as_uint8(one_rank, storage, sharded):
    from types import SimpleNamespace

    import bitsandbytes
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, quant_type="nf4", quant_storage=storage)
    model = torch.nn.Sequential(layer.to("cpu"), torch.nn.Linear(64, 4))
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    asked = dict(state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", is_main_process=False)
    fsdp2_prepare_model(SimpleNamespace(**asked), model)
    found = {type(p).__name__ == "DTensor" for p in model[0].parameters()}
    assert found == {sharded} and type(model[1].weight).__name__ == "DTensor"


def test_trl_has_what_the_lesson_on_alignment_says_of_it():
    """Which trainers, a second model in float32 where nothing else is asked, and what it takes of the head."""
    trl = pytest.importorskip("trl")
    from trl.trainer import dpo_trainer, grpo_trainer, utils

    from minigpt.alignment.dpo import BETA
    from minigpt.alignment.grpo import EPSILON

    assert (BETA, EPSILON) == (argument(DPO, "beta"), argument(GRPO, "epsilon"))
    assert not hasattr(trl, "PPOTrainer") and find_spec("trl.experimental.ppo") is None
    assert 'dtype = kwargs.get("dtype", "float32")' in inspect.getsource(utils.create_model_from_path)
    source = inspect.getsource(dpo_trainer.DPOTrainer.__init__)
    assert "if is_peft_model(self.model) or (args.precompute_ref_log_probs and not self.is_fsdp_enabled):" in source
    assert 'model.add_adapter("ref", default_config)' in source  # of a model that was wrapped before
    assert "if self.beta == 0.0:" in inspect.getsource(grpo_trainer.GRPOTrainer.__init__)
    head = inspect.getsource(utils.add_fused_lm_head)
    assert "mask = labels != -100" in head and "hidden_states[mask]" in head
    text = (CONTENT / ALIGNMENT).read_text(encoding="utf8")
    for words in ("PPO trainer any more", "in float32 unless told", "frozen second adapter", "label is not -100"):
        assert words in text.replace("\n", " ")
