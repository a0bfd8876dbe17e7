"""measure_dpo(model, plan): a step of DPO, run for real under the meter.

MiniGPT is trained by hand (``minigpt.alignment.dpo``), a Hugging Face model by trl's own DPOTrainer: its collator, its
``compute_loss``, its reference. trl's two Triton kernels are done by torch there (``trl_head``). The second of two
steps is measured, as in ``measure``.

Left out: trl's data pipeline, its clipping of gradients and its logging, none of which is there at the peak.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.alignment.dpo import Pairs, dpo_step, log_probabilities
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.adapters import quantize, target_modules
from minigpt.memory.measured.building import build
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.models import base_model, checkpoint_model, configuration
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.preferences import check_dpo
from minigpt.model import IGNORE, GPTConfig

Mark = Callable[[str], None]
Step = Callable[[Mark], None]


def measure_dpo(model, plan: TrainingPlan, *, reference: str = "copy", prompt: int = 1) -> StepMemory:
    """The memory of one step of DPO on a CPU, metered. The arguments are those of ``predict_dpo``, and its errors."""
    check_dpo(model, plan, reference, prompt)
    if isinstance(model, GPTConfig):
        return _by_hand(model, plan, reference, prompt)
    return _by_trl(model, plan, reference, prompt)


def measure_dpos(model, steps: list, prompt: int = 1) -> list[StepMemory]:
    """The same of several steps, [plan, reference] each: in a process of their own, trl is imported once."""
    return [measure_dpo(model, plan, reference=reference, prompt=prompt) for plan, reference in steps]


def _metered(
    models: list[nn.Module], optimizer, inputs: tuple[Tensor, ...], step: Callable[[Mark], None]
) -> StepMemory:
    """The second of two steps."""
    step(lambda phase: None)
    optimizer.zero_grad()
    with MemoryMeter(nn.ModuleList(models), optimizer, inputs) as meter:
        step(meter.mark)
    result = meter.result()
    # trl leaves the reference as it is loaded, with weights that could take a gradient and never do.
    idle = [p for other in models[1:] for p in other.parameters() if p.requires_grad]
    return replace(result, frozen=result.frozen + sum(p.nbytes for p in idle))


def _by_hand(config: GPTConfig, plan: TrainingPlan, reference: str, prompt: int) -> StepMemory:
    model = build(config, plan, "cpu")
    optimizer = make_optimizer(model, plan)
    pairs = make_pairs(config.vocab_size, plan, prompt)
    wanted: nn.Module | Tensor | None = None
    if reference == "copy":
        wanted = copy.deepcopy(model).requires_grad_(False)
    if reference == "precomputed":
        with torch.no_grad():
            wanted = log_probabilities(model, pairs)
    inputs = (*pairs, wanted) if isinstance(wanted, Tensor) else pairs
    models = [model, wanted] if isinstance(wanted, nn.Module) else [model]

    def step(mark: Mark) -> None:
        dpo_step(model, optimizer, pairs, wanted, mark=mark)

    return _metered(models, optimizer, inputs, step)


def make_pairs(words: int, plan: TrainingPlan, prompt: int) -> Pairs:
    """Random tokens: ``plan.batch`` pairs of ``plan.seq_len`` tokens, of which the first ``prompt`` are shared."""
    tokens = torch.randint(0, words, (2 * plan.batch, plan.seq_len))
    tokens[plan.batch :, :prompt] = tokens[: plan.batch, :prompt]
    targets = torch.full_like(tokens, IGNORE)
    targets[:, prompt - 1 : -1] = tokens[:, prompt:]
    return Pairs(tokens, targets)


# ---------------------------------------------------------------- trl


def _by_trl(config, plan: TrainingPlan, reference: str, prompt: int) -> StepMemory:
    from minigpt.memory.measured.trl_head import trl_head

    with tempfile.TemporaryDirectory() as folder, trl_head():
        trainer = dpo_trainer(config, plan, reference, folder)
        model = trainer.model
        if plan.checkpointing != "none":
            checkpoint_model(model, plan)
        optimizer = make_optimizer(model, plan)
        inputs = trl_batch(trainer, plan, prompt)
        prepared = trainer.accelerator.prepare_model(model)

        def step(mark: Mark) -> None:
            mark("forward")
            loss = trainer.compute_loss(prepared, inputs)
            mark("backward")
            loss.backward()
            mark("step")
            optimizer.step()

        models = [model, *filter(None, [trainer.ref_model])]
        return _metered(models, optimizer, tuple(inputs.values()), step)


def dpo_trainer(config, plan: TrainingPlan, reference: str, folder: str):
    """trl's DPOTrainer for ``plan``, with nothing else than its defaults; it writes into ``folder``."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from minigpt.real import byte_tokenizer

    config = configuration(config)
    base: Any = base_model(config, plan).train()  # transformers' own, of a Hugging Face configuration
    if plan.method == "qlora":
        quantize(base, plan)
        base.is_loaded_in_4bit = True  # as from_pretrained says it; trl asks
    options = DPOConfig(
        output_dir=folder, report_to="none", use_cpu=True, per_device_train_batch_size=plan.batch, max_length=None,
        bf16=plan.autocast_dtype == "bfloat16", gradient_checkpointing=plan.checkpointing != "none",
        precompute_ref_log_probs=reference == "precomputed", disable_tqdm=True,
    )  # fmt: skip
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    return DPOTrainer(
        base, copy.deepcopy(base) if reference == "copy" else None, options, train_dataset=Dataset.from_list([pair]),
        processing_class=byte_tokenizer(), peft_config=_adapters(base, plan),
    )  # fmt: skip


def _adapters(base, plan: TrainingPlan):
    if plan.method == "full":
        return None
    from peft import LoraConfig

    own = plan.targets == "peft"  # left to it
    targets = None if own else target_modules(base, base.get_output_embeddings(), plan)
    return LoraConfig(r=plan.rank, target_modules=targets, task_type="CAUSAL_LM", use_rslora=plan.variant == "rslora")


def trl_batch(trainer, plan: TrainingPlan, prompt: int) -> dict[str, Tensor]:
    """What trl's collator makes of random pairs."""
    words = trainer.model.config.vocab_size
    rows = []
    for ids in torch.randint(1, words, (plan.batch, 3, plan.seq_len)).tolist():
        first, chosen, rejected = ids
        row = {"prompt_ids": first[:prompt], "chosen_ids": chosen[prompt:], "rejected_ids": rejected[prompt:]}
        if trainer.precompute_ref_logps:
            row |= {"ref_chosen_logps": -1.0, "ref_rejected_logps": -1.0}
        rows.append(row)
    return trainer.data_collator(rows)
