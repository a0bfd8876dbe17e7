"""What the fuzzer draws from: small models of every family with any field away from its default, and any plan.

Everything is drawn by one function, ``choose(options)``, which takes one of a list whose first is the simplest. So a
seeded ``random.Random`` can drive it (``tools.fuzz``), and so can Hypothesis, which shrinks towards the first
(``tests/test_fuzz.py``).

A case is what JSON holds: {"model": a config.json's contents, "plan": TrainingPlan's arguments, "device": ...}. A model
with ``model_type`` "minigpt" is a GPTConfig.

Left out: plan.card, since CUDA's kernels cannot be measured on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from minigpt.memory.families.architecture import Architecture
from minigpt.memory.families.fields import FIELDS
from minigpt.memory.families.fields.shared import COMMON_ONLY, COMMON_WITHOUT_EFFECT, Fields
from minigpt.memory.plan import ALLOWED, TrainingPlan
from minigpt.memory.ranks import OF_RANKS

Choose = Callable[[Sequence], Any]
FAMILIES = ("minigpt", *FIELDS)
BOTH = (False, True)
DROPOUT = (0.0, 0.1)
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "quick_gelu", "tanh", "sigmoid")
WINDOWS = (4096, None, 1, 8, 16, 17)
WIDTHS = (32, 8, 17, 48, 33, 72, 96)

NO_SDPA = ("bloom", "gpt_oss")  # transformers has eager attention alone for these

# The sizes that every family has, in llama's names; a family's own names for them.
NAMES = {
    "gpt2": dict(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head",
                 intermediate_size="n_inner", max_position_embeddings="n_positions"),
    "falcon": dict(num_key_value_heads="num_kv_heads", intermediate_size="ffn_hidden_size"),
    "opt": dict(intermediate_size="ffn_dim"),
    "bloom": dict(num_hidden_layers="n_layer", num_attention_heads="n_head"),
}  # fmt: skip

# Options for every other field that is used, or covered for some values only. The first is the plainest.
OPTIONS = {
    "activation": ACTIVATIONS, "activation_function": ACTIVATIONS, "hidden_act": ACTIVATIONS,
    "hidden_activation": ACTIVATIONS, "attention_bias": BOTH, "mlp_bias": BOTH, "qkv_bias": BOTH, "use_bias": BOTH,
    "bias": BOTH, "enable_bias": BOTH, "lm_head_bias": BOTH, "tie_word_embeddings": BOTH, "attention_dropout": DROPOUT,
    "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "attn_pdrop": DROPOUT, "dropout": DROPOUT, "hidden_dropout": DROPOUT,
    "residual_dropout": DROPOUT, "embedding_dropout": DROPOUT, "layerdrop": DROPOUT, "router_jitter_noise": DROPOUT,
    "sliding_window": WINDOWS, "use_sliding_window": BOTH, "max_window_layers": (28, 0, 1), "layer_types": (None,),
    "sliding_window_pattern": (6, 1, 2), "no_rope_layers": (None,), "no_rope_layer_interval": (4, 1, 2),
    "use_bidirectional_attention": (False, True), "final_logit_softcapping": (None, 30.0),
    "attn_logit_softcapping": (None, 50.0), "partial_rotary_factor": (1.0, 0.5, 0.25), "rotary_pct": (0.25, 0.5, 1.0),
    "qk_layernorm": BOTH,
    "reorder_and_upcast_attn": BOTH, "use_parallel_residual": BOTH, "alibi": BOTH, "multi_query": BOTH,
    "new_decoder_architecture": BOTH, "parallel_attn": BOTH, "num_ln_in_parallel_attn": (None, 1, 2),
    "word_embed_proj_dim": (None, 16), "do_layer_norm_before": (True, False), "_remove_final_layer_norm": BOTH,
    "layer_norm_elementwise_affine": (True, False), "apply_residual_connection_post_layernorm": BOTH,
    "slow_but_exact": BOTH, "num_local_experts": (4, 1, 3, 8), "num_experts": (4, 1, 3, 8),
    "n_routed_experts": (4, 8), "num_experts_per_tok": (2, 1), "n_shared_experts": (1, 2),
    "moe_intermediate_size": (16, 8, 24), "shared_expert_intermediate_size": (16, 8, 40), "norm_topk_prob": BOTH,
    "decoder_sparse_step": (1, 2), "mlp_only_layers": (None, [0]), "first_k_dense_replace": (0, 1),
    "output_router_logits": BOTH, "kv_lora_rank": (16, 8), "q_lora_rank": (16, None, 8), "qk_rope_head_dim": (8, 4),
    "v_head_dim": (8, 16, 12), "qk_nope_head_dim": (8, 4, 12), "n_group": (1, 2), "topk_group": (1,),
    "rope_interleave": (True, False), "moe_layer_freq": (1, 2), "scoring_func": ("sigmoid", "softmax"),
    "topk_method": ("noaux_tc", "greedy"), "mlp_type": ("default", "gated"), "norm_type": ("layer_norm", "rms_norm"),
    # of every family
    "gradient_checkpointing": BOTH, "is_causal": (True, False), "is_encoder_decoder": BOTH,
    "add_cross_attention": BOTH, "loss_type": (None, "ForCausalLM"), "output_attentions": BOTH,
    "output_hidden_states": BOTH, "return_dict": (True, False), "per_layer_config": (None,),
    "experts_implementation": (None, "eager"), "quantization_config": (None, {"quant_method": "bitsandbytes"}),
}  # fmt: skip
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "max_position_embeddings")  # fmt: skip
ROPE = (
    dict(rope_type="linear", factor=2.0), dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_max_position_embeddings=32),
)  # fmt: skip
# A value for each name without effect that its kind of default does not give.
OTHER = {
    "dtype": "bfloat16", "torch_dtype": "float16", "rope_theta": 5000.0, "architectures": ["X"], "id2label": {"0": "a"},
    "label2id": {"a": 0}, "num_labels": 1, "problem_type": "regression", "attn_implementation": "eager",
    "_attn_implementation": "eager", "auto_map": {}, "transformers_version": "4.0.0", "pruned_heads": {},
    "hidden_act": "relu", "hidden_activation": "relu", "activation_function": "relu", "summary_type": "last",
    "summary_activation": "tanh", "cache_implementation": "hybrid", "query_pre_attn_scalar": 7,
}  # fmt: skip

PLAN = {
    "batch": (2, 1, 3), "seq_len": (16, 1, 2, 7, 24, 33), "rank": (1, 2, 4), "targets": ("all-linear",),
    "lora_dropout": (0.0, 0.05), "modules_to_save": ("", "embedding", "head", "embedding,head"),
    "logits_to_keep": (0, 1, 5), "accumulation": (1, 2), "every_n_layers": (2, 1, 3), **ALLOWED,
}  # fmt: skip
ADAPTED_ONLY = ("variant", "adapter_dtype", "lora_dropout", "modules_to_save")
QLORA_ONLY = ("quantization", "double_quantization", "kbit_preparation")
EVERYDAY = ("batch", "seq_len", "method", "precision", "attention", "holds", "checkpointing", "use_cache", "rank",
            "optimizer_loop", "accumulation", "variant", "double_quantization", "kbit_preparation")  # fmt: skip
NEEDS_VALUES = ("adamw8bit", "paged_adamw", "paged_adamw8bit", "lion8bit", "paged_lion", "paged_lion8bit")
RARELY = 40  # what predict may refuse is away from its default once in so many draws


def draw_case(choose: Choose, families: Sequence[str] = FAMILIES) -> dict:
    """One case. Most fields and words keep their default; each can have any other value."""
    model = draw_model(choose, choose(families))
    plan = draw_plan(choose, model)
    device = "cpu" if needs_values(model, plan) else choose(("cpu", "cpu", "cpu", "fake"))  # real ones are quicker
    return {"model": model, "plan": plan, "device": device}


def sometimes(choose: Choose, options: Sequence, one_in: int = 10):
    """The first option, but about one time in ``one_in`` another."""
    return choose(options[1:]) if len(options) > 1 and choose([*[False] * (one_in - 1), True]) else options[0]


def draw_model(choose: Choose, family: str) -> dict:
    """The contents of a small config.json of this family."""
    if family == "minigpt":
        return _minigpt(choose)
    table = FIELDS[family]
    model: dict[str, Any] = {"model_type": family, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    model |= _sizes(choose, family, table)
    for name, default in table.used.items():
        if name not in OPTIONS:
            continue
        plain = choose(OPTIONS[name]) if name in NEW_SIZES else _plain(name, default, table)
        others = [plain, *(option for option in OPTIONS[name] if option != plain)]
        value = sometimes(choose, others, one_in=RARELY if name in table.only else 4)
        if value != default or name in NEW_SIZES:
            model[name] = value
    uncovered = [name for name in {**COMMON_ONLY, **table.only} if name not in model and name in OPTIONS]
    if sometimes(choose, BOTH, one_in=RARELY):
        name = choose(sorted(uncovered))
        model[name] = choose(OPTIONS[name])
    if sometimes(choose, BOTH):
        name = choose(sorted((table.without_effect | COMMON_WITHOUT_EFFECT) & OTHER.keys()))
        model[name] = OTHER[name]
    if table.rotary and family not in ("gemma3_text", "phi3") and sometimes(choose, BOTH):
        model |= dict(rope_scaling=dict(choose(ROPE)), rope_theta=10000.0)  # some families have no default of it
    return _sensible(choose, model, table)


NEW_SIZES = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
             "shared_expert_intermediate_size", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim",
             "qk_nope_head_dim", "n_group", "topk_group", "first_k_dense_replace")  # fmt: skip


def _plain(name: str, default, table: Fields):
    """The value that most models have: the default, unless it is not covered, or is gpt2's and opt's dropout."""
    if OPTIONS[name] is DROPOUT or default not in table.only.get(name, (default,)):
        return OPTIONS[name][0]
    return default


def _sizes(choose: Choose, family: str, table: Fields) -> dict:
    """Head count, widths and lengths, by the family's names for them."""
    heads = choose((2, 1, 3, 4))
    routed, partial = "num_experts_per_tok" in table.used, table.rotary_part in table.used
    if routed or partial:  # experts are multiplied 16 bytes at a time; a quarter of a head must be even
        width = choose((8, 16))
    else:
        width = choose((8, 4, 16, 6, 10, 12, 2) if table.rotary else (8, 16, 5, 12, 1))
    hidden = heads * width
    if "head_dim" in table.used and choose((False, False, True)):  # then the two need not agree
        hidden = heads * choose((16, 8) if routed else (12, 4, 7, 16))
    inner = choose(WIDTHS)
    sizes = dict(
        vocab_size=choose((64, 16, 97, 333, 600)), hidden_size=hidden,
        intermediate_size=-(-inner // 8) * 8 if routed else inner, num_hidden_layers=choose((1, 2, 3, 5)),
        num_attention_heads=heads, head_dim=width,
        num_key_value_heads=choose([n for n in (heads, 1, 2) if heads % n == 0]),
        max_position_embeddings=choose((64, 40)),
    )  # fmt: skip
    if "n_routed_experts" in table.used:  # deepseek repeats keys for every head
        sizes["num_key_value_heads"] = heads
    if hidden == heads * width and table.used.get("head_dim", 0) is None and sometimes(choose, BOTH, one_in=3):
        del sizes["head_dim"]
    own = NAMES.get(family, {})
    return {own.get(name, name): value for name, value in sizes.items() if own.get(name, name) in table.used}


def _sensible(choose: Choose, model: dict, table: Fields) -> dict:
    """What must hold between fields, for transformers to build the model and run it."""
    value = {**table.used, **model}.get
    layers: int = value("num_hidden_layers") or model["n_layer"]
    experts = next((model[n] for n in ("num_local_experts", "num_experts", "n_routed_experts") if n in model), None)
    if experts is not None:
        model["num_experts_per_tok"] = min(model["num_experts_per_tok"], experts)
    if "layer_types" in table.used and sometimes(choose, BOTH, one_in=4):
        slides = value("use_sliding_window", True) and {**table.used, **model}["sliding_window"] is not None
        kinds = ("full_attention", "sliding_attention") if slides else ("full_attention",)
        model["layer_types"] = [choose(kinds) for _ in range(layers)]
    asks = value("use_sliding_window") or model["model_type"] in ("gemma2", "gemma3_text", "gpt_oss")
    if value("sliding_window", 1) is None and (asks or "sliding_attention" in (model.get("layer_types") or ())):
        model["sliding_window"] = 8
    if "no_rope_layers" in table.used and sometimes(choose, BOTH, one_in=4):
        model["no_rope_layers"] = [choose((1, 0)) for _ in range(layers)]
    if value("qk_layernorm"):  # phi's is as wide as hidden_size says
        model.pop("head_dim", None)
        model["hidden_size"] = 8 * model["num_attention_heads"]
    if value("new_decoder_architecture"):  # falcon's is parallel
        model.pop("parallel_attn", None)
    elif "num_kv_heads" in model:
        model["num_kv_heads"] = model["num_attention_heads"]
        model.pop("num_ln_in_parallel_attn", None)
    return model


def _minigpt(choose: Choose) -> dict:
    heads = choose((2, 1, 3, 4))
    return dict(
        model_type="minigpt", vocab_size=choose((64, 16, 97, 600)), n_layer=choose((1, 2, 3, 5)), n_head=heads,
        n_embd=heads * choose((8, 16, 5, 12, 1)), context=choose((64, 40)),
    )  # fmt: skip


def draw_plan(choose: Choose, model: dict) -> dict:
    """TrainingPlan's arguments, of the words that are away from their defaults."""
    plan: dict[str, Any] = {}
    matrices = _matrices(model)
    for name, options in plan_options().items():
        if name in ADAPTED_ONLY + ("rank", "targets") and plan.get("method", "full") == "full":
            continue
        if name in QLORA_ONLY and plan.get("method") != "qlora":
            continue
        if name == "rank":
            options = [rank for rank in options if rank <= min(matrices.values(), default=1)]
        if name == "targets" and matrices and sometimes(choose, BOTH, one_in=3):
            value = ",".join(sorted({choose(sorted(matrices)) for _ in range(choose((1, 2, 3)))}))
        else:
            value = choose(options) if name in EVERYDAY else sometimes(choose, options, one_in=RARELY)
        if value != TrainingPlan.__dataclass_fields__[name].default or name in ("batch", "seq_len"):
            plan[name] = value
    if model["model_type"] == "minigpt":
        plan.pop("use_cache", None)  # it has none
    if any("expert" in name for name in model) and model["model_type"] != "qwen2_moe":
        _target_experts(plan, matrices)
    return _as_a_plan(plan)


def _target_experts(plan: dict, matrices: dict[str, int]) -> None:
    """peft adapts gate and up of experts together, and has neither dropout nor DoRA for them."""
    if plan.get("method", "full") == "full":
        return
    targets = set(plan.get("targets", "all-linear").split(","))
    if targets & {"all-linear", "gate", "up", "down"} and ("lora_dropout" in plan or "variant" in plan):
        targets = matrices.keys() - {"gate", "up", "down"}
    elif targets & {"gate", "up"}:
        targets |= {"gate", "up"}
    plan["targets"] = ",".join(sorted(targets))


def _as_a_plan(plan: dict) -> dict:
    """Without the words that TrainingPlan refuses beside the others: each refusal names one."""
    while True:
        try:
            TrainingPlan(**plan)
            return plan
        except ValueError as error:
            name = str(error).split(" is ")[0]
            if name == "seq_len":  # padding needs two tokens
                plan[name] = 2
            else:
                del plan[name]


def plan_options() -> dict[str, Sequence]:
    """Every word of the plan with its options, the default first; but those of PLAN's own, which are small sizes."""
    words: dict[str, Sequence] = {}
    for field in fields(TrainingPlan):
        if field.name == "card" or field.name in OF_RANKS:  # a case is of one process
            continue
        options: Sequence = BOTH if isinstance(field.default, bool) else PLAN[field.name]
        if field.name not in ("batch", "seq_len", "rank"):
            options = [field.default, *(option for option in options if option != field.default)]
        words[field.name] = options
    return words


def _matrices(model: dict) -> dict[str, int]:
    """The smaller side of each matrix that can get an adapter, by the plan's names; nothing if predict refuses it."""
    try:
        tensors = Architecture.of(as_model(model)).block_tensors()
    except (ValueError, TypeError):
        return {}
    return {tensor.name: min(tensor.shape) for tensor in tensors if tensor.kind == "linear"}


def as_model(model: dict):
    """What ``predict`` and ``measure`` take: the dictionary, or MiniGPT's configuration."""
    if model["model_type"] != "minigpt":
        return model
    from minigpt.model import GPTConfig  # here, because it imports torch

    return GPTConfig(**{name: value for name, value in model.items() if name != "model_type"})


def needs_values(model: dict, plan: dict) -> bool:
    """Whether the step reads values, which fake tensors have not: bitsandbytes, routers."""
    four_bit = plan.get("method") == "qlora" and model["model_type"] != "minigpt"
    routed = any("expert" in name for name in model)
    return four_bit or routed or plan.get("optimizer") in NEEDS_VALUES
