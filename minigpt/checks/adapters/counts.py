"""Counting adapters, and the bytes they train with: the truths are peft's and the meter's.

    counts(answer, (what, config, rank, targets))      ``answer(config, rank, targets)``: parameters
    stays(answer, (config, rank, targets), only)       ``answer(config, parameters, rank, targets)``: bytes by bucket
    regimes(answer, (name, rank), only)                ``answer(parameters, linears, adapters)``: bytes of three ways

A count is peft's, on a llama without contents. A step is one of transformers and peft, on fake tensors. What the three
ways keep is ``predict``'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import prod

import torch

from minigpt.checks.closing import by_hand, knows, remembered
from minigpt.checks.comparing import buckets, close, integer
from minigpt.checks.counting.parameters import with_type
from minigpt.checks.naming import Hints, times
from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import KNOWN, Architecture
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.real import SEVEN

knows(__name__)
BUCKETS, REGIMES = ("frozen", "trainable", "gradients", "optimizer"), ("full", "lora", "qlora")


def counts(answer: Callable, case: tuple[str, dict, int, list[str]]) -> None:
    what, config, rank, targets = case
    mine = by_hand(answer, config, rank, targets)
    integer(mine, counted(config, rank, targets), f"{what}, rank {rank}", slips=count_slips(config, rank, targets))


def stays(answer: Callable, case: tuple[dict, int, list[str]], only: Iterable[str] = ()) -> None:
    config, rank, targets = case
    mine = by_hand(answer, config, Architecture.of(with_type(config)).parameters, rank, targets)
    what = f"{config['num_hidden_layers']} layers, rank {rank}"
    buckets(mine, metered(*case), what, slips=bucket_slips(*case), only=only)


def regimes(answer: Callable, case: tuple[str, int], only: Iterable[str] = REGIMES) -> None:
    sizes = sizes_of(*case)
    mine = by_hand(answer, *sizes)
    truth = {regime: nbytes for regime, nbytes in kept(*case).items() if regime in only}
    close(mine, truth, "{}, rank {}".format(*case), rtol=1e-5, wrong=regime_mistakes(*sizes))


# ---------------------------------------------------------------- truths


def counted(config: dict, rank: int, targets) -> int:
    """Parameters that peft trains on a llama with this config.json."""
    one = json.dumps({**with_type(config), "num_hidden_layers": 1}, sort_keys=True)
    return config["num_hidden_layers"] * _counted(one, rank, tuple(targets))


@remembered
def _counted(config: str, rank: int, targets: tuple[str, ...]) -> int:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(config)))
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=list(targets)))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def metered(config: dict, rank: int, targets) -> dict[str, int]:
    """Bytes of one LoRA step on a bf16 llama by the meter; the frozen part without the rotary buffers."""
    names = ",".join(target.removesuffix("_proj") for target in targets)
    reading = _metered(json.dumps(with_type(config), sort_keys=True), rank, names)
    rotary, ledger = sum(Architecture.of(with_type(config)).buffers()), reading.ledger  # rotary: no parameters
    return dict(zip(BUCKETS, (reading.frozen - rotary, reading.trainable, ledger.gradients, ledger.optimizer)))


@remembered
def _metered(config: str, rank: int, targets: str) -> StepMemory:
    plan = TrainingPlan(batch=1, seq_len=4, method="lora", precision="bf16", rank=rank, targets=targets)
    return measure(json.loads(config), plan)


def sizes_of(name: str, rank: int) -> tuple[int, int, int]:
    """Parameters of a KNOWN model, those in the matrices of its blocks, and those of its adapters on all seven."""
    shape = Architecture.of(name)
    return shape.parameters, shape.linear_parameters, counted(KNOWN[name], rank, SEVEN)


@remembered
def kept(name: str, rank: int) -> dict[str, int]:
    """Bytes between two steps of a KNOWN model in bf16, fully trained, with LoRA, and with LoRA on plain NF4."""
    four_bit = dict(method="qlora", double_quantization=False, kbit_preparation=False)
    plans: dict[str, dict] = dict(zip(REGIMES, ({}, dict(method="lora"), four_bit)))
    return {
        regime: predict(name, TrainingPlan(precision="bf16", rank=rank, **more)).ledger.persistent
        for regime, more in plans.items()
    }


# ---------------------------------------------------------------- slips


def count_slips(config: dict, rank: int, targets) -> list[Hints]:
    """Parameters too many in a count of adapters: in the sum over the targets, which is a product, and beside it."""
    a = Architecture.of(with_type(config))
    C, L, width = a.n_embd, a.n_layer, config["hidden_size"] // config["num_attention_heads"]
    shapes = {f"{t.name}_proj": t.shape[::-1] for t in a.block_tensors() if t.kind == "linear"}  # (in, out)
    sums = {name: rank * (n_in + n_out) for name, (n_in, n_out) in shapes.items()}
    right = L * sum(sums[name] for name in targets)

    def others(**changes) -> int:
        return L * sum(rank * sum(changes.get(name, shapes[name])) for name in targets) - right

    wide, q, kv = (C, a.n_head * a.head_dim), (C, a.n_head * width), (C, a.n_kv_head * width)
    slips: Hints = {
        "wide-kv": (
            "k_proj and v_proj are counted as wide as q_proj, but the heads are grouped: there are fewer of them",
            others(k_proj=wide, v_proj=wide)),
        "head-dim-ignored": ("head_dim is taken as width / heads, but the configuration states it",
                             others(q_proj=q, o_proj=q, k_proj=kv, v_proj=kv)),
        "square-o": ("o_proj is taken for C x C, but it reads heads * head_dim numbers, which is not the width C",
                     others(o_proj=(C, C))),
        "square-q": ("q_proj is taken for C x C, but it writes heads * head_dim numbers, which is not the width C",
                     others(q_proj=(C, C))),
        "square-q-and-o": ("q_proj and o_proj are taken for C x C, but heads * head_dim is not the width C",
                           others(q_proj=(C, C), o_proj=(C, C)) if {"q_proj", "o_proj"} <= set(targets) else 0),
        "square-attention": ("q, k, v and o are taken for square matrices, C x C", 0 if wide[1] == C else
                             others(q_proj=(C, C), k_proj=(C, C), v_proj=(C, C), o_proj=(C, C))),
        "all-square": ("every matrix is taken for square, C x C", others(**dict.fromkeys(SEVEN, (C, C)))),
        "mlp-4-wide": ("the MLP is taken as 4 * width, but the configuration states intermediate_size",
                       others(gate_proj=(C, 4 * C), up_proj=(C, 4 * C), down_proj=(4 * C, C))),
        "one-block": ("only one block is counted", right // L - right),
        "rank-in-out": ("r * in * out is counted: a rank of r makes two thin matrices, r * in and out * r",
                        L * sum(rank * prod(shapes[name]) for name in targets) - right),
        "matrices-counted": ("the matrices themselves are counted; they are frozen",
                             L * sum(prod(shapes[name]) for name in targets)),
        "only-a": ("only A is counted, r * in; B has out * r more",
                   -L * sum(rank * shapes[name][1] for name in targets)),
        "only-b": ("only B is counted, out * r; A has r * in more",
                   -L * sum(rank * shapes[name][0] for name in targets)),
        "no-rank": ("the rank is forgotten: in + out is one row and one column", right // rank - right),
    }  # fmt: skip
    for name in SEVEN:
        short = name.replace("_", "-")
        if name in targets:
            slips[f"no-{short}"] = (f"{name} is missing", -L * sums[name])
        else:
            slips[f"{short}-counted"] = (f"{name} is counted, and is no target", L * sums[name])
    if set(targets) != set(SEVEN):
        slips["all-seven"] = ("all seven matrices are counted, but only the targets have an adapter",
                              L * sum(sums.values()) - right)  # fmt: skip
    if set(targets) != {"q_proj", "v_proj"}:
        slips["only-q-and-v"] = ("only q_proj and v_proj are counted, but the targets are others",
                                 L * (sums["q_proj"] + sums["v_proj"]) - right)  # fmt: skip
    return [slips, {"head-adapted": ("the head is adapted too; it lies outside the blocks and is left alone",
                                     rank * (C + a.vocab_size))}]  # fmt: skip


def bucket_slips(config: dict, rank: int, targets) -> dict[str, list[Hints]]:
    """{bucket: bytes too many} of a LoRA step with float32 adapters on a bf16 base."""
    base, n = Architecture.of(with_type(config)).parameters, counted(config, rank, targets)
    tensors, L = 2 * len(targets) * config["num_hidden_layers"], config["num_hidden_layers"]
    counts = count_slips(config, rank, targets)
    float32_base = {
        "float32-base": ("these are float32 weights, but the base is bf16: 2 bytes per parameter", 2 * base),
        "four-bit-base": ("half a byte per parameter is 4 bits; this base is bf16", base // 2 - 2 * base),
    }
    adapters_too = {
        "adapters-in-frozen": ("the adapters are counted in it; they are trainable", 4 * n),
        "two-byte-adapters-in-frozen": ("the adapters are counted in it, with 2 bytes; they are trainable", 2 * n),
    }
    two_bytes = {"two-byte-adapters": (
        "2 bytes per adapter parameter; peft keeps adapters in float32 on a 16-bit base", -2 * n)}  # fmt: skip
    gradients = {
        "two-byte-gradients": ("2 bytes per gradient; it has its weight's dtype, and adapters are float32", -2 * n),
        "frozen-gradients": ("gradients are counted for all weights; frozen ones have none", 2 * base),
        "only-frozen-gradients": (
            "gradients are counted for the frozen weights, and only for them", 2 * base - 4 * n),
        "float32-frozen-gradients": ("4-byte gradients are counted for all weights; frozen ones have none", 4 * base),
    }  # fmt: skip
    step_counts = {
        "no-step-counts": ("AdamW's step counts are missing: a float32 for each tensor", -4 * tensors),
        "one-step-count": ("one step count is booked in all, and each tensor has its own", 4 - 4 * tensors),
        "step-count-a-layer": ("one step count is booked for each layer; A and B are two tensors", -2 * tensors),
        "one-blocks-step-counts": ("the step counts of one block only are booked", 4 * tensors // L - 4 * tensors),
    }
    moments = {
        "four-byte-moments": (
            "4 bytes are booked for the two moments of a parameter; each is a float32, as the adapter is", -4 * n),
        "master-copy": ("a float32 master copy is booked; the adapters are float32 already", 4 * n),
        "frozen-moments": ("moments are counted for all weights; frozen ones have none", 4 * base),
        "float32-frozen-moments": ("float32 moments are counted for all weights; frozen ones have none", 8 * base),
    }  # fmt: skip
    return {
        "frozen": [float32_base, adapters_too],
        "trainable": [two_bytes, {"frozen-in-trainable": ("the frozen weights are counted in it", 2 * base)},
                      *times(counts, 4)],
        "gradients": [gradients, *times(counts, 4)],
        "optimizer": [step_counts, moments, *times(counts, 8)],
    }  # fmt: skip


def regime_mistakes(parameters: int, linears: int, adapters: int) -> Hints:
    """{regime: bytes} that mistakes give, from the counts that the student is given."""
    P, n, N = parameters, linears, adapters
    trained, rest, four_bit = 16 * N, 2 * (P - n), 0.5625 * n
    right = {"full": 8 * P, "lora": 2 * P + trained, "qlora": four_bit + rest + trained}
    return {
        "in-gb": ("that is in GB; bytes are asked for", {regime: nbytes / 1e9 for regime, nbytes in right.items()}),
        "in-gib": ("that is in GiB; bytes are asked for", {regime: nbytes / 2**30 for regime, nbytes in right.items()}),
        "float32-full": ("16 bytes per parameter is float32 training; here everything is bf16", {"full": 16 * P}),
        "no-moments": ("AdamW's two moments are missing; weights and gradients are there", {"full": 4 * P}),
        "one-moment": ("one of AdamW's two moments is missing", {"full": 6 * P, "lora": 2 * P + 12 * N}),
        "float32-moments": ("these are float32 moments, but moments have their weight's dtype", {"full": 12 * P}),
        "eight-byte-adapters": (
            "8 bytes per adapter parameter are booked: weight, gradient and both moments are float32 numbers",
            {"lora": 2 * P + 8 * N, "qlora": four_bit + rest + 8 * N}),
        "adapters-weights-alone": (
            "only the adapters' weights are booked; they have gradients and two moments as well",
            {"lora": 2 * P + 4 * N, "qlora": four_bit + rest + 4 * N}),
        "no-adapters": ("the adapters' own bytes are missing", {"lora": 2 * P, "qlora": four_bit + rest}),
        "frozen-gradients": ("gradients are booked for the frozen weights", {"lora": 4 * P + trained}),
        "frozen-moments": ("gradients and moments are booked for the frozen weights", {"lora": 8 * P + trained}),
        "all-in-4-bits": ("everything is booked in 4 bits; embeddings, head and norms stay in bf16",
                          {"qlora": 0.5625 * P + trained}),
        "all-in-4-bits-no-scales": ("everything is booked in 4 bits, and the scales are missing",
                                    {"qlora": 0.5 * P + trained}),
        "no-scales": ("the scales are missing: a float32 for each block of 64 weights",
                      {"qlora": 0.5 * n + rest + trained}),
        "two-byte-scales": ("the scales are booked with 2 bytes: they are float32",
                            {"qlora": 0.53125 * n + rest + trained}),
        "four-bytes-a-weight": ("4 bytes per parameter are booked; 4 bits are half a byte",
                                {"qlora": 4 * n + rest + trained}),
        "eight-bits": ("one byte per parameter is 8 bits", {"qlora": (1 + 1 / 16) * n + rest + trained}),
        "float32-rest": ("what is not 4-bit is booked in float32; that is peft's preparation, left out here",
                         {"qlora": four_bit + 2 * rest + trained}),
        "no-rest": ("what is not 4-bit is missing: embeddings, head and norms", {"qlora": four_bit + trained}),
        "double-quantization": ("double quantization is counted; here the scales stay float32",
                                {"qlora": (0.5 + 1 / 64 + 4 / 64 / 256) * n + rest + trained}),
    }  # fmt: skip
