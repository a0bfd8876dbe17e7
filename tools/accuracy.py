"""Prediction against measurement, case by case, and against published readings of real GPUs: ``make accuracy``.

Every case builds the real model (MiniGPT's code, or transformers'), trains it for two steps and meters the
second; the prediction never sees it. Fake tensors run every case; real CPU tensors run a part of them too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from tqdm import tqdm

from minigpt.memory import BUCKETS, StepMemory, TrainingPlan, predict
from minigpt.model import GPTConfig
from tools.published import compare_published, table


def llama(**changes) -> dict:
    """A small llama-family configuration, as a config.json's contents."""
    sizes = dict(
        model_type="llama", vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=2048,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return {**sizes, **changes}


def gpt2(**changes) -> dict:
    sizes = dict(
        model_type="gpt2", vocab_size=512, n_embd=64, n_layer=3, n_head=4, n_positions=256, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, loss_type="ForCausalLM",
    )  # fmt: skip
    return {**sizes, **changes}


EIGHT = dict(num_experts=8, moe_intermediate_size=48)


def mixture(family: str, **changes) -> dict:
    """A small mixture of experts, of which a token has two."""
    return llama(**{"model_type": family, "num_experts_per_tok": 2, **changes})


def older(kind: str, **changes) -> dict:
    sizes = dict(
        model_type=kind, vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=256, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    if kind == "bloom":
        del sizes["max_position_embeddings"]
    return {**sizes, **changes}


MODELS = {
    "minigpt": GPTConfig(n_layer=3, n_embd=64, n_head=4, vocab_size=256, context=256),
    "minigpt-nano": GPTConfig.preset("nano"),
    "minigpt-micro": GPTConfig.preset("micro"),
    "minigpt-16-tokens": GPTConfig(n_layer=2, n_embd=64, n_head=4, vocab_size=16),  # peak inside a block
    "minigpt-5000-tokens": GPTConfig(n_layer=1, n_embd=64, n_head=4, vocab_size=5000),  # peak at the tied head
    "llama-grouped": llama(),
    "llama-ungrouped": llama(num_key_value_heads=4),
    "llama-one-key-head": llama(num_key_value_heads=1),
    "llama-tied": llama(tie_word_embeddings=True, vocab_size=3000),
    "llama-biased": llama(attention_bias=True, mlp_bias=True, vocab_size=16),
    "llama-dropout": llama(attention_dropout=0.1, hidden_act="gelu_new"),
    "mistral": llama(model_type="mistral"),
    "mistral-window": llama(model_type="mistral", sliding_window=64),
    "qwen2-tied": llama(model_type="qwen2", tie_word_embeddings=True),
    "qwen3-wide-heads": llama(model_type="qwen3", head_dim=32),
    "mixtral": mixture("mixtral", num_local_experts=8, intermediate_size=48),
    "qwen2-moe": mixture("qwen2_moe", **EIGHT, shared_expert_intermediate_size=128),
    "qwen3-moe": mixture("qwen3_moe", **EIGHT, decoder_sparse_step=2, num_hidden_layers=4, attention_bias=True),
    "gpt-oss": mixture("gpt_oss", num_local_experts=8, intermediate_size=48, sliding_window=32),
    "phi3": llama(model_type="phi3", tie_word_embeddings=True),
    "phi3-partly-rotated": llama(model_type="phi3", partial_rotary_factor=0.75, sliding_window=80, resid_pdrop=0.1),
    "phi": llama(model_type="phi"),
    "phi-dropout": llama(
        model_type="phi", hidden_act="gelu", resid_pdrop=0.1, embd_pdrop=0.1, tie_word_embeddings=True
    ),
    "gemma": llama(model_type="gemma", num_key_value_heads=1),
    "gemma2": llama(model_type="gemma2", head_dim=24),
    "gemma2-window": llama(model_type="gemma2", sliding_window=64, attn_logit_softcapping=None),
    "gemma3": llama(model_type="gemma3_text", tie_word_embeddings=False),
    "gemma3-window": llama(model_type="gemma3_text", sliding_window=96, sliding_window_pattern=2),
    "granite": llama(model_type="granite", attention_dropout=0.1, logits_scaling=8.0),
    "smollm3": llama(model_type="smollm3", num_hidden_layers=4, use_sliding_window=True, sliding_window=80),
    "olmo2": llama(model_type="olmo2", num_key_value_heads=1, attention_bias=True),
    "starcoder2": llama(model_type="starcoder2", sliding_window=80, residual_dropout=0.1, embedding_dropout=0.1),
    "gpt-neox": older("gpt_neox", intermediate_size=256),
    "gpt-neox-serial": older("gpt_neox", intermediate_size=256, use_parallel_residual=False, hidden_dropout=0.1),
    "falcon": older("falcon"),
    "falcon-grouped": older("falcon", new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon-serial": older("falcon", multi_query=False, parallel_attn=False, bias=True, hidden_dropout=0.1),
    "opt": older("opt", ffn_dim=256, dropout=0.1, word_embed_proj_dim=64),
    "opt-narrow": older("opt", ffn_dim=256, dropout=0.0, word_embed_proj_dim=32, do_layer_norm_before=False),
    "bloom": older("bloom", hidden_dropout=0.1),
    "gpt2": gpt2(),
    "gpt2-fused-gelu": gpt2(activation_function="gelu_pytorch_tanh"),
    "gpt2-untied": gpt2(tie_word_embeddings=False),
}
MIXTURES = ("mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss")
OUTPUTS: dict[str, Any] = dict(holds="outputs", use_cache=True)  # what transformers does if nobody asks otherwise


@dataclass(frozen=True)
class Case:
    model: str
    plan: TrainingPlan

    @property
    def needs_values(self) -> bool:
        """Whether it needs real tensors: for bitsandbytes, or a product of experts that is fake in bfloat16 alone."""
        four_bit = self.plan.method == "qlora" and not self.model.startswith("minigpt")
        experts = self.model in MIXTURES and self.plan.precision != "bf16"
        return four_bit or experts or self.plan.optimizer == "adamw8bit"

    def __str__(self) -> str:
        plan = self.plan
        changed = {k: v for k, v in vars(plan).items() if v != getattr(TrainingPlan(), k)}
        shape = f"{changed.pop('batch', plan.batch)}x{changed.pop('seq_len', plan.seq_len)}"
        return " ".join([self.model, shape, *(f"{k}={v}" for k, v in changed.items())])


def _cached(name: str, held: dict[str, Any]) -> dict[str, Any]:
    """``held`` without the cache that MiniGPT has not."""
    return {**held, "use_cache": False} if name.startswith("minigpt") else held


def cases() -> list[Case]:
    """The grid, and beside it each switch of the plan once a model."""
    grid = [
        Case(
            name,
            TrainingPlan(batch=batch, seq_len=seq_len, precision=precision, attention=attention, **_cached(name, held)),
        )
        for name, precision, attention, (batch, seq_len), held in product(
            MODELS, ("fp32", "bf16", "bf16-autocast"), ("sdpa", "eager"), ((1, 64), (4, 128)), ({}, OUTPUTS)
        )
        if not (held and name.startswith("minigpt") and batch == 1)
    ]
    switches: list[dict[str, Any]] = [
        dict(accumulation=2), dict(optimizer_loop="single"), dict(optimizer_loop="fused"), dict(optimizer="sgd"),
        dict(precision="bf16-adam32"), dict(precision="fp16-autocast"), dict(precision="bf16-master"),
        dict(precision="bf16-master-grad32"), dict(precision="bf16-master-grad16+32"),
        dict(precision="bf16", holds="outputs", accumulation=2), dict(batch=1, seq_len=1),
        dict(precision="bf16-autocast", attention="eager", use_cache=True), dict(use_cache=True),
        dict(checkpointing="full"), dict(checkpointing="full", precision="bf16", attention="eager", holds="outputs"),
        dict(checkpointing="full", precision="bf16-autocast", accumulation=2),
    ]  # fmt: skip
    single = [
        Case(name, TrainingPlan(**{"batch": 3, "seq_len": 96, **switch}))
        for name in MODELS
        for switch in switches
        if not ("use_cache" in switch and name.startswith("minigpt"))  # which has no cache
    ]
    own = [Case("minigpt", TrainingPlan(batch=3, seq_len=96, precision="bf16", upcast=False))]
    return grid + single + own


def adapter_cases() -> list[Case]:
    """LoRA, rsLoRA, DoRA, each on 4 bits too: peft and bitsandbytes on Hugging Face models, our own on MiniGPT."""
    lora: list[dict[str, Any]] = [
        dict(precision=precision, targets=targets)
        for precision, targets in product(("fp32", "bf16", "bf16-autocast"), ("all-linear", "q,v"))
    ]
    lora += [
        dict(precision="bf16", adapter_dtype="same"), dict(precision="bf16", rank=16, optimizer="adamw8bit"),
        dict(precision="bf16", attention="eager", holds="outputs"), dict(precision="bf16", batch=1, accumulation=2),
        dict(precision="bf16", checkpointing="full"), dict(checkpointing="full", targets="q,v", attention="eager"),
    ]  # fmt: skip
    qlora: list[dict[str, Any]] = [
        dict(precision=precision, double_quantization=double, kbit_preparation=prepared)
        for precision, double, prepared in product(("bf16", "bf16-autocast"), (True, False), (True, False))
        if prepared or precision == "bf16"
    ]
    qlora += [dict(precision="bf16", targets="up,down"), dict(precision="bf16", rank=16, optimizer="adamw8bit")]
    qlora += [dict(precision="bf16", kbit_preparation=prepared, checkpointing="full") for prepared in (True, False)]
    few: dict[str, Any] = dict(batch=1, seq_len=8)  # few tokens: what is made of a weight for a moment is the peak
    variants: list[dict[str, Any]] = [
        dict(method="lora", variant="dora", precision=precision, targets=targets, **tokens)
        for precision, targets in product(("fp32", "bf16", "bf16-autocast"), ("all-linear", "q,v"))
        for tokens in ({}, few)
    ]
    variants += [
        dict(method="qlora", variant="dora", precision=precision, double_quantization=double, **tokens)
        for precision, double in product(("bf16", "bf16-autocast"), (True, False))
        for tokens in ({}, few)
    ]
    variants += [
        dict(method="lora", variant="dora", precision="bf16", adapter_dtype="same"),
        dict(method="qlora", variant="dora", precision="bf16", kbit_preparation=False, targets="up,down", **few),
        dict(method="lora", variant="rslora"), dict(method="qlora", variant="rslora", precision="bf16"),
        dict(method="qlora", precision="bf16", **few), dict(method="qlora", precision="bf16-autocast", **few),
        dict(method="lora", variant="dora", precision="bf16", checkpointing="full"),
        dict(method="qlora", variant="dora", precision="bf16", checkpointing="full", **few),
    ]  # fmt: skip
    switches = [dict(method="lora", **kw) for kw in lora] + [dict(method="qlora", **kw) for kw in qlora] + variants
    names = (
        "minigpt", "llama-grouped", "llama-tied", "mistral", "qwen2-tied", "qwen3-wide-heads", "phi3", "phi", "gemma",
        "gemma2", "gemma3", *MIXTURES,
    )  # fmt: skip
    return [
        Case(name, TrainingPlan(**{"batch": 3, "seq_len": 96, **switch, **_targets(name, switch)}))
        for name in names
        for switch in switches
        if name not in MIXTURES or not (switch.get("variant") == "dora" or "up" in switch.get("targets", ""))
    ]


def _targets(name: str, switch: dict) -> dict:
    """The targets by the model's own names: some families have one matrix where llama has several."""
    own = {"q,v": "qkv", "up,down": "gate_up,down"} if name.startswith("phi3") else {}
    targets = switch.get("targets", "all-linear")
    return dict(targets=own.get(targets, targets))


def compare(case: Case, device: str) -> tuple[StepMemory, StepMemory]:
    """(predicted, measured)."""
    from minigpt.memory.measured.step import measure

    model = MODELS[case.model]
    return predict(model, case.plan), measure(model, case.plan, device)


def errors(predicted: StepMemory, measured: StepMemory) -> dict[str, tuple[int, float]]:
    """(bytes, share) that the prediction is above the measurement: for each bucket but temporary, and the peak."""
    pairs = {b: (getattr(predicted.ledger, b), getattr(measured.ledger, b)) for b in BUCKETS if b != "temporary"}
    pairs["peak"] = (predicted.peak.total, measured.peak.total)
    return {name: (p - m, (p - m) / m if m else float(p != m)) for name, (p, m) in pairs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=4, metavar="N", help="run each N-th case on real tensors too")
    every = parser.parse_args().every
    if every < 1:
        print(f"error: --every is {every}; it must be at least 1", file=sys.stderr)
        return 2
    published = compare_published()
    print(table(published) + "\n")
    full, adapted = cases(), adapter_cases()
    runs = [("full, fake tensors", case, "fake") for case in full if not case.needs_values]
    runs += [("full, real tensors", case, "cpu") for i, case in enumerate(full) if case.needs_values or i % every == 0]
    runs += [("adapters, fake tensors", case, "fake") for case in adapted if not case.needs_values]
    runs += [("adapters, real tensors", case, "cpu") for case in adapted if case.needs_values]
    rows = [(group, case, errors(*compare(case, device))) for group, case, device in tqdm(runs, unit="case")]
    print(f"{'':<24}{'bucket':<12} {'cases':>5} {'exact':>6} {'median':>8} {'worst':>8}  worst case")
    held = True
    for group in dict.fromkeys(group for group, _, _ in runs):
        chosen = [(case, found) for where, case, found in rows if where == group]
        for name in chosen[0][1]:
            shares = [abs(found[name][1]) for _, found in chosen]
            exact = sum(found[name][0] == 0 for _, found in chosen)
            worst = max(range(len(chosen)), key=shares.__getitem__)
            where = f"{chosen[worst][0]} ({chosen[worst][1][name][0]:+,} B)" if shares[worst] else ""
            row = f"{group:<24}{name:<12} {len(chosen):>5} {exact:>6} {median(shares):>8.3%} {shares[worst]:>8.3%}"
            print(f"{row}  {where}")
            held &= shares[worst] == 0 if name in ("weights", "gradients", "optimizer") else shares[worst] < 0.01
    print("weights, gradients and optimizer exact, activations and peak within 1%: " + ("yes" if held else "NO"))
    reached = [abs(row.error) for row in published if row.predicted is not None]
    close = median(reached) < 0.03 and max(reached) < 0.1
    print("published readings within 3% in the median and 10% at worst: " + ("yes" if close else "NO"))
    return 0 if held and close else 1


if __name__ == "__main__":
    sys.exit(main())
