"""What a model is made of, from its configuration alone: every parameter tensor, by name and shape.

A configuration is a MiniGPT ``GPTConfig``, a Hugging Face ``config.json`` (as a path, a dictionary or an
``AutoConfig``), or a name or Hub id that ``names.resolve`` reads. The families understood are MiniGPT, llama, mistral,
qwen2, qwen3 and gpt2: grouped-query attention, an explicit head_dim, q/k norms, biases, tied or untied heads.

Parameters of a llama-family model, with C the width, I the MLP's inner width, q = n_head * head_dim and
kv = n_kv_head * head_dim:

    per block   C q + 2 C kv + q C + 3 C I + 2 C     (+ biases, + 2 head_dim with q/k norms)
    outside     V C (embedding) + V C (head, if untied) + C (last norm)

Left out: mixture-of-experts, multimodal parts, cross-attention. This file imports no torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod

from minigpt.memory.names import KNOWN, resolve  # noqa: F401  KNOWN is imported from here
from minigpt.values import check_choice, check_counts, check_flags, is_number

FAMILIES = ("minigpt", "llama", "mistral", "qwen2", "qwen3", "gpt2")
GELU = {"gelu_new": "python", "gelu": "fused", "gelu_pytorch_tanh": "fused"}  # of transformers: how each is computed
MOST_LAYERS = 1000  # every layer is gone through, so a larger number would not return


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor of a model: its name, its shape, and what kind of layer owns it."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "embedding", "linear", "bias", "norm" or "head"

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes that memory depends on. All fields are counts, none is bytes."""

    family: str
    vocab_size: int
    n_layer: int
    n_embd: int  # width of the residual stream
    n_head: int  # query heads
    n_kv_head: int  # key and value heads; fewer than n_head is grouped-query attention
    head_dim: int
    n_inner: int  # inner width of the MLP
    context: int  # longest sequence the model takes
    tied: bool  # the head is the token embedding
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # qwen3: a norm over each head's q and k
    gelu: str = "fused"  # gpt2: "python" is transformers' default gelu_new, seven tensors in Python
    dropout: float = 0.0  # gpt2: the largest of its three; predict() covers 0 only

    def __post_init__(self) -> None:
        check_choice(FAMILIES, family=self.family)
        check_choice(("fused", "python"), gelu=self.gelu)
        check_counts(most=MOST_LAYERS, n_layer=self.n_layer)
        counts = ("vocab_size", "n_embd", "n_head", "n_kv_head", "head_dim", "n_inner", "context")
        check_counts(**{name: getattr(self, name) for name in counts})
        flags = ("tied", "qkv_bias", "o_bias", "mlp_bias", "qk_norm")
        check_flags(**{name: getattr(self, name) for name in flags})
        _check_dropout(dropout=self.dropout)
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_kv_head is {self.n_kv_head}; it must divide n_head, which is {self.n_head}")

    @classmethod
    def of(cls, source) -> Architecture:
        """From an Architecture, a GPTConfig, an AutoConfig, a config.json's contents, or what ``resolve`` reads."""
        if isinstance(source, cls):
            return source
        if isinstance(source, (str, os.PathLike)):
            source = resolve(source)
        if hasattr(source, "to_dict"):  # transformers' PretrainedConfig
            source = source.to_dict()
        if isinstance(source, dict):
            return _from_hugging_face(source)
        if all(hasattr(source, name) for name in ("n_layer", "n_embd", "n_head", "context", "vocab_size")):
            return _from_minigpt(source)
        raise ValueError(
            f"the model is {source!r}; allowed: a GPTConfig, a Hugging Face configuration (dictionary, object or "
            "path of a config.json), a Hub id or a known name such as llama-7b"
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor, embedding first; a tied head appears once, as the embedding."""
        V, C = self.vocab_size, self.n_embd
        out = [Tensor("embedding", (V, C), "embedding")]
        if self.family in ("minigpt", "gpt2"):
            out.append(Tensor("positions", (self.context, C), "embedding"))
        block = self.block_tensors()
        for i in range(self.n_layer):
            out += [Tensor(f"blocks.{i}.{t.name}", t.shape, t.kind) for t in block]
        out += self._norm("norm")
        if not self.tied:
            out.append(Tensor("head", (V, C), "head"))
        return tuple(out)

    def block_tensors(self) -> tuple[Tensor, ...]:
        """The parameter tensors of one block; linear weights as (out, in)."""
        C, inner = self.n_embd, self.n_inner
        q, kv = self.n_head * self.head_dim, self.n_kv_head * self.head_dim
        out = self._norm("attn_norm")
        if self.family == "gpt2":  # q, k and v are one matrix
            out += _linear("qkv", 3 * C, C, True) + _linear("o", C, C, True) + self._norm("mlp_norm")
            return tuple(out + _linear("up", inner, C, True) + _linear("down", C, inner, True))
        out += _linear("q", q, C, self.qkv_bias) + _linear("k", kv, C, self.qkv_bias)
        out += _linear("v", kv, C, self.qkv_bias) + _linear("o", C, q, self.o_bias)
        if self.qk_norm:
            out += [Tensor("q_norm", (self.head_dim,), "norm"), Tensor("k_norm", (self.head_dim,), "norm")]
        out += self._norm("mlp_norm")
        if self.family != "minigpt":
            out += _linear("gate", inner, C, self.mlp_bias)
        return tuple(out + _linear("up", inner, C, self.mlp_bias) + _linear("down", C, inner, self.mlp_bias))

    @property
    def parameters(self) -> int:
        """The number of parameters; each tensor counts once."""
        return sum(t.numel for t in self.tensors())

    @property
    def linear_parameters(self) -> int:
        """Parameters in the matrices of the blocks: what adapters adapt and 4-bit formats quantize."""
        return self.n_layer * sum(t.numel for t in self.block_tensors() if t.kind == "linear")

    def _norm(self, name: str) -> list[Tensor]:
        bias = [Tensor(f"{name}.bias", (self.n_embd,), "bias")] if self.family == "gpt2" else []
        return [Tensor(name, (self.n_embd,), "norm"), *bias]


def _linear(name: str, n_out: int, n_in: int, bias: bool) -> list[Tensor]:
    return [Tensor(name, (n_out, n_in), "linear")] + ([Tensor(f"{name}.bias", (n_out,), "bias")] if bias else [])


def _from_minigpt(config) -> Architecture:
    return Architecture(
        family="minigpt", vocab_size=config.vocab_size, n_layer=config.n_layer, n_embd=config.n_embd,
        n_head=config.n_head, n_kv_head=config.n_head, head_dim=config.n_embd // config.n_head,
        n_inner=4 * config.n_embd, context=config.context, tied=True,
    )  # fmt: skip


def _from_hugging_face(config: dict) -> Architecture:
    """A config.json's contents. What the file leaves out is transformers' default for that model_type."""
    family = config.get("model_type")
    if family not in FAMILIES or family == "minigpt":
        allowed = ", ".join(name for name in FAMILIES if name != "minigpt")
        raise ValueError(f"model_type is {family!r}; allowed: {allowed}")
    get = {**DEFAULTS[family], **{k: v for k, v in config.items() if v is not None}}.get
    if family == "gpt2":
        check_flags(**{name: get(name) for name in ("add_cross_attention", "tie_word_embeddings")})
        if get("add_cross_attention"):
            raise ValueError("add_cross_attention is true; only decoder-only models are understood")
        C, heads = get("n_embd"), get("n_head")
        check_choice(GELU, activation_function=get("activation_function"))
        dropout = {name: get(name) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
        _check_dropout(**dropout)
        return Architecture(
            family=family, vocab_size=get("vocab_size"), n_layer=get("n_layer"), n_embd=C, n_head=heads,
            n_kv_head=heads, head_dim=_divide(n_embd=C, n_head=heads), n_inner=get("n_inner", 4 * C),
            context=get("n_positions"),
            tied=get("tie_word_embeddings"), qkv_bias=True, o_bias=True, mlp_bias=True,
            gelu=GELU[get("activation_function")], dropout=max(dropout.values()),
        )  # fmt: skip
    C, heads = get("hidden_size"), get("num_attention_heads")
    attention_bias, mlp_bias = get("attention_bias", False), get("mlp_bias", False)
    check_flags(tie_word_embeddings=get("tie_word_embeddings"), attention_bias=attention_bias, mlp_bias=mlp_bias)
    check_counts(hidden_size=C, num_attention_heads=heads)
    head_dim = get("head_dim")
    if head_dim is None:
        head_dim = _divide(hidden_size=C, num_attention_heads=heads)
    return Architecture(
        family=family, vocab_size=get("vocab_size"), n_layer=get("num_hidden_layers"), n_embd=C, n_head=heads,
        n_kv_head=get("num_key_value_heads", heads), head_dim=head_dim,
        n_inner=get("intermediate_size"), context=get("max_position_embeddings"), tied=get("tie_word_embeddings"),
        qkv_bias=family == "qwen2" or attention_bias, o_bias=family != "qwen2" and attention_bias,
        mlp_bias=family == "llama" and mlp_bias, qk_norm=family == "qwen3",
    )  # fmt: skip


def _divide(**counts) -> int:
    """The width of a head, from the model's width and the number of heads, each by its name in the file."""
    check_counts(**counts)
    (_, width), (name, heads) = counts.items()
    if width % heads:
        raise ValueError(f"{name} is {heads}; it must divide the width, which is {width}, or head_dim must be given")
    return width // heads


def _check_dropout(**shares) -> None:
    for name, value in shares.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}; it must be a number from 0 to 1")


# transformers 5.17's defaults, for configurations that leave fields out (llama's first config.json did)
_LLAMA = dict(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
    max_position_embeddings=2048, tie_word_embeddings=False,
)  # fmt: skip
DEFAULTS = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    "qwen2": {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
              "max_position_embeddings": 32768},
    "qwen3": {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
              "head_dim": 128, "max_position_embeddings": 32768},
    "gpt2": dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, tie_word_embeddings=True,
                 add_cross_attention=False, activation_function="gelu_new", resid_pdrop=0.1, embd_pdrop=0.1,
                 attn_pdrop=0.1),
}  # fmt: skip
