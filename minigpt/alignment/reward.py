"""A reward model (Ouyang et al. 2022, arXiv 2203.02155): a language model whose head gives one number, not V.

    reward = w . h,  h the hidden state of the answer's last token        loss = -log sigmoid(reward(c) - reward(r))

The loss is Bradley and Terry's: the chosen answer wins with probability sigmoid of the difference. Where a language
model makes V logits for each token, this makes one number for each sequence.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model import GPT


class RewardModel(nn.Module):
    """``body``'s blocks, and a head of (1, C), without a bias, as transformers' sequence classification has it."""

    def __init__(self, body: GPT) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.config.n_embd, 1, bias=False)

    def forward(self, tokens: Tensor, last: Tensor) -> Tensor:
        """Rewards (B,) of ``tokens`` (B, T), whose answers end at the positions ``last`` (B,)."""
        hidden = self.body.hidden(tokens)  # (B, T, C)
        return self.head(hidden[torch.arange(len(tokens)), last]).squeeze(-1)


def reward_loss(rewards: Tensor) -> Tensor:
    """The mean loss of rewards (2B,), the chosen ones first. A scalar."""
    chosen, rejected = rewards.chunk(2)
    return -F.logsigmoid(chosen - rejected).mean()
