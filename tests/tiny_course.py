"""The texts of a tiny course, in parts, and what the build made of them."""

from __future__ import annotations

import nbformat

HEAD = """---
title: Tiny
read: 45
minutes: {cpu: 1, gpu: 0.5}
memory_gb: {ram: 1, vram: 2}
---
"""
EXERCISE = """
```{code-cell}
:name: double
:tags: [exercise]

def double(x):
    ### BEGIN SOLUTION
    return 2 * x  # the secret answer
    ### END SOLUTION
```
"""
CHECK = """
```{code-cell}
:name: check-double
:tags: [check]
:points: 2

from minigpt import checks


@checks.check
def check_double(double):
    with checks.judging("double doubles"):
        assert checks.call(double, 2) == 4
        ### BEGIN HIDDEN TESTS
        assert checks.call(double, 3) == 6  # the secret test
        ### END HIDDEN TESTS
```
"""
TASK = """
+++ {"name": "explain", "tags": ["task"], "points": 3}

Why?

### BEGIN MARK SCHEME
The secret mark scheme.
### END MARK SCHEME

+++

The end.
"""
LAB = HEAD + "\n## Part 1\n" + EXERCISE + CHECK + TASK
LESSON = HEAD + "\n## Counting\n\n```{code-cell}\n1 + 1\n```\n\n```{code-cell}\n1 + 1\n```\n"


def names(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.ipynb")}


def cells(root, path):
    return {cell.id: cell for cell in nbformat.read(root / path, as_version=4).cells}
