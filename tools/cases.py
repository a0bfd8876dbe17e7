"""What ``make accuracy`` compares: models under plans, in named groups.

    full, adapters    a grid, and beside it each older word of the plan once a model
    words: ...        each newer word, with what it goes together with
    families: NAME    every model of the family, under plans that reach all of its code
    sharded           several ranks (``tools.cases_sharded``)

MiniGPT has no cache, so that plans which ask for one leave it out or are not its.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.families.architecture import FAMILIES
from minigpt.memory.plan import ALLOWED
from minigpt.memory.recipes import RECIPES
from tools.models import MIXTURES, MODELS, family

Words = dict[str, Any]
OUTPUTS: Words = dict(holds="outputs", use_cache=True)  # what transformers does if nobody asks otherwise
FEW: Words = dict(batch=1, seq_len=8)  # few tokens: what is made of a weight for a moment is the peak
BF16: Words = dict(precision="bf16")
MIXED: Words = dict(precision="bf16-autocast")
LORA: Words = dict(method="lora", precision="bf16")
QLORA: Words = dict(method="qlora", precision="bf16")
CHECKPOINTED: Words = dict(checkpointing="full")


@dataclass(frozen=True)
class Case:
    model: str
    plan: TrainingPlan
    evaluation: tuple[tuple[str, Any], ...] = ()  # the arguments of Trainer's evaluation, which is compared instead

    @property
    def needs_values(self) -> bool:
        """Whether it needs real tensors.

        For bitsandbytes' layers and 8-bit optimizers, for any of its optimizers that is resumed, and for a product of
        experts that is fake in bfloat16 alone.
        """
        few_bits = self.plan.method == "qlora" and not self.model.startswith("minigpt")
        experts = self.model in MIXTURES and self.plan.precision != "bf16"
        few_bits |= "8bit" in self.plan.optimizer or "paged" in self.plan.optimizer
        return few_bits or experts or (self.plan.optimizer, self.plan.step) == ("lion", "resumed")

    def __str__(self) -> str:
        plan = self.plan
        changed = {k: v for k, v in vars(plan).items() if v != getattr(TrainingPlan(), k)}
        shape = f"{changed.pop('batch', plan.batch)}x{changed.pop('seq_len', plan.seq_len)}"
        changed |= self.evaluation
        return " ".join([self.model, shape, *(f"{k}={v}" for k, v in changed.items())])


def groups() -> dict[str, list[Case]]:
    """Every case by the name of its group; one that several have is the first one's."""
    from tools.cases_sharded import sharded_cases  # which is written in the words of this file

    by_family = {f"families: {one}": family_cases(one) for one in FAMILIES}
    found: dict[str, list[Case]] = {"full": cases(), "adapters": adapter_cases(), **word_cases(), **by_family}
    found["sharded"] = sharded_cases()
    first = {case: group for group, some in reversed(found.items()) for case in some}
    return {group: [case for case in dict.fromkeys(some) if first[case] == group] for group, some in found.items()}


def each(models: Iterable[str], plans: Iterable[Words]) -> list[Case]:
    """Every model under every plan: 3 sequences of 96 tokens, unless it says otherwise."""
    return [
        Case(name, TrainingPlan(**{"batch": 3, "seq_len": 96, **plan, **_targets(name, plan)}))
        for name in models
        for plan in plans
        if not ("use_cache" in plan and name.startswith("minigpt"))
    ]


def cross(*lists: Iterable[Words]) -> list[Words]:
    """Every combination of one of each list."""
    return [{word: value for words in some for word, value in words.items()} for some in product(*lists)]


def one_of(word: str, values: Iterable) -> list[Words]:
    return [{word: value} for value in values]


@cache
def matrices(name: str) -> set[str]:
    """The model's matrices that can have an adapter."""
    return {tensor.name for tensor in Architecture.of(MODELS[name]).block_tensors() if tensor.kind == "linear"}


