"""What graded cells call: compare an answer with the truth and, where they differ, name the mistake.

    @checks.check
    def check_pack(pack, unpack):
        return checks.score("pack and unpack are right", checks.part(1, packing.packs, pack, each=sizes), ...)

Here is the engine: a check ``cell``, ``verdict`` (ids, sentences, points), ``calling`` an answer, ``closing`` the book
meanwhile, ``comparing`` what it gives with the truth, and ``naming`` the mistake. Beside it, the subjects: ``counting``
parameters and bytes, ``training`` steps, ``optimizers``, ``activations``, ``adapters``, ``four_bits``, ``galore``, and
``qlora`` on the real libraries. A function of a subject takes an answer and a case, asks the answer, then makes the
truth, and raises ``Wrong`` or returns.

Answers become plain values before anything is compared, so an object that claims to equal everything gains nothing;
differences are computed here, so a patched ``math.isclose`` or ``torch.allclose`` is never asked; comparisons are
written so that NaN fails.

The same check runs in a notebook, on the notebook's own values, and in a judge, on stand-ins (``answers``) for values
in a process that holds no truth (``answering``; ``process`` starts one). There ``probes`` do what takes an object.

Left out: shutting the student's code in. In a notebook it could replace this very module.
"""

from minigpt.checks import course  # noqa: F401  closes the course's own arithmetic
from minigpt.checks.answers import value
from minigpt.checks.calling import call
from minigpt.checks.cell import check
from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import buckets, choice, close, integer, same, whole
from minigpt.checks.verdict import Points, Wrong, judging, part, passed, score

__all__ = [
    "Points", "Wrong", "buckets", "by_hand", "call", "check", "choice", "close", "integer", "judging", "part", "passed",
    "same", "score", "value", "whole",
]  # fmt: skip
