"""The real stack, one run at a time: transformers, peft and bitsandbytes, or Unsloth, from plain options.

``fine_tune`` is for a process of its own (``minigpt.memory.measured.apart``), since Unsloth changes the other
libraries when it is imported. It loads a model from a folder in 4 bits, puts adapters on it, trains it with
transformers' Trainer (with Unsloth: trl's SFTTrainer, as Unsloth's own documentation does), and has the meter watch
the second step; on a GPU the third, after one that is recorded (``measured.record``):

    a step begins               Trainer.training_step, its first micro-batch      the meter starts
    forward, then backward      around Trainer.compute_loss, each micro-batch
    clipping, then the update   on_pre_optimizer_step ... on_optimizer_step       the meter stops

The options are those of BitsAndBytesConfig, LoraConfig and TrainingArguments, as dictionaries that JSON can hold.

``save_tiny_llama`` makes a llama that needs no download: random weights, and a tokenizer whose tokens are bytes.
Left out: evaluation inside Trainer, saving, several GPUs.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minigpt.memory.collector import at_rest
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.record import Seen, recording
from minigpt.model import IGNORE

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TINY: dict[str, Any] = dict(
    model_type="llama", vocab_size=256, hidden_size=128, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    bos_token_id=None, eos_token_id=0, pad_token_id=0,
    initializer_range=0.1,  # a frozen head of the usual 0.02 cannot tell one byte from another
)  # fmt: skip
# The step that the meter watches: the first has no optimizer state until its end. On a GPU it is recorded, without the
# meter, which watches the next one then.
METERED = 2
OURS = dict(  # what a run here needs of TrainingArguments, whatever was given
    output_dir=".", report_to="none", push_to_hub=False, save_strategy="no", eval_strategy="no",
    logging_strategy="steps", logging_steps=1, disable_tqdm=True,
)  # fmt: skip
CHECKPOINTING = "gradient_checkpointing"  # of TrainingArguments
HUB_SECONDS = 10  # without an answer from the hub for so long, it is not reachable


# ---------------------------------------------------------------- in the notebook's process


def save_tiny_llama(folder: str | os.PathLike, seed: int = 0) -> str:
    """Write a llama of the sizes TINY with random bfloat16 weights, and its tokenizer; returns the folder's path."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(Path(folder).resolve())


