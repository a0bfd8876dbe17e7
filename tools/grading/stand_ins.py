"""What stands in the closed edition for everything that is not in it: any name imports, and any use of it refuses.

``tools/grading/edition.py`` copies this file into the edition as ``minigpt/stand_ins.py``; ``minigpt`` and the stub
packages import it there. It refuses as ``minigpt.checks.closing`` does: a verdict has the id that it has in a notebook.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGES = ("accelerate", "bitsandbytes", "galore_torch", "peft", "transformers", "trl")  # closed in every lab
HERE = Path(__file__).resolve().parents[1]


def refuse(name: str = ""):
    """Raises Wrong for the use of what ``name``, with dots, would be in the whole package."""
    from minigpt.checks import closing

    closing.refuse(*verdict(name))


def verdict(name: str) -> tuple[str, str]:
    """The id, and in words what is asked."""
    package, last = name.split(".")[0], name.split(".")[-1]
    if name.startswith("bitsandbytes.optim") or name.startswith("minigpt.optim") and last[:1].isupper():
        return "asks-optimizer", "an optimizer"
    if name.startswith("minigpt.model") or package == "transformers":
        return "asks-model", "a model that it builds"
    if package in PACKAGES:
        return f"asks-{package.replace('_', '-')}", package
    return "asks-course", "the course's own arithmetic"


class Refuses:
    """Anything: a module, a function, a table. It can be imported and handed on, its parts are as it is; no more."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} is not in the closed edition>"

    def __getattr__(self, name: str):
        if name.startswith("__"):  # Python looks for many of these by itself, and takes their absence for an answer
            raise AttributeError(name)
        return Refuses(f"{self._name}.{name}")


def _use(self, *args, **kwargs):
    refuse(self._name)


for _each in (
    "call getitem setitem contains iter next len bool int float index add radd sub rsub mul rmul truediv rtruediv mod "
    "floordiv pow or ror and neg lt le gt ge enter exit mro_entries instancecheck subclasscheck"
).split():
    setattr(Refuses, f"__{_each}__", _use)


class Missing(Loader):
    """The finder and loader of modules that are not there, below these packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(tuple(f"{package}." for package in self.packages)):
            return None
        folder = HERE.joinpath(*name.split("."))
        if (folder / "__init__.py").exists() or folder.with_suffix(".py").exists():
            return None
        spec = ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(folder)] if folder.is_dir() else []  # some of it may be there
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = asks(module.__name__)


def asks(module: str) -> Callable[[str], Refuses]:
    """The ``__getattr__`` of a module of which nothing is there."""

    def ask(name: str) -> Refuses:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return Refuses(f"{module}.{name}")

    return ask


def install() -> None:
    """Every module of ``minigpt`` and of the packages that is not in the edition is a stand-in."""
    import torch

    if not any(isinstance(finder, Missing) for finder in sys.meta_path):
        sys.meta_path.insert(0, Missing(["minigpt", *PACKAGES]))
        vars(torch.ops)["bitsandbytes"] = Refuses("bitsandbytes.kernels")
