"""What loading a model in 4 bits asks a card for, and the holes that it leaves: transformers', bitsandbytes', peft's.

    1  transformers asks for the bytes of the whole model at once, or all of the card but 1.2 GiB, and gives them back:
       one segment for what follows
    2  tensor by tensor, in the order of its sorted names: 16 bits of it on the card; of a matrix that is quantized, its
       float32 scales, its codes, its table; then the 16 bits go
    3  prepare_model_for_kbit_training makes all that is not quantized float32, in the model's order, and empties the
       cache: what lies whole unused goes back to the device, and 2's other holes stay

Everything else is loaded on the CPU and moved to the card tensor by tensor, which leaves none.

Source: transformers 5.17, modeling_utils.py (caching_allocator_warmup, get_total_byte_count), core_model_loading.py
(convert_and_load_state_dict_in_model, dot_natural_key; on-the-fly quantization is synchronous) and
integrations/bitsandbytes.py; bitsandbytes 0.50, quantize_4bit; peft 0.21, utils/other.py.

Left out: a checkpoint that is in 4 bits already; other versions, such as transformers 5.0, whose four threads read
ahead, and peft 0.19, which emptied nothing; biases are taken to be cast to 16 bits here, not in the first forward.
"""

from __future__ import annotations

from minigpt.memory.engine.layers import BLOCK, Loaded, quantized_bytes
from minigpt.memory.engine.tape import WEIGHTS, Storage, Tape
from minigpt.memory.families import Architecture
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.llama import Llama
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.units import GIB

HALF, SINGLE = 2, 4  # bytes
SPARED = 1.2 * GIB  # of the card's memory, which CUDA counts a little smaller than nvidia-smi does
# By the names here, and those that a family has otherwise; what is in neither, q_norm and k_norm, is self_attn.
NAMES = {
    "embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm", **{part: f"self_attn.{part}_proj" for part in ("q", "k", "v", "qkv", "o")},
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down", "gate_up")},
}  # fmt: skip
FOUR_NORMS = dict(attn_out_norm="post_attention_layernorm", mlp_norm="pre_feedforward_layernorm",
                  mlp_out_norm="post_feedforward_layernorm")  # fmt: skip
OTHERS = {
    "gemma2": FOUR_NORMS,
    "gemma3_text": FOUR_NORMS,
    "olmo2": dict(attn_norm="post_attention_layernorm", mlp_norm="post_feedforward_layernorm"),
    "phi": dict(o="self_attn.dense", up="mlp.fc1", down="mlp.fc2", norm="model.final_layernorm",
                q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm"),
    "starcoder2": dict(up="mlp.c_fc", down="mlp.c_proj"),
}  # fmt: skip


def loads_in_pieces(architecture: Architecture, plan: TrainingPlan) -> bool:
    """Whether this file tells how the model is loaded: in 4 bits, by transformers, in the order of ``in_order``."""
    four_bits = plan.method == "qlora" and plan.quantization == "nf4"
    return (
        four_bits and isinstance(architecture, Llama) and not any(t.kind == "experts" for t in architecture.tensors())
    )


def load(tape: Tape, architecture: Architecture, plan: TrainingPlan) -> Loaded:
    """Load the model onto the tape; returns the storages of each tensor, by name."""
    tape.doing = "loading"
    tensors = architecture.tensors()
    quantized = {tensor.name for tensor in tensors if tensor.kind in ("linear", "gate")}
    whole = sum(t.numel // 2 if t.name in quantized else HALF * t.numel for t in tensors)
    most = GPUS[plan.card].vram - SPARED if plan.card else whole
    Storage(tape, HALF * int(min(whole, most) // HALF))
    made: Loaded = {}
    for tensor in in_order(architecture):
        if tensor.name in quantized:
            made[tensor.name] = _four_bits(tape, tensor, plan.double_quantization)
        else:
            made[tensor.name] = [Storage(tape, HALF * tensor.numel, WEIGHTS, tensor.shape, plan.regime.half)]
    for tensor in tensors if plan.kbit_preparation else ():
        if tensor.name not in quantized:
            made[tensor.name] = [Storage(tape, SINGLE * tensor.numel, WEIGHTS, tensor.shape, "float32")]
            if tensor.name.removesuffix(".bias") in quantized:
                half = plan.regime.autocast or plan.regime.half
                made[tensor.name] = [Storage(tape, HALF * tensor.numel, WEIGHTS, tensor.shape, half)]
    if plan.kbit_preparation:
        tape.emptied.append(len(tape.events))
    return made


def _four_bits(tape: Tape, tensor: Tensor, double: bool) -> list[Storage]:
    """Params4bit.to(device): the 16-bit weight is there until codes and scales are."""
    whole = Storage(tape, HALF * tensor.numel)
    sizes = quantized_bytes(tensor.numel, double)
    scales = Storage(tape, SINGLE * -(-tensor.numel // BLOCK), None if double else WEIGHTS)
    codes = Storage(tape, sizes[0], WEIGHTS, tensor.shape, "nf4")
    if not double:
        made = [codes, scales, Storage(tape, sizes[-1], WEIGHTS)]
    else:
        packed, quantized, second, offset, table, nested = sizes
        kept = [Storage(tape, nbytes, WEIGHTS) for nbytes in (table, offset)]
        shifted = Storage(tape, scales.record.nbytes)
        del scales
        kept += [Storage(tape, nbytes, WEIGHTS) for nbytes in (nested, second, quantized)]
        del shifted
        made = [codes, *kept]
    del whole
    return made


def in_order(architecture: Architecture) -> list[Tensor]:
    """As transformers loads them: sorted by their names there. An MLP comes before its attention."""

    def key(tensor: Tensor) -> list:
        return [(0, int(part)) if part.isdigit() else (1, part) for part in there(architecture, tensor.name).split(".")]

    return sorted(architecture.tensors(), key=key)


def there(architecture: Architecture, name: str) -> str:
    """The name in transformers of the tensor that is called ``name`` here."""
    part, kind = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
    names = {**NAMES, **OTHERS.get(architecture.family, {})}
    if not part.startswith("blocks."):
        return f"{names[part]}.{kind}"
    _, layer, part = part.split(".", 2)
    return f"model.layers.{layer}.{names.get(part, f'self_attn.{part}')}.{kind}"
