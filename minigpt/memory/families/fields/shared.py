"""What every family's table is made of: the record, and the groups of fields that several families share.

Read off transformers 5.17's configuration and modeling code. ``tests/test_fields.py`` asks the installed classes for
every name and default, and measures that what is listed as without effect has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minigpt.memory.families.activations import ACTIVATIONS


@dataclass(frozen=True)
class Fields:
    """One family's configuration fields.

    ``used``: name to transformers' default, for every field that memory depends on.
    ``only``: name to the values that are covered. A field that is not in ``used`` has its default first here.
    ``without_effect``: names that memory of a training step does not depend on.
    ``aliases``: other names that transformers reads a field by.
    ``rotary``: whether positions are rotary, so that the file may hold ``rope_parameters`` or ``rope_scaling``.
    ``rotary_part``: the field that says how much of a head is rotated, where those dictionaries do not.
    """

    used: dict[str, Any]
    only: dict[str, tuple] = field(default_factory=dict)
    without_effect: frozenset[str] = frozenset()
    aliases: dict[str, str] = field(default_factory=dict)
    rotary: bool = True
    rotary_part: str = "partial_rotary_factor"


def names(text: str) -> frozenset[str]:
    """A set of names, from one text."""
    return frozenset(text.split())


# ------------------------------------------------------------ every family

NAMES = names(  # labels, versions, where a file came from
    """_name_or_path name_or_path architectures auto_map model_type model_name tokenizer_class transformers_version
    transformers.js_config task_specific_params id2label label2id num_labels problem_type finetuning_task prefix
    _commit_hash custom_pipelines summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout"""
)
TOKENS = names("bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id")
NUMBERS = names("initializer_range")  # values of weights; each family adds its norm's epsilon
OF_THE_PLAN = names(  # the plan says these, whatever the file says: precision, attention, use_cache
    "dtype torch_dtype attn_implementation _attn_implementation _attn_implementation_autoset use_cache"
)
GENERATION = names(  # GenerationConfig's, which transformers takes out of an old file
    """assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens cache_implementation
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff
    eta_cutoff exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length
    min_length no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
    target_lookbehind temperature top_k top_p typical_p"""
)
FORGOTTEN = names(  # of older transformers; no decoder of 5.17 reads them
    """chunk_size_feed_forward cross_attention_hidden_size is_decoder pruned_heads tf_legacy_loss tie_encoder_decoder
    torchscript use_bfloat16"""
)
COMMON_WITHOUT_EFFECT = NAMES | TOKENS | NUMBERS | OF_THE_PLAN | GENERATION | FORGOTTEN
HARMLESS_PREFIXES = ("unsloth_",)

COMMON_ONLY = {
    "gradient_checkpointing": (False,),  # of an old file: transformers turns it on; say it in the plan
    "is_causal": (True,),  # the other is bidirectional attention, with other masks
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "loss_type": (None, "ForCausalLM"),
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),  # every block's output would be kept
    "return_dict": (True, None),
    "partial_rotary_factor": (1.0, None),  # phi and phi3 use it
    # How frequencies are scaled: other values of one vector. dynamic and longrope make a new one as the model runs.
    "rope_type": ("default", "linear", "llama3", "yarn"),
    "per_layer_config": (None,),
    "experts_implementation": (None,),
    "quantization_config": (None,),
}

# ------------------------------------------------------------ some families

ROTARY = names("rope_theta")  # a number behind the frequencies
RMS_NORM = names("rms_norm_eps")


def activations(default: str) -> tuple[str, ...]:
    """Every activation that is covered, the default first."""
    return default, *(name for name in ACTIVATIONS if name != default)


# The sizes of LlamaConfig, which many others copied.
SIZES = dict(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=None, head_dim=None, max_position_embeddings=2048, tie_word_embeddings=False,
)  # fmt: skip