def byte_tokenizer():
    """A tokenizer whose tokens are the bytes of UTF-8, as in ``minigpt.data``; byte 0 ends a text and fills rows.

    Byte 0 is written as "Ā". Call it with ``split_special_tokens=True``, or that letter in a text becomes byte 0.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The library writes a byte as one visible character: Latin-1's own, or one from 256 up where it has none.
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in letters.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=letters[0], pad_token=letters[0])


def fetch(name: str | os.PathLike) -> str:
    """The folder of a model: ``name`` itself if it is one, or a download from Hugging Face's hub, kept in its cache.

    Raises ValueError for a folder that is not there and a name that the hub does not know, and ConnectionError if the
    hub cannot be reached and the cache does not have the model; that takes seconds, not minutes.
    """
    name = os.path.expanduser(os.fspath(name))
    if os.path.isdir(name):
        return str(Path(name).resolve())
    above = os.path.dirname(name)
    if name.startswith((".", "~", os.sep)) or name.count("/") > 1 or above and os.path.isdir(above):
        raise ValueError(f"the model {name!r} is no folder; give a folder or a name on the hub, owner/model")
    from httpx import HTTPError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    wanted: dict[str, Any] = dict(allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"], ignore_patterns="*/*")
    try:
        try:
            HfApi().model_info(name, timeout=HUB_SECONDS)  # a download would wait far longer for a silent hub
        except (OSError, HTTPError) as error:
            try:
                return snapshot_download(name, local_files_only=True, **wanted)  # from an earlier download
            except OSError:
                raise error from None
        return snapshot_download(name, **wanted)
    except (OSError, ValueError, HTTPError) as error:
        known = not isinstance(error, (RepositoryNotFoundError, HFValidationError))
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        kind = ConnectionError if known else ValueError
        raise kind(f"the model {name!r} cannot be fetched from the hub ({reason})") from None


def pair_rows(pairs: Sequence, tokenizer, seq_len: int) -> list[dict[str, list[int]]]:
    """Prompts and answers (``minigpt.data.Example``) as rows of ``seq_len`` tokens, {"input_ids", "labels"}.

    Labels are the row itself, with IGNORE in the prompt and after the end; a model of transformers shifts them. No
    attention mask: what is filled up lies after the answer, where a causal model never looks.
    Raises ValueError for a pair that does not fit.
    """
    rows, plain = [], dict(add_special_tokens=False, split_special_tokens=True)  # whatever stands there is text
    for pair in pairs:
        prompt, answer = (tokenizer(text, **plain).input_ids for text in (pair.prompt, pair.answer))
        tokens = [*prompt, *answer, tokenizer.eos_token_id]
        empty = seq_len - len(tokens)
        if empty < 0:
            raise ValueError(f"seq_len is {seq_len}, but {pair.prompt!r} and its answer have {len(tokens)} tokens")
        labels = [IGNORE] * len(prompt) + tokens[len(prompt) :] + [IGNORE] * empty
        rows.append({"input_ids": tokens + [tokenizer.eos_token_id] * empty, "labels": labels})
    return rows


# ---------------------------------------------------------------- in a process of its own


def fine_tune(
    *, path: str, quantization: dict, adapters: dict, training: dict, rows: list[dict], held_out: list[dict],
    eval_every: int = 0, device: str = "cpu", unsloth: bool = False, seed: int = 0, record: str | None = None,
) -> dict:  # fmt: skip
    """Train adapters on the model in ``path`` by the options, and meter one step.

    ``rows`` and ``held_out`` are ``pair_rows``. OURS, the device and the seed win over ``training``. One ``seed`` gives
    the same adapters and the same order of rows, with Unsloth or without. Where ``training`` says nothing of
    ``gradient_checkpointing``, each library does what it does by itself: peft's preparation and Unsloth turn it on.

    On a GPU, with three steps or more, the second goes without the meter: for the allocator's counters, ``card`` of
    "memory", and what it asked for into the file ``record``.

    Returns {"memory": StepMemory, "losses": a mean loss for each step, "validation": [(steps done, loss), ...] from
    before the first step to after the last, and each ``eval_every`` steps between (0: none), in nats per target token,
    "optimizer": its name in the arguments as they were in the end, "dtypes": {"adapters", "rest"} of the
    parameters, "said": warnings from training}. Raises ValueError for fewer than 2 steps.
    """
    if training.get("max_steps", 0) < METERED:
        raise ValueError(f"max_steps is {training.get('max_steps')!r}; the meter needs at least {METERED}")
    if device == "cpu":
        os.environ["UNSLOTH_FORCE_CPU"] = "1"  # also where there is a GPU
    else:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # Trainer would spread the batch over all of them
    training = {**training, **OURS, "use_cpu": device == "cpu", "seed": seed}
    make = _unsloth if unsloth else _peft
    with at_rest():  # it imports the libraries
        trainer = make(path, quantization, adapters, training, rows, device)
    batch, last = trainer.args.per_device_train_batch_size, trainer.args.max_steps
    validation: list[tuple[int, float]] = []

    def look(step: int) -> None:
        if step in (0, last) or eval_every and step % eval_every == 0:
            with warnings.catch_warnings(action="ignore"):  # those of checkpointing: it finds no gradient to make
                validation.append((step, evaluate(trainer.model, held_out, batch, trainer.args.bf16)))

    look(0)
    if device != "cpu":
        torch.cuda.empty_cache()  # of what that took: reserved is of the training
        trainer.record_second(record)
    trainer.after_step = look
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with trainer.recorded:
            trainer.train()
    floating = [p for p in trainer.model.parameters() if p.is_floating_point()]  # not the packed 4 bits
    dtypes = {"adapters": {p.dtype for p in floating if p.requires_grad}}
    dtypes["rest"] = {p.dtype for p in floating if not p.requires_grad}
    return {
        "memory": replace(trainer.meter.result(), card=trainer.seen and trainer.seen.card),
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "validation": validation,
        "optimizer": trainer.args.optim.value,
        "dtypes": {name: ", ".join(sorted(str(kind)[6:] for kind in kinds)) for name, kinds in dtypes.items()},
        "said": list(dict.fromkeys(str(warning.message) for warning in caught)),
    }


def _peft(path, quantization, adapters, training, rows, device):
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

    arguments = TrainingArguments(**training)
    model = AutoModelForCausalLM.from_pretrained(
        path, quantization_config=BitsAndBytesConfig(**quantization), dtype=torch.bfloat16, device_map={"": device}
    )
    said = {"use_gradient_checkpointing": arguments.gradient_checkpointing} if CHECKPOINTING in training else {}
    model = prepare_model_for_kbit_training(model, **said)
    torch.manual_seed(training["seed"])  # of the adapters' start; Unsloth sets it in the same place
    adapted = get_peft_model(model, LoraConfig(**adapters))
    return _with_meter(Trainer, model=adapted, args=arguments, train_dataset=rows)


def _unsloth(path, quantization, adapters, training, rows, device):
    from unsloth import FastLanguageModel  # isort: skip  before the libraries that it patches

    import datasets
    import trl
    from transformers import default_data_collator

    model, tokenizer = FastLanguageModel.from_pretrained(
        path, max_seq_length=len(rows[0]["input_ids"]), dtype=torch.bfloat16, load_in_4bit=quantization["load_in_4bit"]
    )
    model = FastLanguageModel.get_peft_model(
        model, r=adapters["r"], lora_alpha=adapters["lora_alpha"], lora_dropout=0, target_modules=SEVEN,
        random_state=training["seed"],
        **({"use_gradient_checkpointing": training[CHECKPOINTING]} if CHECKPOINTING in training else {}),
    )  # fmt: skip
    # The rows are tokens already, all of one length.
    arguments = trl.SFTConfig(**training, max_length=None, dataset_kwargs={"skip_prepare_dataset": True})
    return _with_meter(
        trl.SFTTrainer, model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer, data_collator=default_data_collator,
    )  # fmt: skip


def _with_meter(kind: Any, **arguments):
    """A trainer of this kind, with ``meter`` for the step METERED."""
    from transformers import TrainerCallback

    class Metered(kind):
        meter: MemoryMeter | None = None
        metered = METERED
        seen: Seen | None = None  # the step before it, where that is recorded
        recorded = contextlib.ExitStack()  # closed also by an error

        def record_second(self, path: str | None) -> None:
            """Record step METERED into ``path``, and meter the next one, if there is one."""
            if self.args.max_steps > METERED:
                self.metered, self.record = METERED + 1, path

        def after_step(self, step: int) -> None:
            """Nothing, unless somebody wants to look: ``step`` steps are done."""

        def training_step(self, model, inputs, *more):
            if self.seen is None and METERED <= self.state.global_step + 1 < self.metered:
                self.seen = self.recorded.enter_context(recording(self.record))
            if self.meter is None and self.state.global_step == self.metered - 1:
                self.meter = MemoryMeter(model, self.optimizer, tuple(inputs.values()))
                self.meter.__enter__()
            return super().training_step(model, inputs, *more)

        def compute_loss(self, *inputs, **more):
            self.mark("forward")
            loss = super().compute_loss(*inputs, **more)
            self.mark("backward")
            return loss

        def mark(self, phase: str) -> None:
            if self.meter is not None:
                self.meter.mark(phase)

    class Stages(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **more):
            trainer.mark("step")

        def on_optimizer_step(self, args, state, control, **more):
            if state.global_step == trainer.metered - 1 and trainer.meter is not None:
                trainer.meter.__exit__(None, None, None)
            trainer.recorded.close()

        def on_step_end(self, args, state, control, **more):
            trainer.after_step(state.global_step)

    trainer = Metered(callbacks=[Stages()], **arguments)
    return trainer


@torch.no_grad()
def evaluate(model: torch.nn.Module, rows: list[dict], batch: int, autocast: bool) -> float:
    """The mean loss over all target tokens of ``rows``, in nats; ``autocast`` computes in bfloat16, as Trainer does.

    The model stays in training mode, which without dropout computes the same: in evaluation mode bitsandbytes 0.50
    packs a layer's weight for some CPUs' inference kernel and never unpacks it, and later gradients are wrong.
    """
    model.train()
    device, total, count = next(model.parameters()).device, 0.0, 0
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        tokens, labels = (torch.tensor([row[key] for row in part], device=device) for key in ("input_ids", "labels"))
        n = int((labels[:, 1:] != IGNORE).sum())
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            total += model(input_ids=tokens, labels=labels, use_cache=False).loss.item() * n
        count += n
    return total / count
