"""A mixture of experts in the place of the MLP: what qwen3_moe, qwen2_moe and mixtral share.

A router gives every token its ``top_k`` best experts of ``n_expert``. All experts of a layer lie in two tensors, and
transformers 5.17 runs them by ``grouped_mm``, its default on CPU and CUDA: each token is copied once for each of its
experts, the copies are sorted by expert, and one product does them all. So nothing depends on how tokens spread over
the experts: S = B T top_k rows, whoever takes them. With I the width of one expert, a layer saves for each row

    2 C + 4 I numbers    its copy, gate and up, silu(gate), their product, the result before it is weighted

Parameters of a layer: E (2 I C + I C), and E C of the router.

peft reads "all-linear" as the models were before transformers 5, when each expert was three linear layers. It adapts q,
k, v and o, the router, and all experts (gate and up together, at twice the rank). "gate", "up" and "down" are the
experts', too: a plain MLP beside them gets nothing. The adapter is not applied to the rows: it is added to the
matrices, and the sum of all experts' is kept until backward (and made once before, for a check). So LoRA on experts
holds a second copy of them, and for a moment its gradient.

bitsandbytes quantizes linear layers alone: experts and routers keep their precision, or get float32 where
``kbit_preparation`` upcasts what is not in 4 bits.

Source: transformers' ``integrations/moe.py`` and ``modeling_qwen3_moe.py``; peft 0.21's ``ParamWrapper`` and
``transformers_weight_conversion.py``. Left out: other values of ``experts_implementation``, the loss over the routers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.adapters import folded, folded_row
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.llama import Llama
from minigpt.memory.gpus import GPUS
from minigpt.values import check_counts, check_flags

FUSED = {"gate": "gate_up", "up": "gate_up"}  # one tensor of the experts'


@dataclass(frozen=True, kw_only=True)
class Experts(Llama):
    """To stand before the family whose attention it is: ``class Mixtral(Experts, Mistral)``."""

    n_expert: int
    top_k: int  # experts for a token
    expert_inner: int  # inner width of one expert
    normed: bool = False  # whether the chosen experts' weights are made to sum to 1
    dense_layers: tuple[int, ...] = ()  # layers with a plain MLP

    adapts_experts: ClassVar[bool] = True  # whether peft's "all-linear" finds them

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(n_expert=self.n_expert, expert_inner=self.expert_inner)
        check_counts(most=self.n_expert, top_k=self.top_k)
        check_flags(normed=self.normed)

    def check(self, plan) -> None:
        super().check(plan)
        itemsize = 4 if plan.regime.weights == 4 or (plan.method == "qlora" and plan.kbit_preparation) else 2
        for name, width in (("n_embd", self.n_embd), ("expert_inner", self.expert_inner)):
            if width * itemsize % 16:
                raise ValueError(f"{name} is {width}; torch's grouped_mm takes multiples of {16 // itemsize} only")
        folded = self.folded(plan, plan.target_names(self))
        if not folded:
            return
        if len({"gate", "up"} & plan.target_names(self)) == 1:
            text = "peft takes gate and up for the experts', which are one tensor: allowed: both or none"
            raise ValueError(f"targets is {plan.targets!r}; {text}")
        if plan.lora_dropout:
            raise ValueError(
                f"lora_dropout is {plan.lora_dropout}; peft has none for experts: name targets such as 'q,v'"
            )
        if plan.variant == "dora":
            raise ValueError("variant is 'dora'; peft has none for experts: name targets such as 'q,v'")

    def folded(self, plan, targets: set[str]) -> set[str]:
        """What gets an adapter that is no linear layer. peft takes gate, up and down for the experts'."""
        if not self.adapts_experts or plan.method == "full":
            return set()
        if plan.targets == "all-linear":
            return {"gate_up", "down", "router"}
        return {FUSED.get(name, name) for name in targets if name in ("gate", "up", "down")}

    # ------------------------------------------------------------ tensors

    def kinds_of_block(self) -> tuple[int, ...]:
        sparse = [i for i in range(self.n_layer) if i not in self.dense_layers]
        return self.dense_layers[:1] + tuple(sparse[:1])

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        return super().mlp_tensors(layer) if layer in self.dense_layers else self.expert_tensors()

    def expert_tensors(self) -> list[Tensor]:
        return self.stacks() + [self.router()]

    def stacks(self) -> list[Tensor]:
        E, inner, C = self.n_expert, self.expert_inner, self.n_embd
        return [
            Tensor("experts.gate_up", (E, 2 * inner, C), "experts"),
            Tensor("experts.down", (E, C, inner), "experts"),
        ]

    def router(self) -> Tensor:
        return Tensor("router", (self.n_expert, self.n_embd), "router")

    def adapter_rank(self, tensor: Tensor, plan, targets: set[str]) -> int:
        name = tensor.name.rsplit(".", 1)[-1]
        if tensor.kind in ("experts", "router"):
            folded = name in self.folded(plan, targets)
            return plan.rank * (2 if name == "gate_up" else 1) if folded else 0
        if self.adapts_experts and name in ("gate", "up", "down"):
            return 0
        return super().adapter_rank(tensor, plan, targets)

    # ------------------------------------------------------------ forward

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        if layers.get(at + "router") is None:
            return super().mlp(layers, x, at)
        return self.mixture(layers, x, at)

    def mixture(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        flat = views.view(x, -1, C)
        _logits, weights, chosen = self.route(layers, flat, at + "router")
        return views.view(self.experts(layers, flat, chosen, weights, at + "experts."), B, T, C)

    def route(self, layers: Layers, x: Value, name: str) -> tuple[Value, Value, Value]:
        """The logits (N, E), and of each token's experts their weights and numbers, (N, top_k)."""
        weight = folded_row(layers, name)
        x = views.view(x, -1, self.n_embd)
        logits = ops.linear(x, weight())
        shares = ops.softmax_in_float32(logits)
        best, chosen = routing.topk(shares, self.top_k)
        if self.normed:
            best = routing.divide_in_place(best, routing.sum_of(best, -1, keep=True))
        best = ops.cast(best, logits.dtype)
        return logits, best, chosen

    def experts(self, layers: Layers, x: Value, chosen: Value, weights: Value, at: str) -> Value:
        """grouped_mm_experts_forward: (N, C) to (N, C)."""
        down, gate_up = folded(layers, at + "down"), folded(layers, at + "gate_up")
        tape, (N, C), k, fallback = layers.tape, x.shape, self.top_k, without_kernel(layers.plan)
        shares, numbers = views.view(weights, -1), views.view(chosen, -1)
        S = numbers.shape[0]
        tape.doing = "sort"
        sorted_numbers, order = (tape.new((S,), "int64") for _ in range(2))  # noqa: F841  bound to the end, as others
        selected = routing.rows(x, tape.new((S,), "int64"))
        shares = routing.rows(shares, order)
        as_floats = tape.new((S,), "float32")  # noqa: F841
        counts = tape.new((self.n_expert,), "float32")  # noqa: F841
        offsets = tape.new((self.n_expert,), "int32")
        mask = tape.new((S, 1), "bool")  # rows of no expert, where experts are spread over several cards
        weight, bias = gate_up(), _picked(layers, at + "gate_up.bias", sorted_numbers)
        selected = routing.fill_in_place(selected, mask)
        hidden = self.grouped(selected, weight, offsets, bias, fallback)
        hidden = ops.mask_fill(hidden, mask)
        hidden = self.gated(hidden)
        weight, bias = down(), _picked(layers, at + "down.bias", sorted_numbers)
        hidden = self.grouped(hidden, weight, offsets, bias, fallback)
        hidden = ops.mask_fill(hidden, mask)
        weighted = ops.multiply(hidden, views.unsqueeze(shares, -1))
        back = _inverse(order)
        weighted = routing.rows(weighted, back)
        total = routing.sum_of(views.view(weighted, N, k, C), 1)
        return ops.cast(total, x.dtype)

    def grouped(self, x: Value, weight: Value, offsets: Value, bias: Value | None, fallback: bool) -> Value:
        """Each row times its expert's matrix, plus its expert's bias."""
        out = routing.grouped_mm(x, self.upright(weight), offsets, fallback)
        return out if bias is None else routing.add_in_place(out, bias)

    def upright(self, weight: Value) -> Value:
        """The experts' matrices as (E, n_in, n_out)."""
        return views.transpose(weight, 1, 2)

    def gated(self, x: Value) -> Value:
        """act(gate) * up, the two halves of each row."""
        gate, up = views.split(x, [x.shape[-1] // 2] * 2)
        return ops.multiply(ACTIVATIONS[self.activation](gate), up)


def without_kernel(plan) -> bool:
    """Whether the card has no grouped_mm: then transformers has one of its own, expert after expert."""
    return plan.card is not None and GPUS[plan.card].capability < (8, 0)


def _picked(layers: Layers, name: str, numbers: Value) -> Value | None:
    """The bias of each row's expert, (S, n_out), if experts have one."""
    bias = layers.get(name)
    return None if bias is None else routing.rows(bias, numbers)


def _inverse(order: Value) -> Value:
    """Where each sorted row came from; what it is written from dies at once."""
    tape = order.storage.tape
    back = tape.new(order.shape, "int64")
    tape.new(order.shape, "int64")
    return back


def moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that qwen2_moe and qwen3_moe have in common."""
    step, plain = config["decoder_sparse_step"], config["mlp_only_layers"] or []
    check_counts(decoder_sparse_step=step)
    if not isinstance(plain, (list, tuple)) or not all(isinstance(i, int) for i in plain):
        raise ValueError(f"mlp_only_layers is {plain!r}; it must be a list of the layers' numbers")
    dense = tuple(i for i in range(config["num_hidden_layers"]) if i in plain or (i + 1) % step)
    return dict(
        n_expert=config["num_experts"], top_k=config["num_experts_per_tok"],
        expert_inner=config["moe_intermediate_size"], normed=config["norm_topk_prob"], dense_layers=dense,
    )  # fmt: skip
