"""What libraries do by default, as plans: ``TrainingPlan.like("trl-sft", method="qlora", batch=2, seq_len=2048)``.

Each row was read in the library's own source. Where it is installed here, tests/test_recipes.py asks it again.

    hf-trainer  transformers 5.17.0, peft 0.21.2, bitsandbytes through transformers
        from_pretrained(dtype="auto")         modeling_utils.py: weights in the checkpoint's format: bfloat16 today, but
                                              pass precision="fp32" for gpt2's
        bf16=False, fp16=False                training_args.py: no autocast; with autocast=True it is Trainer(bf16=True)
        optim="adamw_torch_fused"             training_args.py, on torch 2.8 and later
        gradient_checkpointing=False          training_args.py
        use_cache=False                       training_args.py; Trainer writes it into the model's configuration
        with autocast: logits in float32      accelerate 1.15.0, prepare_model: convert_outputs_to_fp32
        the loss alone through backward       trainer.py, training_step: compute_loss returns it, outputs die there
        gradients die after the step          trainer.py: model.zero_grad(), so before the next forward
        r=8, lora_dropout=0.0, float32        peft: LoraConfig, autocast_adapter_dtype=True
        targets by the model's type           peft: its mapping (targets.py): q and v of a llama, qkv of a gpt2
        4 bits: scales not quantized          BitsAndBytesConfig.bnb_4bit_use_double_quant=False
        4 bits: float32 norms, checkpointing  peft: prepare_model_for_kbit_training(use_gradient_checkpointing=True),
                                              reentrant: it passes no use_reentrant on, and torch's default is True;
                                              transformers' own gradient_checkpointing_enable() takes False
    trl-sft     trl 1.15.0: hf-trainer, but
        bf16=True unless fp16                 base_config.py: autocast over the 16-bit weights
        gradient_checkpointing=True           base_config.py
        never all logits                      sft_trainer.py: add_fused_lm_head, chunks of the head
        4 bits: adapters in bfloat16          sft_trainer.py, __init__; it does not call peft's preparation
    script      one's own loop, as in transformers' guides: outputs = model(**batch); outputs.loss.backward()
        torch.optim.AdamW                     foreach on a GPU: torch 2.13, _default_to_fused_or_foreach
        outputs held through backward         the name outputs lives until it is bound again
        use_cache=True                        PretrainedConfig's default; nobody turns it off
        rest                                  as hf-trainer
    unsloth     unsloth 2026.10.9: trl-sft, but
        checkpointing is reentrant            models/llama.py, use_reentrant = True; models/rl.py pins it
        load_in_4bit=True                     models/loader.py: so the method is "qlora"
        4 bits: scales quantized              models/llama.py, its BitsAndBytesConfig
        r=16, all seven, lora_dropout=0.0     models/llama.py, get_peft_model
        optim="adamw_8bit"                    models/rl.py, the replaced defaults of SFTConfig
        never all logits                      models/llama.py, unsloth_fused_ce_loss
        adapters in float32                   unsloth_zoo/training_utils.py, prepare_model_for_training
    litgpt      litgpt 0.5.13, finetune/lora.py and finetune/full.py
        precision="bf16-mixed"                utils.py, get_default_supported_precision(training=True): autocast over
                                              float32 weights; --quantize takes "bf16-true" only, and PagedAdamW
        torch.optim.AdamW                     utils.py, instantiate_torch_optimizer: foreach on a GPU
        r=8, q and v, lora_dropout=0.05       finetune/lora.py, setup
        logits held through backward          finetune/lora.py, fit: the name logits
        no checkpointing on one GPU           finetune/lora.py: FSDP's strategy alone has it
    torchtune   torchtune 0.6.1, recipes/configs/llama3_1/8B_*_single_device.yaml and the recipes
        dtype: bf16, no autocast              adapters and moments in bfloat16 too
        AdamW(fused=True)                     adapters; full: bitsandbytes' PagedAdamW8bit, optimizer_in_bwd: True
        enable_activation_checkpointing       True
        r=8, q, v, o and the MLP, dropout 0   lora_attn_modules, apply_lora_to_mlp
        del logits before backward            recipes/lora_finetune_single_device.py, _loss_step

``APART`` says what a library does that a plan has no word for, and in which direction the prediction is off.
"""

