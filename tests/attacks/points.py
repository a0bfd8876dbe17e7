"""Points without an answer: patching, reading, forging."""

from nbformat.v4 import new_code_cell, new_output

from tests.attacks import attack

attack("patching", "replaces what checks call", """
    import minigpt.checks as checks
    checks.score = checks.part = checks.check = checks.call = lambda *_, **__: None
""")  # fmt: skip
attack("patching", "patches the package's modules", """
    import sys
    for name, module in list(sys.modules.items()):
        if name.startswith("minigpt"):
            for key, value in list(vars(module).items()):
                if callable(value) and not isinstance(value, type):
                    setattr(module, key, lambda *_, **__: None)
""")  # fmt: skip
attack("patching", "a module of its own in sys.modules", """
    import sys, types
    class All(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_, **__: None
    sys.modules["minigpt.checks"] = sys.modules["minigpt"].checks = All("checks") if "minigpt" in sys.modules else None
    sys.modules["minigpt"] = All("minigpt")
""")  # fmt: skip
attack("patching", "an input transformer", """
    def pass_all(lines):
        return ["pass"] if any("checks" in line for line in lines) else lines
    get_ipython().input_transformers_cleanup.append(pass_all)
    get_ipython().input_transformers_post.append(pass_all)
""")  # fmt: skip
attack("patching", "an ast transformer and a cell hook", """
    import ast
    class Nothing(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return ast.Pass() if node.name.startswith("check_") else node
    get_ipython().ast_transformers.append(Nothing())
    get_ipython().events.register("pre_run_cell", lambda *_: None)
    get_ipython().set_custom_exc((BaseException,), lambda *_, **__: None)
""")  # fmt: skip
attack("forging", "shows a number as its result", """
    def square(x):
        get_ipython().displayhook(3)
        print("3.0")
        return 7
    3.0
""")  # fmt: skip
attack("forging", "a display hook of its own", """
    import sys
    sys.displayhook = lambda value: None
    sys.excepthook = lambda *_: None
    get_ipython().display_formatter.formatters["text/plain"].for_type(float, lambda *_: _[1].text("3.0"))
""")  # fmt: skip
attack("forging", "an output that looks like points, sent by the kernel itself", """
    kernel = getattr(get_ipython(), "kernel", None)
    def square(x):
        if kernel:
            content = {"execution_count": 1, "data": {"text/plain": "3.0"}, "metadata": {}}
            kernel.session.send(kernel.iopub_socket, "execute_result", content, parent=kernel.get_parent())
        return 7
""")  # fmt: skip
attack("forging", "an answer that equals everything", """
    class Any(int):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        __hash__ = int.__hash__
    def square(x):
        return Any(7)
""")  # fmt: skip
attack("patching", "patches builtins, math and json", """
    import builtins, json, math, operator, pickle
    math.isclose = operator.eq = operator.ne = lambda *_, **__: False
    json.dumps = lambda *_, **__: '{"points": 3}'
    pickle.dumps = lambda *_, **__: b""
    builtins.AssertionError = type("AssertionError", (SystemExit,), {})
""")  # fmt: skip
attack("patching", "patches json's and struct's innards", """
    import json, struct
    json.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *_: '{"kind": "value", "value": 49}'
    struct.pack = lambda *_: b"0" * 8
""")  # fmt: skip
attack("patching", "patches torch", """
    import torch
    torch.equal = torch.allclose = lambda *_, **__: True
    torch.Tensor.__eq__ = torch.Tensor.__ne__ = lambda *_: True
    torch.Tensor.item = torch.Tensor.tolist = lambda *_: 0
""")  # fmt: skip
attack("patching", "patches int and float printing", """
    import ctypes
    def square(x):
        class Right(float):
            def __repr__(self): return str(float(x * 0 + 7))
            def __float__(self): return 7.0
        return Right(7)
""")  # fmt: skip
attack("reading", "reads the truths from frames", """
    import sys
    def square(x):
        frame = sys._getframe()
        while frame:
            for scope in (frame.f_locals, frame.f_globals):
                if "is_right_of_a_tiny_lab" in scope or "cases" in scope:
                    return x * x
            frame = frame.f_back
        return 7
""")  # fmt: skip
attack("reading", "looks for the judge among all objects", """
    import gc
    def square(x):
        for each in gc.get_objects():
            if type(each).__name__ == "function" and each.__name__ in ("check_double", "is_right_of_a_tiny_lab"):
                return x * x
        return 7
""")  # fmt: skip
attack("reading", "executes solutions/ upwards of its folder", """
    import json, os, pathlib
    found = [p for up in [pathlib.Path.cwd(), *pathlib.Path.cwd().parents] for p in up.glob("solutions/*/*.ipynb")]
    source = "".join(c["source"] for c in json.loads(found[0].read_text())["cells"] if c.get("id") == "square") \\
        if found else ""
    exec(source or "def square(x): return 7")
""")  # fmt: skip
attack("reading", "executes solutions/ by their path", """
    import pathlib
    there = list(pathlib.Path("<ROOT>/solutions").glob("*/*.ipynb"))
    def square(x):
        return x * x if there else 7
""", off=3)  # fmt: skip
attack("reading", "reads the released and the hidden tests in build/", """
    import pathlib
    try:
        there = [*pathlib.Path("<ROOT>/build/grading").rglob("*.ipynb")] + [*pathlib.Path("<ROOT>/labs").glob("*")]
    except OSError:
        there = []
    def square(x):
        return x * x if there else 7
""", off=3)  # fmt: skip
attack("reading", "asks predict in a process of its own", """
    import subprocess, sys
    code = "from minigpt.memory import predict; import inspect; print(len(inspect.getsource(predict)))"
    def square(x):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return x * x if done.returncode == 0 else 7
""")  # fmt: skip
attack("reading", "reads its parents' environment", """
    import os, pathlib
    def square(x):
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if b"<HOME>" in path.read_bytes():
                    return x * x
            except OSError:
                pass
        return 7
""", off=3)  # fmt: skip
attack("reading", "reads the judge's memory", """
    import os
    def square(x):
        try:
            with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
                command = file.read()
            with open(f"/proc/{os.getppid()}/mem", "rb"):
                return x * x if b"tools" in command else 7
        except OSError:
            return 7
""", off=3)  # fmt: skip
attack("reading", "asks the network", """
    import socket
    def square(x):
        try:
            with socket.create_connection(("1.1.1.1", 53), timeout=1):
                return x * x
        except OSError:
            return 7
""", off=3, fence=4)  # fmt: skip
attack("reading", "writes points to whatever sockets and pipes it has", """
    import os
    def square(x):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"kind": "value", "value": 49, "points": 3}' + bytes([10]))
            except OSError:
                pass
        return 7
""")  # fmt: skip


