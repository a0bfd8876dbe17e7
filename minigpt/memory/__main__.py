"""The ledger from a shell: ``python -m minigpt.memory llama-7b --batch 4 --seq-len 512 --precision bf16``.

The model is a short name, or the path of a Hugging Face config.json. Every field of ``TrainingPlan`` is an
option. Imports no torch.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from minigpt.console import show
from minigpt.memory.buckets import BUCKETS
from minigpt.memory.families import KNOWN, Architecture
from minigpt.memory.plan import ALLOWED, TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.units import gb, gib, readable

HELP = {
    "batch": "sequences in one forward pass",
    "seq_len": "tokens in a sequence",
    "method": "what is trained",
    "precision": "dtypes of weights, gradients and moments; with adapters, the base's",
    "autocast": "run the forward under torch.autocast",
    "lora_dropout": "on each adapter's input",
    "modules_to_save": "trained whole beside the adapters: embedding, head or embedding,head",
    "quantization": "the frozen base's format, with method qlora",
    "optimizer_in_backward": "use and free each gradient at once",
    "zero_grad": "when gradients die",
    "step": "which step it is",
    "sequences": "whether rows are padded or packed",
    "loss": "whose loss, and whether all logits are made",
    "logits_to_keep": "logits of the last tokens alone; 0 keeps all",
    "rank": "of the adapters",
    "targets": "which matrices get an adapter: all-linear, or names such as q,v",
    "variant": "the adapters' formula; rslora costs what lora does",
    "adapter_dtype": "the adapters' dtype",
    "double_quantization": "quantize the scales of 4-bit weights too",
    "kbit_preparation": "upcast what is not in 4 bits, as peft's prepare_model_for_kbit_training does",
    "optimizer": "whose state is kept",
    "optimizer_loop": "how AdamW goes through the tensors",
    "attention": "one kernel, or the score matrix as a tensor",
    "holds": "what the loop keeps during backward",
    "checkpointing": "what is run again in backward instead of kept",
    "use_cache": "transformers' key-value cache",
    "upcast": "the loss copies 16-bit logits to float32",
    "card": "whose kernels run, such as T4; without one, a CPU's",
    "accumulation": "forward and backward passes before one step",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minigpt.memory", description="Predict one training step's memory.")
    parser.add_argument("model", help=f"a config.json, or one of {', '.join(KNOWN)}")
    for field in fields(TrainingPlan):
        option, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default, help=HELP[field.name])
        else:
            allowed = f": {', '.join(ALLOWED[field.name])}" if field.name in ALLOWED else ""
            help_text = f"{HELP[field.name]}{allowed} (default: {default})"
            kind = str if default is None else type(default)
            parser.add_argument(option, type=kind, default=default, metavar="VALUE", help=help_text)
    options = vars(parser.parse_args(arguments))
    try:
        architecture = Architecture.of(options.pop("model"))
        step = predict(architecture, TrainingPlan(**options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = [f"{architecture.parameters:,} parameters\n", f"{'bucket':<12} {'at its largest':>16} {'at the peak':>16}"]
    for bucket in BUCKETS:
        largest, at_peak = (readable(getattr(ledger, bucket)) for ledger in (step.ledger, step.peak))
        lines.append(f"{bucket:<12} {largest:>16} {at_peak:>16}")
    total = step.peak.total
    show("\n".join([*lines, "", f"peak: {gb(total)} = {gib(total)}, in {step.peak_at}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
