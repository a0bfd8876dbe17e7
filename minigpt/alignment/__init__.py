"""Learning from preferences: from a better and a worse answer, or from points, instead of from one right answer.

    dpo       direct preference optimization: the step, and the three ways to have its reference
    reward    a reward model: one number for each answer, from pairs
    grpo      group relative policy optimization: the advantage of each answer in its group, and the clipped loss

Each is a few lines on MiniGPT. What they hold in memory is in ``minigpt.memory.predicted.alignment``.
Left out: PPO's value function and its estimate of advantages over time (GAE), and a loop that generates.
"""