def _targets(name: str, plan: Words) -> Words:
    """The targets by the model's own names: some families have one matrix where llama has several."""
    own = {} if {"q", "v"} <= matrices(name) else {"q,v": "kv_b,o" if "kv_b" in matrices(name) else "qkv"}
    if "gate_up" in matrices(name):
        own["up,down"] = "gate_up,down"
    targets = plan.get("targets", "all-linear")
    return dict(targets=own.get(targets, targets))


# ------------------------------------------------------------ the grid


def cases() -> list[Case]:
    """The grid, and beside it each older word of the plan once a model."""
    grid = cross(
        one_of("precision", ("fp32", "bf16", "bf16-autocast")), one_of("attention", ALLOWED["attention"]),
        (dict(batch=1, seq_len=64), dict(batch=4, seq_len=128)),
    )  # fmt: skip
    beside = [
        dict(accumulation=2), *one_of("optimizer_loop", ("single", "fused")), dict(optimizer="sgd"),
        *one_of("precision", ("bf16-adam32", "fp16-autocast", "bf16-master", "bf16-master-grad32")),
        dict(precision="bf16-master-grad16+32"), dict(BF16, holds="outputs", accumulation=2), dict(batch=1, seq_len=1),
        dict(MIXED, attention="eager", use_cache=True), dict(use_cache=True), CHECKPOINTED,
        dict(CHECKPOINTED, precision="bf16", attention="eager", holds="outputs"),
        dict(CHECKPOINTED, precision="bf16-autocast", accumulation=2),
    ]  # fmt: skip
    held = [words for words in grid if words["batch"] == 4]
    return [
        *each(MODELS, grid), *each(MODELS, cross(grid, [OUTPUTS])), *each(MODELS, beside),
        *each((name for name in MODELS if name.startswith("minigpt")), cross(held, [dict(holds="outputs")])),
        *each(["minigpt"], [dict(BF16, upcast=False)]),
    ]  # fmt: skip


def adapter_cases() -> list[Case]:
    """LoRA, rsLoRA, DoRA, each on 4 bits too: peft and bitsandbytes on Hugging Face models, our own on MiniGPT."""
    precisions = one_of("precision", ("fp32", "bf16", "bf16-autocast"))
    targets, twice = one_of("targets", ("all-linear", "q,v")), one_of("double_quantization", (True, False))
    sizes: list[Words] = [{}, FEW]
    lora = cross([dict(method="lora")], precisions, targets) + [
        dict(LORA, adapter_dtype="same"), dict(LORA, rank=16, optimizer="adamw8bit"),
        dict(LORA, attention="eager", holds="outputs"), dict(LORA, batch=1, accumulation=2),
        dict(LORA, **CHECKPOINTED), dict(method="lora", targets="q,v", attention="eager", **CHECKPOINTED),
        dict(method="lora", variant="rslora"),
    ]  # fmt: skip
    qlora = cross([dict(QLORA, kbit_preparation=False), QLORA, dict(QLORA, **MIXED)], twice) + [
        dict(QLORA, targets="up,down"), dict(QLORA, rank=16, optimizer="adamw8bit"), dict(QLORA, **CHECKPOINTED),
        dict(QLORA, kbit_preparation=False, **CHECKPOINTED), dict(QLORA, variant="rslora"), dict(QLORA, **FEW),
        dict(QLORA, **{**MIXED, **FEW}),
    ]  # fmt: skip
    dora = cross([dict(method="lora")], precisions, targets, sizes) + cross([QLORA], [{}, MIXED], twice, sizes) + [
        dict(LORA, adapter_dtype="same"), dict(QLORA, kbit_preparation=False, targets="up,down", **FEW),
        dict(LORA, **CHECKPOINTED), dict(QLORA, **CHECKPOINTED, **FEW),
    ]  # fmt: skip
    names = ("minigpt", "llama-grouped", "llama-tied", "mistral", "qwen2-tied", "qwen3-wide-heads", "phi3", "phi",
             "gemma", "gemma2", "gemma3")  # fmt: skip
    routed = [words for words in lora + qlora if "up" not in words.get("targets", "")]  # peft has no DoRA on experts
    return each(names, lora + qlora + cross(dora, [dict(variant="dora")])) + each(MIXTURES, routed)


# ------------------------------------------------------------ words

