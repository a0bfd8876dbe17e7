"""In the kernel, before a notebook's first cell: let it end in an instant, with all that has to be done at its end.

Python takes a million objects apart when it ends, which after torch and transformers takes more than a second. What was
registered with ``atexit`` runs as ever (temporary folders go); then the process leaves the rest to the system.
"""

from __future__ import annotations

import atexit
import os


def leave() -> None:
    atexit.unregister(leave)
    atexit._run_exitfuncs()
    os._exit(0)


def come_first(*_) -> None:
    """What was registered last runs first, and nothing may run twice."""
    atexit.unregister(leave)
    atexit.register(leave)


if __name__ == "leave":  # tools/execute.py runs this file under that name
    from IPython import get_ipython

    get_ipython().events.register("post_run_cell", come_first)