from __future__ import annotations

from minigpt.values import check_choice

_PEFT = dict(rank=8, lora_dropout=0.0, targets="peft", adapter_dtype="fp32")
_TRAINER = dict(
    precision="bf16", optimizer="adamw", optimizer_loop="fused", zero_grad="before_forward", holds="loss",
    use_cache=False, checkpointing="none", attention="sdpa", upcast=True, loss="model", float32_outputs=True,
)  # fmt: skip
_SFT = {**_TRAINER, "autocast": True, "checkpointing": "full", "loss": "trl"}
_PLAIN = {**_TRAINER, "float32_outputs": False}
_SCRIPT = {**_PLAIN, "optimizer_loop": "foreach", "holds": "outputs", "use_cache": True}
_UNSLOTH = {
    **_SFT, "checkpointing": "reentrant", "optimizer": "adamw8bit", "loss": "fused", "rank": 16, "lora_dropout": 0.0,
    "targets": "all-linear", "adapter_dtype": "fp32",
}  # fmt: skip
_LITGPT = {**_PLAIN, "precision": "bf16-autocast", "optimizer_loop": "foreach", "holds": "outputs"}
_LITGPT_LORA = {**_LITGPT, "rank": 8, "lora_dropout": 0.05, "targets": "q,v", "adapter_dtype": "same"}
_TUNE = {**_PLAIN, "checkpointing": "full"}
_TUNE_LORA = {**_TUNE, "rank": 8, "lora_dropout": 0.0, "targets": "q,v,o,gate,up,down", "adapter_dtype": "same"}
_PREPARED = dict(quantization="nf4", double_quantization=False, kbit_preparation=True, checkpointing="reentrant")
_PLAIN_NF4 = dict(quantization="nf4", double_quantization=False, kbit_preparation=False)

RECIPES = {  # library: method: the plan's fields; the first method is the library's own default
    "hf-trainer": {"full": _TRAINER, "lora": {**_TRAINER, **_PEFT}, "qlora": {**_TRAINER, **_PEFT, **_PREPARED}},
    "trl-sft": {
        "full": _SFT,
        "lora": {**_SFT, **_PEFT},
        "qlora": {**_SFT, **_PEFT, **_PLAIN_NF4, "adapter_dtype": "same"},
    },
    "script": {
        "full": _SCRIPT,
        "lora": {**_SCRIPT, **_PEFT},
        "qlora": {**_SCRIPT, **_PEFT, **_PREPARED, "use_cache": False},  # checkpointing turns the cache off
    },
    "unsloth": {"qlora": {**_UNSLOTH, **_PLAIN_NF4, "double_quantization": True}, "lora": _UNSLOTH},
    "litgpt": {
        "lora": _LITGPT_LORA,
        "qlora": {**_LITGPT_LORA, **_PLAIN_NF4, "precision": "bf16", "optimizer": "paged_adamw"},
        "full": _LITGPT,
    },
    "torchtune": {
        "full": {**_TUNE, "optimizer": "paged_adamw8bit", "optimizer_in_backward": True},
        "lora": _TUNE_LORA,
        "qlora": {**_TUNE_LORA, **_PLAIN_NF4, "double_quantization": True},
    },
}

APART = {
    "hf-trainer": (),
    "trl-sft": (),
    "script": (),
    "unsloth": (
        "unsloth keeps each block's input in the CPU's memory and has kernels of its own: it needs less than predicted",
    ),
    "litgpt": (
        "litgpt makes q, k and v as one matrix, applies its head to 128 tokens at a time, and casts logits to float32",
    ),
    "torchtune": ("torchtune casts its logits to float32 in eight pieces: it needs less at the loss than predicted",),
}


def recipe(library: str, method: str | None = None) -> dict:
    """The plan's fields that ``library`` sets; without a ``method``, its own default. ValueError for one not listed."""
    check_choice(RECIPES, like=library)
    method = next(iter(RECIPES[library])) if method is None else method
    check_choice(RECIPES[library], method=method)
    return {"method": method, **RECIPES[library][method]}
