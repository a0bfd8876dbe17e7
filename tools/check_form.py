"""The form of a check cell: one function, decorated with ``@checks.check``, that imports inside it what it needs.

    from minigpt import checks


    @checks.check
    def check_count_minigpt(count_minigpt):
        from minigpt.checks.counting import parameters
        ...
        return checks.score(...)

What else a cell may hold, and what it would do: a second function or a value at its top stays in the notebook, where it
covers a helper of a student's, and answers can read it; and a grader runs no more than the function.
"""

from __future__ import annotations

import ast

IMPORT = "from minigpt import checks"


def refuse_other_forms(name: str, source: str) -> None:
    """Raises ValueError, with a sentence, for a check cell called ``name`` that is not of the form above."""
    if fault := _fault(name.replace("-", "_"), ast.parse(source).body):
        raise ValueError(f"cell {name!r}: {fault}")


def _fault(wanted: str, body: list[ast.stmt]) -> str | None:
    top, function = body if len(body) == 2 else (None, None)
    if top is None or not isinstance(function, ast.FunctionDef) or ast.unparse(top) != IMPORT:
        return f"a check cell is `{IMPORT}` and one function below it, and nothing else at its top"
    if [ast.unparse(one) for one in function.decorator_list] != ["checks.check"]:
        return f"{function.name} needs @checks.check above it, alone: that runs it"
    if function.name != wanted:
        return f"its function is {function.name}; it is called as the cell, {wanted}"
    answers = function.args
    if answers.posonlyargs or answers.vararg or answers.kwarg or answers.defaults or any(answers.kw_defaults):
        return f"the parameters of {wanted} are names of answers; none has a default, and none is *args or **kwargs"
    if not (answers.args or answers.kwonlyargs):
        return f"{wanted} has no parameter; its parameters are the answers that it looks at"
    last = function.body[-1]
    ends = last.value if isinstance(last, ast.Return) else None
    if isinstance(last, ast.With):
        ends = last.items[0].context_expr
    if not isinstance(ends, ast.Call) or ast.unparse(ends.func) not in ("checks.score", "checks.judging"):
        return f"{wanted} ends in `return checks.score(...)`, or in `with checks.judging(...):` for a run"
    if any(isinstance(node, ast.Global) for node in ast.walk(function)):
        return f"{wanted} has a global; a check leaves nothing behind"
    return None
