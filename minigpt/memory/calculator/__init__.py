"""The calculator: sliders over a plan, and the ledger at its peak beside the card, drawn anew as they move.

    choice.py   what is chosen -> a plan, its step and verdict, the shell command that says the same
    picture.py  that -> HTML with one bar in it, and the same in words
    panel.py    the sliders

Every figure is what ``python -m minigpt.memory`` prints for that choice.
"""

from minigpt.memory.calculator.panel import calculator

__all__ = ["calculator"]
