"""Python's cycle collector, at rest while nothing that it could find is made.

Reference counts free what dies. The collector looks for cycles besides, and goes through every object that it knows to
find them: that takes a fifth of a prediction, and a sixth of what it takes to import torch and transformers, whose
million objects all stay. This file imports no torch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """No collection inside.

    What was made there stays young: to declare it old (``gc.freeze``) would do so to all that is young, and dead cycles
    that hold memory would be found late, or never.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
