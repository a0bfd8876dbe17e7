"""Liger and Unsloth on one llama: which names of transformers each replaces, and who is called where both do.

Neither library makes a new model. Each puts its own functions in the place of transformers', under the same names:

                    Liger 0.8.5, apply_liger_kernel_to_llama    Unsloth 2026.10.9, FastLlamaModel
    rotary          modeling_llama.apply_rotary_pos_emb         within attention's forward
    norm            each norm's forward                         within the block's forward, from the norm's weight
    MLP             each MLP's forward: fused SwiGLU            each MLP's forward, LoRA in it (get_peft_model)
    attention       --                                          LlamaAttention.forward, LoRA in q, k, v, o
    block, model    --                                          LlamaDecoderLayer.forward, LlamaModel.forward
    loss            the loaded model's forward                  LlamaForCausalLM.forward

``patched`` does the same to a loaded model, with functions that only count, and then compute what transformers' own
do: the kernels themselves need a GPU. A forward that a library writes out calls its own kernel, and not the name that
the other library has replaced. That is what the counts show.

Sources: liger_kernel/transformers/monkey_patch.py; unsloth/models/llama.py (pre_patch, LlamaDecoderLayer_fast_forward,
get_peft_model). A test reads the second where it is installed. Left out: cross-entropy on logits, other families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch.nn.functional as F
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama import modeling_llama as llama

from minigpt.values import check_choice

PIECES = ("rotary", "norm", "MLP", "attention", "block", "model", "loss")
ROTARY, NORM, MLP, LOSS = (  # transformers' own, whatever stands under these names later
    llama.apply_rotary_pos_emb, llama.LlamaRMSNorm.forward, llama.LlamaMLP.forward, LlamaForCausalLM.forward,
)  # fmt: skip


@contextmanager
def patched(model: LlamaForCausalLM, order: Sequence[str]) -> Iterator[Counter]:
    """Inside, ``model`` is patched by the libraries of ``order`` ("liger", "unsloth"), one after the other.

    Yields a counter of calls, by (library, piece of PIECES). Afterwards all is as before. Raises ValueError for
    another library.
    """
    names: list[tuple[Any, str]] = [(llama, "apply_rotary_pos_emb")]
    names += [(kind, "forward") for kind in
              (llama.LlamaAttention, llama.LlamaDecoderLayer, llama.LlamaModel, LlamaForCausalLM)]  # fmt: skip
    before = [(owner, name, getattr(owner, name)) for owner, name in names]
    calls: Counter = Counter()
    try:
        for library in order:
            check_choice(("liger", "unsloth"), library=library)
            (_liger if library == "liger" else _unsloth)(model, calls)
        yield calls
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)
        for module in model.modules():
            module.__dict__.pop("forward", None)


def _counted(calls: Counter, library: str, piece: str, own: Callable) -> Callable:
    """``own``, counted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[library, piece] += 1
        return own(*args, **kwargs)

    return call


def _bind(module: Any, forward: Callable) -> None:
    """A forward of this one module, which hides its class's."""
    module.forward = MethodType(forward, module)


def _liger(model: LlamaForCausalLM, calls: Counter) -> None:
    """apply_liger_kernel_to_llama(model=model): a name of the module, and forwards of this model's own layers."""
    llama.apply_rotary_pos_emb = _counted(calls, "liger", "rotary", ROTARY)
    _bind(model, _counted(calls, "liger", "loss", LOSS))
    _bind(model.model.norm, _counted(calls, "liger", "norm", NORM))
    for block in model.model.layers:
        _bind(block.mlp, _counted(calls, "liger", "MLP", MLP))
        for norm in (block.input_layernorm, block.post_attention_layernorm):
            _bind(norm, _counted(calls, "liger", "norm", NORM))


def _unsloth(model: LlamaForCausalLM, calls: Counter) -> None:
    """FastLlamaModel: forwards of the classes, written out anew; get_peft_model: a forward of each MLP."""
    rotary, norm = _counted(calls, "unsloth", "rotary", ROTARY), _counted(calls, "unsloth", "norm", NORM)

    def attention(self, hidden_states, position_embeddings, **_):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (of(hidden_states).view(shape).transpose(1, 2) for of in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotary(q, k, *position_embeddings)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), None

    def block(self, x, position_embeddings, **_):
        x = x + self.self_attn(norm(self.input_layernorm, x), position_embeddings)[0]
        return x + self.mlp(norm(self.post_attention_layernorm, x))

    def body(self, input_ids, position_ids=None, **_):
        x = self.embed_tokens(input_ids)
        positions = input_ids.new_ones(input_ids.shape).cumsum(-1) - 1 if position_ids is None else position_ids
        angles = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, angles)
        return BaseModelOutputWithPast(last_hidden_state=norm(self.norm, x))

    written: dict[Any, Callable] = {
        llama.LlamaAttention: attention,
        llama.LlamaDecoderLayer: block,
        llama.LlamaModel: body,
    }
    for (kind, own), piece in zip([*written.items(), (LlamaForCausalLM, LOSS)], PIECES[3:]):
        kind.forward = _counted(calls, "unsloth", piece, own)
    for layer in model.model.layers:
        _bind(layer.mlp, _counted(calls, "unsloth", "MLP", MLP))
