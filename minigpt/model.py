"""MiniGPT: a decoder-only transformer in one sitting.

    x = token_embedding[t] + position_embedding[0..T-1]
    for each block:   x = x + attention(norm(x));   x = x + mlp(norm(x))
    logits = norm(x) @ token_embedding.T            (the head is tied to the token embedding)

The architecture is GPT-2's (Radford et al. 2019) with three simplifications: no biases, separate
q/k/v projections (so that adapter libraries find ``q_proj`` and friends), and no dropout.

Parameters, with C = n_embd, L = n_layer, V = vocab_size, S = context:

    linear layers  L * (4 C^2 + 2 * 4 C^2) = 12 L C^2
    embeddings     V C + S C
    norms          (2 L + 1) C

Left out: dropout, key-value cache, weight decay groups, anything for inference speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.values import check_choice, check_counts, is_number

ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a MiniGPT. All fields are counts, none is bytes."""

    n_layer: int  # blocks
    n_embd: int  # width C of the residual stream
    n_head: int  # attention heads H; each is n_embd / n_head wide
    context: int = 256  # longest sequence S, in tokens
    vocab_size: int = 256  # V; the course reads text as bytes
    attention: str = "sdpa"  # "sdpa": one fused kernel; "eager": the score matrix is a real tensor

    def __post_init__(self) -> None:
        counts = ("n_layer", "n_embd", "n_head", "context", "vocab_size")
        check_counts(**{name: getattr(self, name) for name in counts})
        if self.n_embd % self.n_head:
            raise ValueError(f"n_head is {self.n_head}; it must divide n_embd, which is {self.n_embd}")
        check_choice(ATTENTIONS, attention=self.attention)

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @classmethod
    def preset(cls, name: str, **changes) -> GPTConfig:
        """A preset by name, with fields replaced: ``GPTConfig.preset("nano", context=64)``."""
        check_choice(PRESETS, preset=name)
        return cls(**{**PRESETS[name], **changes})


PRESETS = {
    "nano": dict(n_layer=4, n_embd=128, n_head=4, context=256),  # the base that ships with the course
    "micro": dict(n_layer=6, n_embd=384, n_head=6, context=256),  # minutes on a CPU
    "small": dict(n_layer=12, n_embd=768, n_head=12, context=1024),  # GPT-2's: 84,934,656 in its linears
}


class Attention(nn.Module):
    """Causal self-attention. In and out: (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.n_embd
        self.n_head, self.kind = config.n_head, config.attention
        self.q_proj = nn.Linear(C, C, bias=False)
        self.k_proj = nn.Linear(C, C, bias=False)
        self.v_proj = nn.Linear(C, C, bias=False)
        self.o_proj = nn.Linear(C, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        heads = (B, T, self.n_head, C // self.n_head)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, D)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, D)
        attend = F.scaled_dot_product_attention if self.kind == "sdpa" else eager_attention
        y = attend(q, k, v, is_causal=True)  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)


def eager_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Attention with every intermediate a real tensor: score matrices of B*H*T*T elements.

    Takes and returns (B, H, T, D), like ``F.scaled_dot_product_attention``. The softmax runs in float32,
    as in the llama family of transformers.
    """
    T = q.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
    if is_causal:
        future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)  # (T, T)
        scores = scores.masked_fill(future, -math.inf)  # (B, H, T, T)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)  # (B, H, T, T)
    return weights @ v  # (B, H, T, D)


class MLP(nn.Module):
    """Two linear layers with a GELU between. In and out: (B, T, C); inside: (B, T, 4C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.down_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up_proj(x)  # (B, T, 4C)
        return self.down_proj(F.gelu(h))  # (B, T, C)


class Block(nn.Module):
    """One transformer block, norms first. In and out: (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.n_embd, bias=False)
        self.attn = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.n_embd, bias=False)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))  # (B, T, C)
        return x + self.mlp(self.mlp_norm(x))  # (B, T, C)


class GPT(nn.Module):
    """Tokens in, logits out; or, given targets, the loss.

    Weights start as N(0, 0.02); the two projections that write into the residual stream (``o_proj``,
    ``down_proj``) as N(0, 0.02 / sqrt(2 L)), so that the stream's variance does not grow with depth
    (GPT-2). Norm weights start at 1.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.n_embd)  # (V, C)
        self.position_embedding = nn.Embedding(config.context, config.n_embd)  # (S, C)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, bias=False)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.token_embedding.weight  # tied: one storage, counted once
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Block):  # called after the block's own linears
            for projection in (module.attn.o_proj, module.mlp.down_proj):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * self.config.n_layer))

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head reads, (B, T, C), for ``tokens`` (B, T). Raises ValueError if T exceeds the model's context."""
        T = tokens.size(1)
        if T > self.config.context:
            raise ValueError(f"the sequence has {T} tokens; the model's context is {self.config.context}")
        positions = torch.arange(T, device=tokens.device)  # (T,)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # (B, T, C)
        for block in self.blocks:
            x = block(x)  # (B, T, C)
        return self.norm(x)  # (B, T, C)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *, upcast: bool = True) -> Tensor:
        """Logits (B, T, V) for ``tokens`` (B, T); with ``targets`` (B, T), the mean loss, a scalar.

        ``upcast`` turns 16-bit logits into float32 before the loss, as transformers does.
        """
        logits = self.lm_head(self.hidden(tokens))  # (B, T, V)
        return logits if targets is None else cross_entropy(logits, targets, upcast=upcast)

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """Continue ``tokens`` (1, T) by up to ``max_new_tokens``; returns (1, T + new).

        ``temperature`` 0, or under 1e-6, takes the most likely token. Generation ends early after the token ``stop``.
        Past the context, the model sees the last ``context`` tokens.
        """
        if tokens.ndim != 2 or tokens.size(0) != 1 or tokens.size(1) == 0:
            raise ValueError(f"tokens has shape {tuple(tokens.shape)}; it must be (1, T) with T of at least 1")
        if not is_number(temperature) or not temperature >= 0:
            raise ValueError(f"temperature is {temperature!r}; it must be a number of at least 0")
        check_counts(least=0, max_new_tokens=max_new_tokens)
        for _ in range(max_new_tokens):
            logits = self(tokens[:, -self.config.context :])[:, -1].float()  # (1, V)
            if temperature < COLDEST:
                token = logits.argmax(-1, keepdim=True)  # (1, 1)
            else:
                token = torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator)
            tokens = torch.cat([tokens, token], dim=1)
            if stop is not None and token.item() == stop:
                break
        return tokens


COLDEST = 1e-6  # a temperature under this draws the likeliest token, and logits / temperature might overflow
IGNORE = -100  # a target with this value adds nothing to the loss


def cross_entropy(logits: Tensor, targets: Tensor, *, upcast: bool = True, reduction: str = "mean") -> Tensor:
    """Next-token loss of logits (B, T, V) against targets (B, T), in nats; targets of -100 are left out."""
    if upcast:
        logits = logits.float()  # (B, T, V); a copy exactly when the logits are 16-bit
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction=reduction)
