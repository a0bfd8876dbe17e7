"""A model with the operations of Stanford CS336's BasicsTransformerLM, for the meter: what ``families.cs336`` predicts.

Written from that class's operations, one by one, with the names that it keeps bound; weights are whatever torch makes,
since memory does not depend on them. ``edition`` is the year of the course: in 2026 rotations are sliced out of their
table and joined half to half; in 2025 they were gathered by position for each call, and interleaved.

Source: stanford-cs336/assignment2-systems, cs336-basics/cs336_basics/model.py and nn_utils.py.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...a,ba->...b", x, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * rms
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    table: Tensor

    def __init__(self, context: int, width: int, edition: str) -> None:
        super().__init__()
        self.edition = edition
        angles = torch.outer(torch.arange(context), 10000.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """x (B, H, T, D)."""
        first, second = x.reshape(*x.shape[:-1], -1, 2).permute(4, 0, 1, 2, 3).unbind(0)
        if positions is None:
            cos, sin = self.table[:, : x.shape[-2], :].unbind(0)
        else:
            cos, sin = self.table[:, positions].unbind(0)
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        if self.edition == "2026":
            return torch.cat((turned_first, turned_second), dim=-1)
        return torch.stack((turned_first, turned_second), dim=-1).reshape(x.shape)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.q, self.k, self.v, self.o = (Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        Q, K, V = self.q(x), self.k(x), self.v(x)
        Q, K, V = (y.reshape(B, T, self.heads, -1).permute(0, 2, 1, 3) for y in (Q, K, V))
        positions = None
        if self.rotary.edition == "2025":
            positions = torch.arange(T, device=x.device).reshape(1, 1, T)
        Q = self.rotary(Q, positions)
        K = self.rotary(K, positions)
        places = torch.arange(T, device=x.device)
        mask = places[:, None] >= places[None, :]
        y = attention(Q, K, V, mask)
        y = y.permute(0, 2, 1, 3).reshape(B, T, C)
        return self.o(y)


def attention(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", Q, K) / math.sqrt(K.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, V)


def softmax(x: Tensor) -> Tensor:
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rotary: Rotary) -> None:
        super().__init__()
        self.attention = Attention(width, heads, rotary)
        self.gate, self.down, self.up = Linear(width, inner), Linear(inner, width), Linear(width, inner)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm1(x))
        middle = x + attended
        fed = self.mlp(self.norm2(middle))
        return middle + fed


class BasicsTransformerLM(nn.Module):
    """``config``: what ``families.cs336`` takes. It is called as transformers' models are: (tokens, labels)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        width, heads = config["d_model"], config["num_heads"]
        self.edition = config.get("edition", "2026")
        self.embedding = nn.Parameter(torch.randn(config["vocab_size"], width))
        rotary = Rotary(config["context_length"], width // heads, self.edition)
        self.rotary = rotary
        self.layers = nn.ModuleList(Block(width, heads, config["d_ff"], rotary) for _ in range(config["num_layers"]))
        self.norm = RMSNorm(width)
        self.head = Linear(width, config["vocab_size"])

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
        logits = self.logits(input_ids)
        loss = None if labels is None else cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)

    def logits(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding[tokens, :]
        x = embedded
        if self.edition == "2025":
            del embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)