SOME = ("llama-grouped", "llama-tied", "gpt2")


def word_cases() -> dict[str, list[Case]]:
    """The newer words of the plan, each with what it goes together with."""
    others = [name for name in ALLOWED["optimizer"] if name != "galore"]
    optimizers, steps = one_of("optimizer", others), one_of("step", ("steady", "first", "resumed"))
    libraries = cross(
        one_of("name", ("llama-grouped", "qwen3-wide-heads")),
        [dict(library=library, method=method) for library, methods in RECIPES.items() for method in methods],
    )
    return {
        "words: losses": _losses(),
        "words: optimizers, first and resumed steps": [
            *each(["llama-grouped"], cross(optimizers, steps, [{}, BF16])),
            *each(["gpt2", "minigpt"], cross(optimizers, steps[:2], [LORA])),
        ],
        "words: GaLore": _galore(),
        "words: autocast over 16 bits": _autocast(),
        "words: dropout": _dropout(),
        "words: padded and packed": each(
            (*SOME, "llama-one-key-head", "gpt-oss"),
            cross(
                one_of("sequences", ("padded", "packed")), one_of("attention", ALLOWED["attention"]),
                [{}, BF16, MIXED, dict(BF16, **CHECKPOINTED), dict(batch=1, **OUTPUTS),
                 dict(LORA, autocast=True, targets="q,v", lora_dropout=0.05), dict(QLORA, **CHECKPOINTED)],
            ),
        ),
        "words: whole modules, head, int8": each(SOME, [
            *cross(one_of("modules_to_save", ("embedding", "head", "embedding,head")),
                   [LORA, QLORA, dict(method="lora"), dict(LORA, loss="trl"),
                    dict(LORA, autocast=True, **CHECKPOINTED)]),
            *cross([dict(targets="all-linear,head")],
                   [LORA, dict(LORA, autocast=True), dict(LORA, variant="dora"), QLORA]),
            *cross([dict(QLORA, quantization="int8")],
                   [{}, dict(autocast=True), CHECKPOINTED, dict(lora_dropout=0.05), dict(kbit_preparation=False), FEW]),
        ]),
        "words: zero_grad, in backward": each(("minigpt", *SOME), [
            *cross(one_of("zero_grad", ("before_backward", "in_place")),
                   [{}, BF16, LORA, dict(accumulation=2), dict(BF16, **CHECKPOINTED), dict(step="resumed"),
                    dict(step="first"), dict(precision="bf16-master")]),
            *cross([dict(optimizer_in_backward=True)],
                   [{}, MIXED, LORA, dict(BF16, **CHECKPOINTED), dict(precision="bf16-master"), dict(step="first"),
                    *one_of("optimizer", ("sgd", "adafactor", "adamw8bit"))]),
        ]),
        "words: reentrant checkpointing": _reentrant(),
        "words: checkpointing policies": _policies(),
        "words: float32 outputs": _wrapped(),
        "words: evaluation": _evaluations(),
        "words: as libraries do it": [
            Case(words["name"], TrainingPlan.like(words["library"], method=words["method"], batch=3, seq_len=96))
            for words in libraries
        ],
    }  # fmt: skip


def _galore() -> list[Case]:
    """Few tokens, where the optimizer's step is the peak; and as many as elsewhere, with the update in backward."""
    steps, backward = one_of("step", ALLOWED["step"]), [{}, dict(optimizer_in_backward=True)]
    ways: list[Words] = [{}, FEW, dict(BF16, **FEW), dict(rank=16, targets="q,v", **FEW)]
    more: list[Words] = [MIXED, dict(BF16, **CHECKPOINTED), dict(accumulation=2), dict(zero_grad="in_place")]
    own = dict(optimizer="galore")
    return [
        *each(("minigpt", "llama-grouped"), cross([own], ways, steps, backward) + cross([own], more, steps[::3])),
        *each(("gpt2", "gemma2", "opt"), cross([own], ways[1:3], steps, backward)),
    ]


