"""Counting adapters and the bytes they train with: the truth from peft and the meter, and the slips people make.

``counted`` asks peft, on a llama without contents. ``metered`` reads one real LoRA step of transformers and peft on
fake tensors. ``stays`` is ``predict`` for three ways to train a large model. The rest are hints for ``integer``,
``buckets`` and ``close``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod

import torch

from minigpt.memory.families import Architecture
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def counted(config: dict, rank: int, targets) -> int:
    """Parameters that peft trains on a llama with this config.json."""
    one = json.dumps({"model_type": "llama", **config, "num_hidden_layers": 1}, sort_keys=True)
    return config["num_hidden_layers"] * _counted(one, rank, tuple(targets))


@lru_cache(maxsize=64)
def _counted(config: str, rank: int, targets: tuple[str, ...]) -> int:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(config)))
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=list(targets)))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def metered(config: dict, rank: int, targets) -> dict[str, int]:
    """Bytes of one LoRA step on a bf16 llama by the meter; the frozen part without the rotary buffers."""
    key = json.dumps({"model_type": "llama", **config}, sort_keys=True)
    return dict(_metered(key, rank, ",".join(target.removesuffix("_proj") for target in targets)))


@lru_cache(maxsize=16)
def _metered(config: str, rank: int, targets: str) -> tuple[tuple[str, int], ...]:
    config = json.loads(config)
    plan = TrainingPlan(batch=1, seq_len=4, method="lora", precision="bf16", rank=rank, targets=targets)
    reading = measure(config, plan)
    rotary = 2 * 4 * (Architecture.of(config).head_dim // 2)  # two float32 buffers, which are no parameters
    return (
        ("frozen", reading.frozen - rotary), ("trainable", reading.trainable),
        ("gradients", reading.ledger.gradients), ("optimizer", reading.ledger.optimizer),
    )  # fmt: skip


def stays(name: str, rank: int) -> dict[str, int]:
    """Bytes between two steps of a KNOWN model in bf16, fully trained, with LoRA, and with LoRA on plain NF4."""
    four_bit = dict(double_quantization=False, kbit_preparation=False)
    plans = {"full": {}, "lora": dict(method="lora"), "qlora": dict(method="qlora", **four_bit)}
    return {
        method: predict(name, TrainingPlan(precision="bf16", rank=rank, **more)).ledger.persistent
        for method, more in plans.items()
    }


def count_slips(config: dict, rank: int, targets) -> dict[str, int]:
    """{mistake: parameters too many} in a count of adapters."""
    a = Architecture.of({"model_type": "llama", **config})
    C, L, width = a.n_embd, a.n_layer, config["hidden_size"] // config["num_attention_heads"]
    shapes = {f"{t.name}_proj": t.shape[::-1] for t in a.block_tensors() if t.kind == "linear"}  # (in, out)
    sums = {name: rank * (n_in + n_out) for name, (n_in, n_out) in shapes.items()}
    right = L * sum(sums[name] for name in targets)

    def others(**changes) -> int:
        return L * sum(rank * sum(changes.get(name, shapes[name])) for name in targets) - right

    wide = (C, a.n_head * a.head_dim)
    slips = {
        "k_proj and v_proj are counted as wide as q_proj, but the heads are grouped: there are fewer of them": others(
            k_proj=wide, v_proj=wide
        ),
        "q, k, v and o are taken for square matrices, C x C": others(
            q_proj=(C, C), k_proj=(C, C), v_proj=(C, C), o_proj=(C, C)
        ),
        "head_dim is taken as width / heads, but the configuration states it": others(
            q_proj=(C, a.n_head * width), o_proj=(a.n_head * width, C),
            k_proj=(C, a.n_kv_head * width), v_proj=(C, a.n_kv_head * width),
        ),
        "every matrix is taken for square, C x C": others(**dict.fromkeys(SEVEN, (C, C))),
        "the MLP is taken as 4 * width, but the configuration states intermediate_size": others(
            gate_proj=(C, 4 * C), up_proj=(C, 4 * C), down_proj=(4 * C, C)
        ),
        "only one block is counted": right // L - right,
        "r * in * out is counted: a rank of r makes two thin matrices, r * in and out * r": (
            L * sum(rank * prod(shapes[name]) for name in targets) - right
        ),
        "the matrices themselves are counted; they are frozen": L * sum(prod(shapes[name]) for name in targets),
        "only A is counted, r * in; B has out * r more": -L * sum(rank * shapes[name][1] for name in targets),
        "only B is counted, out * r; A has r * in more": -L * sum(rank * shapes[name][0] for name in targets),
        "the rank is forgotten: in + out is one row and one column": right // rank - right,
        "the head is adapted too; it lies outside the blocks and is left alone": rank * (C + a.vocab_size),
    }  # fmt: skip
    for name in SEVEN:
        if name in targets:
            slips[f"{name} is missing"] = -L * sums[name]
        else:
            slips[f"{name} is counted, and is no target"] = L * sums[name]
    if set(targets) != set(SEVEN):
        slips["all seven matrices are counted, but only the targets have an adapter"] = L * sum(sums.values()) - right
    if set(targets) != {"q_proj", "v_proj"}:
        slips["only q_proj and v_proj are counted, but the targets are others"] = (
            L * (sums["q_proj"] + sums["v_proj"]) - right
        )
    return {mistake: extra for mistake, extra in slips.items() if extra}


def bucket_slips(config: dict, rank: int, targets) -> dict[str, dict[str, int]]:
    """{bucket: {mistake: bytes too many}} of a LoRA step with float32 adapters on a bf16 base."""
    base, n = Architecture.of({"model_type": "llama", **config}).parameters, counted(config, rank, targets)
    tensors, L = 2 * len(targets) * config["num_hidden_layers"], config["num_hidden_layers"]
    adapters = {mistake: 4 * extra for mistake, extra in count_slips(config, rank, targets).items()}
    return {
        "frozen": {
            "these are float32 weights, but the base is bf16: 2 bytes a parameter": 2 * base,
            "the adapters are counted in it; they are trainable": 4 * n,
            "the adapters are counted in it, with 2 bytes; they are trainable": 2 * n,
            "half a byte a parameter is 4 bits; this base is bf16": base // 2 - 2 * base,
        },
        "trainable": {
            "2 bytes an adapter parameter; peft keeps adapters in float32 on a 16-bit base": -2 * n,
            "the frozen weights are counted in it": 2 * base, **adapters,
        },
        "gradients": {
            "2 bytes a gradient; it has its weight's dtype, and adapters are float32": -2 * n,
            "gradients are counted for all weights; frozen ones have none": 2 * base,
            "gradients are counted for the frozen weights, and only for them": 2 * base - 4 * n,
            "4-byte gradients are counted for all weights; frozen ones have none": 4 * base, **adapters,
        },
        "optimizer": {
            "AdamW's step counts are missing: a float32 for each tensor": -4 * tensors,
            "one step count is booked in all, and each tensor has its own": 4 - 4 * tensors,
            "one step count is booked for each layer; A and B are two tensors": -2 * tensors,
            "the step counts of one block only are booked": 4 * tensors // L - 4 * tensors,
            "4 bytes for both moments: one is missing, or they are booked in 16 bits; adapters' are float32": -4 * n,
            "a float32 master copy is booked; the adapters are float32 already": 4 * n,
            "moments are counted for all weights; frozen ones have none": 4 * base,
            "float32 moments are counted for all weights; frozen ones have none": 8 * base,
            **{mistake: 2 * extra for mistake, extra in adapters.items()},
        },
    }  # fmt: skip


def stays_mistakes(parameters: int, linears: int, adapters: int) -> dict[str, dict[str, float]]:
    """{mistake: {method: bytes}} for ``stays``, from the counts that the student is given."""
    P, n, N = parameters, linears, adapters
    right = {"full": 8 * P, "lora": 2 * P + 16 * N, "qlora": 0.5625 * n + 2 * (P - n) + 16 * N}
    return {
        "that is in GB; bytes are asked for": {method: nbytes / 1e9 for method, nbytes in right.items()},
        "that is in GiB; bytes are asked for": {method: nbytes / 2**30 for method, nbytes in right.items()},
        "16 bytes a parameter is float32, or autocast; here everything is bf16": {"full": 16 * P},
        "weights and gradients alone: AdamW's two moments are missing": {"full": 4 * P},
        "one of AdamW's two moments is missing": {"full": 6 * P, "lora": 2 * P + 12 * N},
        "float32 moments: AdamW's moments have their weight's dtype": {"full": 12 * P},
        "8 bytes an adapter's number: booked with 2 bytes each, or without the moments; all four are float32": {
            "lora": 2 * P + 8 * N, "qlora": 0.5625 * n + 2 * (P - n) + 8 * N
        },
        "only the adapters' weights are booked; they have gradients and two moments as well": {
            "lora": 2 * P + 4 * N, "qlora": 0.5625 * n + 2 * (P - n) + 4 * N
        },
        "the adapters' own bytes are missing": {"lora": 2 * P, "qlora": 0.5625 * n + 2 * (P - n)},
        "gradients are booked for the frozen weights": {"lora": 4 * P + 16 * N},
        "gradients and moments are booked for the frozen weights": {"lora": 8 * P + 16 * N},
        "everything is booked in 4 bits; embeddings, head and norms stay in bf16": {
            "qlora": 0.5625 * P + 16 * N
        },
        "everything is booked in 4 bits, and the scales are missing": {"qlora": 0.5 * P + 16 * N},
        "the scales are missing: a float32 for each block of 64 weights": {"qlora": 0.5 * n + 2 * (P - n) + 16 * N},
        "the scales are booked with 2 bytes: they are float32": {"qlora": 0.53125 * n + 2 * (P - n) + 16 * N},
        "4 bits are half a byte, and 4 bytes a parameter are booked": {"qlora": 4 * n + 2 * (P - n) + 16 * N},
        "one byte a parameter is 8 bits": {"qlora": (1 + 1 / 16) * n + 2 * (P - n) + 16 * N},
        "what is not 4-bit is booked in float32; that is peft's preparation, left out here": {
            "qlora": 0.5625 * n + 4 * (P - n) + 16 * N
        },
        "what is not 4-bit is missing: embeddings, head and norms": {"qlora": 0.5625 * n + 16 * N},
        "double quantization is counted; here the scales stay float32": {
            "qlora": (0.5 + 1 / 64 + 4 / 64 / 256) * n + 2 * (P - n) + 16 * N
        },
    }  # fmt: skip
