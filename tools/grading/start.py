"""Between a box and the program in it: ``python -I -S start.py OPTIONS PROGRAM ...``, OPTIONS as JSON.

    join: [files]        of control groups, to which this process is added
    copy: [from, to]     a fresh copy of the files that the program starts with
    limits: {name: n}    of this process and all that come from it, as RLIMIT_NAME

Imports nothing but what comes with Python: it runs where nothing else is there yet.
"""

import json
import os
import shutil
import sys


def main(options: dict, program: list) -> None:
    for file in options.get("join", ()):
        with open(file, "w") as group:
            group.write(str(os.getpid()))
    if "copy" in options:
        given, to = options["copy"]
        shutil.copytree(given, to, dirs_exist_ok=True, symlinks=True)
        for folder, _, files in os.walk(to):
            for path in (folder, *(os.path.join(folder, file) for file in files)):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)  # whoever may do what with the originals
    for name, most in options.get("limits", {}).items():
        limit(name, most)
    os.execvp(program[0], program)


def limit(name: str, most: int) -> None:
    """Lower a limit to ``most``; a system that has no such limit, or a lower one, keeps its own."""
    try:
        import resource

        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        most = most if hard < 0 else min(most, hard)
        resource.setrlimit(kind, (most, most))
    except (ImportError, AttributeError, ValueError, OSError):
        pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