def _losses() -> list[Case]:
    ways: list[Words] = [{}, BF16, MIXED, LORA, dict(LORA, autocast=True), dict(BF16, **CHECKPOINTED)]
    losses = one_of("loss", ("shifted", "chunked", "fused", "trl"))
    last: list[Words] = [dict(logits_to_keep=1), dict(logits_to_keep=5, loss="shifted")]
    return [
        *each((*SOME, "mixtral"), cross(losses, [*ways, dict(BF16, **OUTPUTS)]) + cross(last, ways[::2])),
        *each(["minigpt"], cross(losses[:1], ways)),
    ]


def _autocast() -> list[Case]:
    methods: list[Words] = [
        BF16, LORA, QLORA, dict(LORA, targets="q,v"), dict(LORA, adapter_dtype="same"),
        dict(QLORA, kbit_preparation=False), dict(QLORA, kbit_preparation=False, adapter_dtype="same"),
        *cross([LORA, BF16], [CHECKPOINTED, dict(OUTPUTS, attention="eager"), dict(precision="fp16"), FEW,
                              dict(CHECKPOINTED, accumulation=2)]),
    ]  # fmt: skip
    over = [dict(autocast=True)]
    dora = [dict(LORA, variant="dora"), dict(QLORA, variant="dora")]
    return each((*SOME, "mixtral", "minigpt"), cross(methods, over)) + each((*SOME, "minigpt"), cross(dora, over))


def _reentrant() -> list[Case]:
    eager = dict(attention="eager")
    methods: list[Words] = [
        {}, dict(BF16, sequences="padded"), MIXED, dict(MIXED, accumulation=2, **eager), dict(BF16, holds="outputs"),
        LORA, dict(LORA, autocast=True, targets="q,v", lora_dropout=0.05), QLORA, dict(QLORA, autocast=True),
        dict(QLORA, quantization="int8"), dict(LORA, variant="dora"), dict(BF16, optimizer_in_backward=True),
    ]  # fmt: skip
    reentrant = [dict(checkpointing="reentrant")]
    scores = [words | eager for words in (BF16, LORA)]  # which some blocks return
    return [
        *each((*SOME, "mixtral"), cross(methods, reentrant)), *each(["minigpt"], cross(methods[2:4], reentrant)),
        *each(("falcon", "bloom", "gemma3", "opt"), cross(scores, reentrant)),
    ]  # fmt: skip


def _policies() -> list[Case]:
    """On models of 4 and 5 blocks, and three words in short on families whose blocks cannot run in a row."""
    policies = one_of("checkpointing", ("every", "sqrt", "selective", "offload"))
    ways: list[Words] = [
        {}, BF16, MIXED, dict(BF16, attention="eager", holds="outputs"), dict(MIXED, accumulation=2),
        dict(BF16, accumulation=2, zero_grad="in_place"), dict(BF16, optimizer_in_backward=True), LORA,
        dict(LORA, autocast=True, targets="q,v", lora_dropout=0.05), dict(LORA, variant="dora"), QLORA,
        dict(QLORA, autocast=True), dict(QLORA, kbit_preparation=False, variant="dora", **FEW),
        dict(batch=1, seq_len=7),
    ]  # fmt: skip
    every = cross([dict(checkpointing="every")], one_of("every_n_layers", (1, 3, 9)), [BF16, LORA])
    few = cross(policies[::2] + policies[3:], [BF16, dict(LORA, autocast=True)])
    more: list[Words] = [dict(BF16, sequences="padded"), dict(sequences="packed"), dict(QLORA, quantization="int8")]
    return [
        *each(("minigpt-nano", "llama-ungrouped"), cross(policies, ways) + every),
        *each(["llama-ungrouped"], cross(policies, more)),
        *each(["qwen2-tied"], cross(policies, [BF16, MIXED])),
        *each(("gpt2", "gemma2", "mixtral", "bloom"), few),
    ]


