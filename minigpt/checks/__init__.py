"""What graded cells call: compare an answer with the truth and, where they differ, name the mistake.

    count = checks.call(count_minigpt, config, by_hand=True)
    checks.integer(count, measured, "nano", slips={"the tied head is counted twice": 32768})
    checks.passed("count_minigpt")

Every failure is an AssertionError whose text names the mistake. Two kinds of hints find it:

    wrong   {value: the mistake that gives exactly this value}
    slips   {mistake: how much it adds}; one slip, or two together, that explain the difference are named

Answers become plain numbers before anything is compared, so an object that claims to equal everything gains
nothing; differences are computed here, so a patched ``math.isclose`` or ``torch.allclose`` is never asked; and
comparisons are written so that NaN fails.

Left out: shutting the student's code in. It runs in this process and could replace this very module.
"""

from minigpt.checks.calling import call
from minigpt.checks.comparing import buckets, choice, close, integer, passed, same, whole
from minigpt.checks.naming import diagnose
from minigpt.checks.slips import measured, parameter_slips, static_slips

__all__ = [
    "buckets", "call", "choice", "close", "diagnose", "integer", "measured", "parameter_slips", "passed", "same",
    "static_slips", "whole",
]  # fmt: skip
