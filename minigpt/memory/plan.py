"""How a model is trained: everything that memory depends on and that is not the model's shape.

Every field is a switch that changes bytes, with the default that a plain PyTorch loop has. ``PRECISIONS``
is the table behind the folk numbers: people quote 8, 12, 16, 18 and 20 bytes a parameter, and each is right
for its own dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from minigpt.memory.gpus import find_gpu
from minigpt.memory.ranks import SHARDING, check_ranks
from minigpt.memory.targets import pefts_own
from minigpt.values import check_choice, check_counts, check_flags, is_number


class Precision(NamedTuple):
    """Bytes a trained parameter costs in each persistent place, with AdamW; and what the forward computes in."""

    weights: int  # bytes a parameter: the copy that the forward pass reads
    gradients: int  # bytes a parameter, over all copies of the gradient that stay
    master: int  # bytes a parameter: the float32 copy that the optimizer updates, booked under optimizer
    moments: int  # bytes a parameter: m and v together
    autocast: str | None  # 16-bit dtype that matrix products are cast to on the fly, or None
    who: str  # where it is met
    half: str = "bfloat16"  # the 16-bit format that weights have, if they have 2 bytes

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of weights, gradients and optimizer state together; a step count of 4 a tensor comes on top."""
        return self.weights + self.gradients + self.master + self.moments

    @property
    def float32_update(self) -> bool:
        """Whether 16-bit weights are updated in float32, which takes an optimizer of its own."""
        return self.weights == 2 and self.moments == 8


PRECISIONS = {
    "fp32": Precision(4, 4, 0, 8, None, "PyTorch's default"),
    "bf16": Precision(2, 2, 0, 4, None, "everything in bfloat16: model.to(torch.bfloat16), torchtune, peft's table"),
    "fp16": Precision(2, 2, 0, 4, None, "a frozen base on cards without bfloat16, such as the T4", "float16"),
    "bf16-adam32": Precision(2, 2, 0, 8, None, "bfloat16, float32 moments: bitsandbytes' 32-bit AdamW"),
    "bf16-autocast": Precision(4, 4, 0, 8, "bfloat16", "torch.autocast over float32 weights: Trainer(bf16=True)"),
    "fp16-autocast": Precision(4, 4, 0, 8, "float16", "torch.autocast and a GradScaler: Trainer(fp16=True)"),
    "bf16-master": Precision(2, 2, 4, 8, None, "16-bit weights and gradients, float32 master copy: the ZeRO paper"),
    "bf16-master-grad32": Precision(2, 4, 4, 8, None, "as before, gradients summed in float32: Megatron-LM"),
    "bf16-master-grad16+32": Precision(2, 6, 4, 8, None, "16-bit gradients and their float32 copy: MT-NLG"),
}

FLOAT32_WEIGHTS = {name for name, regime in PRECISIONS.items() if regime.weights == 4}
UPDATED_IN_FLOAT32 = {name for name, regime in PRECISIONS.items() if regime.float32_update}

ALLOWED = {
    "method": ("full", "lora", "qlora"),
    "precision": tuple(PRECISIONS),
    "variant": ("lora", "rslora", "dora"),
    "adapter_dtype": ("fp32", "same"),
    "quantization": ("nf4", "int8", "gptq", "awq"),
    "optimizer": (
        "adamw",
        "adamw8bit",
        "paged_adamw",
        "paged_adamw8bit",
        "kahan_adamw",
        "sgd",
        "sgd_momentum",
        "adafactor",
        "lion",
        "lion8bit",
        "paged_lion",
        "paged_lion8bit",
        "galore",
    ),
    "optimizer_loop": ("foreach", "single", "fused"),
    "attention": ("sdpa", "eager"),
    "holds": ("loss", "outputs"),
    "loss": ("model", "shifted", "chunked", "fused", "trl"),
    "sequences": ("plain", "padded", "packed"),
    "zero_grad": ("before_forward", "before_backward", "in_place"),
    "step": ("steady", "first", "resumed", "refresh"),
    "checkpointing": ("none", "full", "reentrant", "every", "sqrt", "selective", "offload"),
    **SHARDING,
}