def _wrapped() -> list[Case]:
    """By accelerate, which does nothing without autocast."""
    over = dict(autocast=True)
    ways: list[Words] = [
        MIXED, dict(MIXED, **OUTPUTS), dict(MIXED, holds="outputs"), dict(MIXED, use_cache=True), dict(BF16, **over),
        dict(LORA, **over), dict(LORA, loss="shifted", **over), dict(MIXED, loss="shifted", holds="outputs"),
        dict(MIXED, loss="shifted", upcast=False, accumulation=2), dict(MIXED, accumulation=2, **CHECKPOINTED),
        dict(LORA, logits_to_keep=5, **over), dict(LORA, modules_to_save="head", holds="outputs", **over),
        dict(precision="fp16-autocast"), dict(MIXED, loss="fused"), dict(LORA, loss="trl", **over), dict(QLORA, **over),
        LORA,
    ]  # fmt: skip
    return each(("llama-grouped", "gpt2", "gemma"), cross(ways, [dict(float32_outputs=True)]))


def _evaluations() -> list[Case]:
    few, many = dict(samples=10, batch=4), dict(samples=25, batch=4)
    options: list[Words] = [few, many, dict(many, eval_accumulation_steps=2), dict(few, prediction_loss_only=True)]
    plans: list[Words] = [
        {}, MIXED, dict(BF16, attention="eager", use_cache=True), dict(BF16, sequences="padded"),
        dict(LORA, autocast=True, lora_dropout=0.05, **CHECKPOINTED), dict(QLORA, optimizer="adamw8bit"),
    ]  # fmt: skip
    some = each(("llama-grouped", "gpt2-dropout"), plans) + each(("gemma2", "falcon", "bloom"), plans[1:3])
    return [replace(case, evaluation=tuple(words.items())) for case in some for words in options]


def _dropout() -> list[Case]:
    """On adapters' inputs, and a model's own."""
    adapted = cross([dict(lora_dropout=0.05)], [
        dict(method="lora"), LORA, QLORA, dict(LORA, autocast=True), dict(method="lora", **MIXED),
        dict(LORA, adapter_dtype="same"), dict(LORA, **CHECKPOINTED), dict(LORA, autocast=True, **CHECKPOINTED),
    ])  # fmt: skip
    dora = [dict(LORA, variant="dora", lora_dropout=0.05), dict(QLORA, variant="dora", lora_dropout=0.05, **FEW)]
    own = ("gpt2-dropout", "llama-dropout", "phi3-partly-rotated", "phi-dropout", "starcoder2", "falcon-serial", "opt")
    ways = [{}, BF16, MIXED, CHECKPOINTED, dict(LORA, lora_dropout=0.05), dict(LORA, **CHECKPOINTED)]
    return [
        *each((*SOME, "minigpt"), adapted), *each(["mixtral"], cross(adapted, [dict(targets="q,v")])),
        *each(("llama-grouped", "minigpt"), dora), *each(own, cross(one_of("attention", ALLOWED["attention"]), ways)),
    ]  # fmt: skip


# ------------------------------------------------------------ families


def family_cases(one: str) -> list[Case]:
    """Every model of a family under plans that differ in as much as they can."""
    dropped = dict(targets="q,v", lora_dropout=0.05)
    plans: list[Words] = [
        {}, dict(BF16, **OUTPUTS), dict(BF16, attention="eager"), dict(MIXED, **OUTPUTS, attention="eager"), MIXED,
        dict(BF16, attention="eager", **CHECKPOINTED), dict(precision="fp16-autocast", accumulation=2, **CHECKPOINTED),
        dict(BF16, sequences="padded"), dict(attention="eager", sequences="padded"), dict(MIXED, sequences="packed"),
        dict(BF16, loss="shifted", optimizer="adafactor"), dict(loss="fused", step="first"), dict(logits_to_keep=5),
        LORA, dict(LORA, autocast=True, **dropped, **CHECKPOINTED), dict(LORA, attention="eager", **dropped),
        dict(LORA, modules_to_save="embedding,head"), dict(method="lora", targets="q,v", **MIXED), dict(QLORA, **FEW),
        dict(QLORA, autocast=True, kbit_preparation=False, **dropped, **CHECKPOINTED),
        dict(QLORA, quantization="int8", targets="q,v"), dict(batch=2, seq_len=7),
    ]  # fmt: skip
    return each([name for name in MODELS if family(name) == one], plans)
