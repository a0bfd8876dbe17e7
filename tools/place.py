"""A student's place: fill work/ from lessons/ and labs/, and open JupyterLab there: ``python -m tools.place``.

    work/index.ipynb   the map; work/lessons/, work/labs/   copies;   work/readings/   what labs measured

work/ is git-ignored, and the rule is: **a file that somebody saved is theirs.** A copy that is still, byte for byte,
what the course gave is replaced by the course's next version. Any other is never touched: the next version is put
beside it, once, as ``NAME.new.ipynb``, and said. A copy that is missing comes back. What was given is recorded in
work/.given.json, as a hash of each file; without the record everything is theirs.

Options that this command does not know go to JupyterLab, as ``--no-browser`` or ``--allow-root``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path, PurePosixPath

import nbformat

from minigpt.place import WORK
from tools import ROOT, write_whole
from tools.figures import FOLDER

RECORD = ".given.json"
SETTINGS = Path(__file__).resolve().parent / "lab"
ROOT_REFUSED = (
    "place: JupyterLab was not opened: you are root, and whoever has its address would be root, too. Start it as "
    "another user or, where root is the only one (a container), with: make lab ARGS=--allow-root"
)


def fill(root: Path) -> list[str]:
    """Bring work/ up to date; returns what there is to say, a sentence each.

    Raises ValueError where the course has no notebooks, or work is no folder; OSError for what cannot be written.
    """
    work, given = root / WORK, read_record(root)
    if work.exists() and not work.is_dir():
        raise ValueError(f"{WORK} is a file; it must be a folder, or nothing: move it away")
    notebooks = [*root.glob("index.ipynb"), *root.glob("lessons/*.ipynb"), *root.glob("labs/lab*/*.ipynb")]
    copies = sorted([*notebooks, *root.glob(f"{FOLDER}/*.svg")])
    if not notebooks:
        raise ValueError(f"no notebooks in lessons/ or labs/ of {root}; make them with: make notebooks")
    said, made, refreshed = [], 0, 0
    for source in copies:
        name, new = source.relative_to(root).as_posix(), source.read_bytes()
        target, was, now = work / name, given.get(name), digest(new)
        there = digest(target.read_bytes()) if target.exists() else None
        if source in notebooks and executed(source):  # what somebody did there is theirs, and no version of the course
            said.append(f"{name} was run in the course's own folder: `git checkout -- {name}` gives back the course's")
            made += put(target, new) if there is None else 0
            continue
        if there is None:
            made += put(target, new)
        elif there == was != now:
            refreshed += put(target, new)
        elif there != now != was:
            said.append(put_beside(work, name, new, given))
        given[name] = now
    write_whole(work / RECORD, json.dumps(given, indent=1, sort_keys=True) + "\n")
    (work / "readings").mkdir(exist_ok=True)
    counts = [f"{n} {what}" for n, what in ((made, "copied"), (refreshed, "brought up to date")) if n]
    return [f"{WORK}/: {len(notebooks)} notebooks, {', '.join(counts) or 'all there already'}.", *said]


def put(path: Path, content: bytes) -> bool:
    write_whole(path, content.decode("utf8"))
    return True


def put_beside(work: Path, name: str, new: bytes, given: dict[str, str]) -> str:
    """The course's new version of a file that is the student's, beside it; the sentence that says so."""
    beside = PurePosixPath(name).with_suffix(f".new{PurePosixPath(name).suffix}").as_posix()
    path = work / beside
    if path.exists() and digest(path.read_bytes()) != given.get(beside):
        return f"{WORK}/{name} and {beside} are yours and stay as they are; the course's new version is {name}"
    put(path, new)
    given[beside] = digest(new)
    return f"{WORK}/{name} is yours and stays as it is; the course's new version lies beside it: {Path(beside).name}"


def read_record(root: Path) -> dict[str, str]:
    """The hash of what was given last, by the file's name; empty where nobody knows, so that everything is kept."""
    try:
        record = json.loads((root / WORK / RECORD).read_text(encoding="utf8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def executed(path: Path) -> bool:
    """Whether somebody ran this notebook: the build's have no outputs."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception:  # nbformat raises many kinds: it is somebody's file, and none of the build's
        return True
    return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def open_lab(options: list[str]) -> None:
    """JupyterLab with the course's settings, until it is stopped."""
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance([f"--config={SETTINGS / 'jupyter_lab_config.py'}", *options])


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.place", description=__doc__.splitlines()[0])
    parser.add_argument("--fill-only", action="store_true", help="make or refresh work/, and open nothing")
    args, options = parser.parse_known_args(argv)
    try:
        for sentence in fill(root):
            print(sentence)
    except (ValueError, OSError) as error:
        print(f"place: {error}", file=sys.stderr)
        return 2
    if args.fill_only:
        return 0
    if is_root() and "--allow-root" not in options:
        print(ROOT_REFUSED, file=sys.stderr)
        return 2
    print("JupyterLab opens in the browser; where none opens, the address is below. Ctrl-C here stops it.", flush=True)
    open_lab(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