# transformers' own names of optimizers (TrainingArguments.optim), in the plan's words.
OPTIM = {
    "adamw_torch": dict(optimizer="adamw", optimizer_loop="foreach"),
    "adamw_torch_fused": dict(optimizer="adamw", optimizer_loop="fused"),
    "adamw_bnb_8bit": dict(optimizer="adamw8bit"),
    "adamw_8bit": dict(optimizer="adamw8bit"),
    "paged_adamw_32bit": dict(optimizer="paged_adamw"),
    "paged_adamw_8bit": dict(optimizer="paged_adamw8bit"),
    "lion_32bit": dict(optimizer="lion"),
    "lion_8bit": dict(optimizer="lion8bit"),
    "paged_lion_32bit": dict(optimizer="paged_lion"),
    "paged_lion_8bit": dict(optimizer="paged_lion8bit"),
}

MOST_PASSES = 1000  # every pass is gone through, so a larger accumulation would not return
ADAPTED = "fp32, bf16, fp16, bf16-autocast, fp16-autocast"


def _says(default, text: str):
    """A field of the plan and what it means: the words of the shell's help, which reads them from here."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """One training step's choices. Raises ValueError for a value that is not allowed.

    ``card`` is known in any spelling ("rtx4090"), and ``targets`` with or without ``_proj``; both are kept in one.
    """

    batch: int = _says(1, "sequences in one forward pass")
    seq_len: int = _says(256, "tokens in a sequence")
    method: str = _says("full", "what is trained: everything, or adapters on a frozen base ('lora', 'qlora')")
    precision: str = _says("fp32", "dtypes of weights, gradients and moments; with adapters, the base's")
    autocast: bool = _says(False, "the forward runs under torch.autocast, whatever the weights are: Trainer(bf16=True)")
    rank: int = _says(8, "r of the adapters, or of GaLore's projections")
    targets: str = _says(
        "all-linear",
        "which matrices get one: all of the blocks', names such as 'q,v', or 'peft': peft's own",
    )
    variant: str = _says(
        "lora", "the adapters' formula: 'rslora' scales by 1 / sqrt(rank), 'dora' learns each row's length"
    )
    adapter_dtype: str = _says("fp32", "peft's default on any base; 'same': the base's")
    lora_dropout: float = _says(0.0, "on each adapter's input")
    modules_to_save: str = _says(
        "", "trained whole beside the adapters, by peft: 'embedding', 'head' or 'embedding,head'"
    )
    quantization: str = _says("nf4", "qlora: the frozen base's format; 'int8' is LLM.int8; gptq and awq by size only")
    double_quantization: bool = _says(True, "qlora: the scales are quantized too; transformers' default is False")
    kbit_preparation: bool = _says(True, "qlora: peft's prepare_model_for_kbit_training upcasts what is not 4-bit")
    optimizer: str = _says(
        "adamw", "'sgd' is plain SGD: no state; transformers' own names do, too, such as paged_adamw_8bit"
    )
    optimizer_loop: str = _says("foreach", "AdamW's inner loop: torch takes 'foreach' on a GPU, 'single' on a CPU")
    optimizer_in_backward: bool = _says(False, "each gradient is used and freed as soon as it is there")
    zero_grad: str = _says("before_forward", "when gradients die; 'in_place': never (set_to_none=False)")
    step: str = _says(
        "steady",
        "'first': the optimizer's state is born in it; 'resumed': loaded from a file; 'refresh': GaLore projects anew",
    )
    sequences: str = _says(
        "plain", "'padded': a mask with a zero in it; 'packed': several in a row, told by position ids"
    )
    attention: str = _says("sdpa", "'eager' makes the score matrix a real tensor")
    holds: str = _says("loss", "what the loop keeps during backward: the loss alone, or all of the model's outputs")
    checkpointing: str = _says(
        "none",
        "'full': a block keeps its input alone and runs again in backward; 'reentrant': torch's older kind; 'every': "
        "one in every_n_layers; 'sqrt': sqrt(L) as one; 'selective': keeps products; 'offload': inputs go to the CPU",
    )
    every_n_layers: int = _says(2, "checkpointing 'every': of so many blocks the first runs again")
    use_cache: bool = _says(False, "transformers' key-value cache, its default in training too; Trainer turns it off")
    float32_outputs: bool = _says(
        False,
        "accelerate's wrapper, as Trainer has it: under autocast logits are copied to float32 on their return",
    )
    upcast: bool = _says(True, "the loss makes a float32 copy of 16-bit logits; transformers' own always does")
    loss: str = _says(
        "model", "'shifted': one's own loop; never all logits: 'chunked' (torchtune), 'fused' (Liger), 'trl'"
    )
    logits_to_keep: int = _says(0, "transformers: logits of the last tokens alone; 0 keeps all")
    accumulation: int = _says(1, "forward and backward passes before one optimizer step")
    sharding: str = _says("none", "how ranks share the work and the state: DDP, ZeRO's stages, torch's fully_shard")
    ranks: int = _says(1, "processes that train together, a card each; batch is that of one")
    reshard_after_forward: bool = _says(True, "fsdp2: a block's weights are freed after its forward, gathered again")
    param_dtype: str = _says("same", "fsdp2's MixedPrecisionPolicy: what float32 weights are gathered and computed in")
    reduce_dtype: str = _says("same", "fsdp2's MixedPrecisionPolicy: what gradients are summed in over the ranks")
    shard_offload: str = _says("none", "what is kept in the CPU's memory: ZeRO's optimizer, or a rank's whole shards")
    gradient_as_bucket_view: bool = _says(False, "ddp: gradients lie in its buckets, not beside them")
    card: str | None = _says(None, "whose kernels run, such as T4; without one, a CPU's")

    def __post_init__(self) -> None:
        for name, value in OPTIM.get(self.optimizer, {}).items():
            object.__setattr__(self, name, value)
        check_counts(batch=self.batch, seq_len=self.seq_len, rank=self.rank, every_n_layers=self.every_n_layers)
        check_counts(most=MOST_PASSES, accumulation=self.accumulation)
        for name, allowed in ALLOWED.items():
            check_choice(allowed, **{name: getattr(self, name)})
        check_counts(least=0, logits_to_keep=self.logits_to_keep)
        flags = ("autocast", "double_quantization", "kbit_preparation", "optimizer_in_backward", "use_cache", "upcast")
        check_flags(**{name: getattr(self, name) for name in (*flags, "float32_outputs")})
        if not is_number(self.lora_dropout) or not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout!r}; it must be at least 0 and less than 1")
        if self.card is not None:
            object.__setattr__(self, "card", find_gpu(self.card))
        if self.use_cache and self.checkpointing != "none":
            raise ValueError(f"use_cache is True; with checkpointing {self.checkpointing!r} transformers turns it off")
        if not isinstance(self.targets, str):
            raise ValueError(f"targets is {self.targets!r}; it must be 'all-linear', or names such as 'q,v'")
        if not isinstance(self.modules_to_save, str):
            raise ValueError(f"modules_to_save is {self.modules_to_save!r}; it must be a text such as 'embedding,head'")
        for name in ("targets", "modules_to_save"):
            words = [word.strip().removesuffix("_proj") for word in getattr(self, name).split(",")]
            object.__setattr__(self, name, ",".join(words))
        if self.method == "full" and self.variant != "lora":
            raise ValueError(f"variant is {self.variant!r}; method 'full' has no adapters: allowed with it: lora")
        if self.method != "full" and self.precision in UPDATED_IN_FLOAT32:
            raise ValueError(f"precision is {self.precision!r}; adapters have no master copy: allowed {ADAPTED}")
        self._check_together()
        check_ranks(self)

    def _check_together(self) -> None:
        """Raise ValueError for values that are allowed one by one and not together."""
        if self.precision in UPDATED_IN_FLOAT32 and self.optimizer != "adamw":
            raise ValueError(f"optimizer is {self.optimizer!r}; with precision {self.precision!r} allowed: adamw")
        if self.optimizer == "galore" and self.method != "full":
            raise ValueError(f"optimizer is 'galore'; with method {self.method!r} there is nothing left to project")
        if self.optimizer == "galore" and "head" in self.targets.split(","):
            raise ValueError(f"targets is {self.targets!r}; GaLore projects matrices of the blocks, not the head")
        if self.optimizer == "galore" and self.targets == "peft":
            raise ValueError("targets is 'peft', which is about adapters; with GaLore allowed: all-linear, or names")
        if self.step == "refresh" and self.optimizer != "galore":
            raise ValueError(f"step is 'refresh'; with optimizer {self.optimizer!r} allowed: steady, first, resumed")
        if self.autocast and self.precision in FLOAT32_WEIGHTS:
            other = "bf16-autocast" if self.precision == "fp32" else self.precision
            raise ValueError(f"autocast is True; over float32 weights that is precision {other!r}, with autocast False")
        if self.optimizer_in_backward and self.accumulation > 1:
            raise ValueError(f"accumulation is {self.accumulation}; with optimizer_in_backward it must be 1")
        if self.sequences != "plain" and self.seq_len < 2:
            raise ValueError(f"seq_len is {self.seq_len}; with sequences {self.sequences!r} it must be at least 2")
        if not set(self.saved_modules) <= {"embedding", "head"}:
            raise ValueError(f"modules_to_save is {self.modules_to_save!r}; allowed: embedding, head, embedding,head")

    @classmethod
    def like(cls, library: str, **changes) -> TrainingPlan:
        """What ``library`` does by default (``recipes``), with ``changes``; batch and length are the caller's."""
        from minigpt.memory.recipes import recipe  # here, because most plans are nobody's default

        return cls(**{**recipe(library, changes.get("method")), **changes})

    @property
    def regime(self) -> Precision:
        """The bytes behind the name of the precision."""
        return PRECISIONS[self.precision]

    @property
    def autocast_dtype(self) -> str | None:
        """The 16-bit dtype that the forward's matrix products are cast to on the fly, or None."""
        return self.regime.half if self.autocast else self.regime.autocast

    @property
    def adapter_itemsize(self) -> int:
        """Bytes of one adapter weight."""
        return 4 if self.adapter_dtype == "fp32" else self.regime.weights

    def target_names(self, architecture) -> set[str]:
        """The matrices that get an adapter. Raises ValueError for one that the architecture has not."""
        return set() if self.method == "full" else self._matrices(architecture, "head")

    def projected_names(self, architecture) -> set[str]:
        """The matrices whose gradient GaLore projects. Raises ValueError for one that the architecture has not."""
        return self._matrices(architecture) if self.optimizer == "galore" else set()

    def _matrices(self, architecture, *others: str) -> set[str]:
        """The plan's targets by name: matrices of the blocks, and ``others``. The rank must fit them all."""
        shapes = {t.name: t.shape for i in architecture.kinds_of_block() for t in architecture.block_tensors(i)
                  if t.kind == "linear"}  # fmt: skip
        targets = pefts_own(architecture.family) if self.targets == "peft" else self.targets
        asked, names = set(targets.split(",")), {*shapes, *others}
        chosen = asked - {"all-linear"} | (set(shapes) if "all-linear" in asked else set())
        if not chosen <= names:
            wrong, right = ", ".join(sorted(chosen - names)), ", ".join(sorted(names))
            raise ValueError(f"targets has {wrong!r}; allowed: all-linear, or some of {right}")
        shapes["head"] = (architecture.vocab_size, architecture.n_embd)
        smallest = min(min(shapes[name]) for name in chosen)
        if self.rank > smallest:
            raise ValueError(f"rank is {self.rank}; the smallest side of a target is {smallest}")
        return chosen

    @property
    def saved_modules(self) -> tuple[str, ...]:
        """The words of ``modules_to_save``."""
        return tuple(filter(None, self.modules_to_save.split(",")))

    @property
    def tokens(self) -> int:
        """Tokens in one forward pass."""
        return self.batch * self.seq_len