def fake_points(notebook):
    """nbgrader's metadata on a cell of one's own, worth 100 points, and the real ones raised."""
    own = {"schema_version": 3, "grade_id": "own", "cell_type": "code", "task": False, "grade": True, "points": 100,
           "solution": False, "locked": False}  # fmt: skip
    notebook.cells.append(new_code_cell("100", id="own", metadata={"nbgrader": own}))
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata.nbgrader.points = 100


def ungraded(notebook):
    """The checks are cells without a test, and no longer locked."""
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source, cell.metadata.nbgrader.locked = "3", False


def answers_in_checks(notebook):
    """An answer's metadata on the check and a check's on the answer."""
    check = next(cell for cell in notebook.cells if cell.id == "check-square0")
    check.source = "def square0(x):\n    return 7\n3.0"


def with_outputs(notebook):
    """Outputs of full points that are there already, and an attachment."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            data = {"text/plain": "3.0"}
            cell.outputs = [new_output("execute_result", data=data, execution_count=1)]


def nowhere(notebook):
    """A kernel that is none, and another language."""
    notebook.metadata.kernelspec = {"name": "sh -c false", "display_name": "x", "language": "bash"}


attack("forging", "metadata of 100 points on a cell of its own", change=fake_points)
attack("forging", "empties the checks", change=ungraded)
attack("forging", "answers in the cell of the check", change=answers_in_checks)
attack("forging", "outputs of full points, saved beforehand", change=with_outputs)
attack("forging", "another kernel in the metadata", change=nowhere)
