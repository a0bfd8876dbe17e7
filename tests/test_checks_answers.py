"""Answers that live in another process: what a judge gets of them, and what a hostile one can do to it."""

from __future__ import annotations

import base64
import copy
import math
import os
import time

import IPython
import numpy as np
import pytest
import torch
from torch import nn

from minigpt import checks
from minigpt.checks import answering, answers
from minigpt.checks.comparing import same, show
from minigpt.checks.probes import layers, models
from minigpt.checks.process import Process
from minigpt.model import GPT
from tests.judged import TINY, alike, refuses

GOOD = """
import numpy as np
import torch
from torch import nn
def double(x): print("doubling"); return 2 * x
def fails(x): return {}[x]
def unsteady(x, seen=[]): seen.append(x); return len(seen)
def changes(x): x.append(1); return x
def nothing(x): print(x)
def unwritten(x): raise NotImplementedError
def leaves(x): raise SystemExit(3)
def deep(x): return deep(x)
def hungry(x): return torch.empty(10 ** 13)
def endless(x):
    while True: pass
def numbers(x): return [np.int64(3), np.float32(0.5), np.bool_(True), np.arange(2), (x,), {(1, None): x}, np.str_("a")]
def itself(x): x = [x]; x.append(x); return x
def grads(x): torch.set_grad_enabled(False); return x
class Layer(nn.Module):
    def __init__(self, width): super().__init__(); self.layer = nn.Linear(width, width)
    def forward(self, x): return self.layer(x)
def width(layer): return layer.layer.in_features
table = {"a": {1: (2.5, None)}}
"""


@pytest.fixture(scope="module")
def there():
    with Process(env={**os.environ, "ANSWER_SECONDS": "2"}, seconds=6) as process:
        assert process.prepare("import torch") == ""
        yield process


@pytest.fixture
def good(there):
    """The process with cells that are well-meant."""
    there.fresh()
    assert there.run(GOOD) == ""
    return there


def verdict(ask) -> str | tuple:
    try:
        return ask()
    except checks.Wrong as wrong:
        return wrong.id, str(wrong).split("\n")[0], type(wrong.__cause__).__name__, str(wrong.__cause__)


@pytest.mark.parametrize("name", ["double", "fails", "changes", "nothing", "unwritten", "leaves", "deep", "hungry",
                                  "itself", "unsteady", "table", "grads"])  # fmt: skip
@pytest.mark.parametrize("argument", [3, [1, "a"]], ids=["int", "list"])
def test_an_answer_there_is_judged_as_it_is_here(good, name, argument):
    """The oracle: the very same call in this process."""
    here: dict = {}
    exec(GOOD, here)
    assert verdict(lambda: checks.call(good.answer(name), argument)) == verdict(
        lambda: checks.call(here[name], argument)
    )


def test_numbers_of_numpy_and_values_that_are_no_functions(good):
    count, half, true, array, one, keyed, text = checks.by_hand(good.answer("numbers"), 4)
    assert alike([count, half, one, keyed, text], [3, 0.5, (4,), {(1, None): 4}, "a"])
    assert type(true) is np.bool_ and type(array).__name__ == "ndarray" and show(array) == "array([0, 1])"
    assert checks.value(good.answer("table")) == {"a": {1: (2.5, None)}} == checks.value({"a": {1: (2.5, None)}})
    with refuses("not-run", "there is no nobody yet"):
        good.answer("nobody")


def test_an_object_stays_there_and_is_handed_back(good):
    made = checks.by_hand(good.answer("Layer"), 5, building=True, twice=False)
    assert isinstance(made, answers.Kept) and type(made).__name__ == "Layer"
    assert checks.call(good.answer("width"), made) == 5
    assert checks.call(made, torch.zeros(1, 5)).shape == (1, 5)
    assert good.run("import os; os._exit(0)") == "ends the process that it runs in (exit code 0)"
    with refuses("lost"):
        checks.call(good.answer("width"), made)


def test_a_model_s_weights_come_by_name(good):
    assert good.run(f"from minigpt.model import GPT, GPTConfig; torch.manual_seed(3); model = GPT({TINY})") == ""
    torch.manual_seed(3)
    mine = GPT(TINY)
    got = models.weights(good.answer("model"))
    assert got.keys() == mine.state_dict().keys() == models.weights(mine).keys()
    assert all(same(got[name], value) for name, value in mine.state_dict().items())
    assert got["lm_head.weight"].data_ptr() == got["token_embedding.weight"].data_ptr()


LORA = """
from torch import nn
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scaling, self.merged = base.requires_grad_(False), alpha / rank, False
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)
"""


def test_a_probe_tells_the_same_here_and_there(good):
    here = {"torch": torch}
    exec(LORA, here)
    assert good.run(LORA) == ""
    x, A, B, pull = (torch.randn(shape) for shape in ((3, 4), (2, 4), (5, 2), (3, 5)))
    base = nn.Linear(4, 5)
    mine, other = (layers.run(cls, copy.deepcopy(base), 2, 6, x, A, B, pull)
                   for cls in (here["LoRALinear"], good.answer("LoRALinear")))  # fmt: skip
    assert mine.keys() == other.keys() and mine["trained"] == other["trained"] == ["lora_A", "lora_B"]
    for name in ("y", "merged", "x"):
        torch.testing.assert_close(mine[name], other[name])
    torch.testing.assert_close(mine["gradients"], other["gradients"])
    torch.testing.assert_close(other["y"], base(x) + 3 * (x @ A.T @ B.T))
    assert type(other["lora_A"]) is nn.Parameter and other["base_given"] is True
    assert good.run(LORA.replace("x @ self.lora_A.T", "x @ self.lora_A")) == ""
    failed = layers.run(good.answer("LoRALinear"), base, 2, 6, x, A, B, pull)["y"]
    assert isinstance(failed, checks.Wrong) and "cannot be multiplied" in str(failed.__cause__)


HOSTILE = {  # an answer, and the ids of what may be said of it
    "prints past Python": ("import os\ndef f(x):\n os.write(1, b'a reply'); os.write(2, b'b'); return x", {""}),
    "prints with the old stdout": ("import sys\ndef f(x):\n print(1, file=sys.__stdout__, flush=True); return x", {""}),
    "leaves": ("import os\ndef f(x): os._exit(0)", {"ends-program"}),
    "kills itself": ("import os\ndef f(x): os.kill(os.getpid(), 9)", {"ends-program"}),
    "kills its parent": ("import os\ndef f(x): os.kill(os.getppid(), 9)", {"ends-program"}),
    "kills its group": ("import os\ndef f(x): os.killpg(0, 9)", {"ends-program"}),
    "closes everything": ("import os\ndef f(x): os.closerange(0, 100); return x", {"ends-program"}),
    "never ends": ("def f(x):\n while True: pass", {"does-not-end"}),
    "never ends, and will not hear": (
        "import signal\ndef f(x):\n signal.signal(signal.SIGALRM, signal.SIG_IGN)\n while True: pass",
        {"does-not-end"}),
    "catches everything": ("def f(x):\n while True:\n  try:\n   while True: pass\n  except BaseException: pass",
                           {"does-not-end"}),
    "leaves a child behind": ("import os, time\ndef f(x):\n if not os.fork(): time.sleep(60)\n os._exit(0)",
                              {"ends-program"}),
    "gives too much": ("def f(x): return 'x' * 2 ** 25", {"broken-reply"}),
    "gives too many numbers": ("import torch\ndef f(x): return torch.zeros(2 ** 28)", {"broken-reply", "does-not-end"}),
    "gives a number that is wide": ("import torch\ndef f(x): return torch.zeros(1).expand(2 ** 45)", {"broken-reply"}),
    "a class that lies": (
        "class Lie:\n"
        " @property\n def __class__(self): return int\n"
        " def __eq__(self, other): return True\n"
        " def __reduce__(self): import os; return os._exit, (0,)\n"
        " def __repr__(self): raise KeyError\n"
        " def __index__(self): raise TypeError\n"
        "lie = Lie()\ndef f(x): return lie", {"", "raises-keyerror"}),
    "a dictionary that lies": (
        "class Lie(dict):\n"
        " def __iter__(self): return iter([1] * 10)\n def __getitem__(self, key): return key\n"
        " def items(self): raise KeyError\n"
        "def f(x): return Lie(a=1)", {""}),
    "says it is a verdict": ("def f(x):\n from minigpt.checks import Wrong\n raise Wrong('earlier-part', 'not mine')",
                             {"broken-reply"}),
    "returns a verdict": ("def f(x):\n from minigpt.checks import Wrong\n return Wrong('mine', 'it')", {"mine"}),
    "writes the reply itself": (
        "from minigpt.checks import wire\n"
        "def f(x):\n wire.pack = lambda *_: b'nonsense'\n return x", {"broken-reply"}),
    "replies before it is asked": (
        "import os\n"
        "def f(x):\n"
        " for n in range(3, 100):\n"
        "  try: os.write(n, b'nonsense' * 10)\n  except OSError: pass\n"
        " return x", {"ends-program", "broken-reply"}),
    "replies twice": (
        "from minigpt.checks import frames\n"
        "def f(x):\n"
        " send = frames.Pipe.send\n"
        " frames.Pipe.send = lambda *what: [send(*what), send(*what)]\n"
        " return x", {""}),
    "takes all descriptors": (
        "import os\n"
        "def f(x):\n"
        " while True:\n"
        "  try: os.dup(0)\n  except OSError: return x", {""}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trick", HOSTILE)
def test_an_answer_costs_no_more_than_itself(there, capfd, trick):
    source, ids = HOSTILE[trick]
    there.fresh()
    assert there.run("def before(x): return x + 1") == ""
    assert there.run(source) == ""
    assert there.run("def after(x): return x + 2") == ""
    assert checks.call(there.answer("before"), 1) == 2
    began, found = time.monotonic(), ""
    try:
        checks.call(there.answer("f"), 5, twice=False)
    except checks.Wrong as wrong:
        found = wrong.id
    assert found in ids and time.monotonic() - began < 40
    for _ in range(2):
        assert checks.call(there.answer("after"), 1) == 3 and checks.call(there.answer("before"), 1) == 2
    assert capfd.readouterr() == ("", "")


def test_who_ends_the_process_once_is_not_asked_again(good):
    assert good.run("def stubborn(x):\n    import os; os._exit(2)") == ""
    stubborn, said = good.answer("stubborn"), []
    for _ in range(2):
        began = time.monotonic()
        said.append((verdict(lambda: checks.call(stubborn, 1)), time.monotonic() - began))
    (first, _), (second, seconds) = said
    assert first == second and first[0] == "ends-program" and "exit code 2" in first[1] and seconds < 0.01


def test_a_cell_that_replies_unasked_is_left_out(good):
    twice = "frames.Pipe.send = lambda *what: [send(*what), send(*what)]"
    assert good.run(f"from minigpt.checks import frames\nsend = frames.Pipe.send\n{twice}\ndef f(x): return x") == ""
    assert good.run("def g(x): return x") == "" and checks.call(good.answer("g"), 4) == 4
    assert checks.call(good.answer("double"), 4) == 8
    with refuses("not-run"):
        good.answer("f")


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["import os; os._exit(1)", "import os; os.kill(os.getppid(), 9)", "while True: pass"])
def test_a_cell_that_ends_the_process_is_left_out(good, cell):
    assert any(why in good.run(cell) for why in ("ends the process", "had not ended"))
    assert checks.call(good.answer("double"), 4) == 8
    assert good.run("1 / 0") == "ZeroDivisionError: division by zero"
    assert good.run("%time x = 3\n!true") == "" and checks.value(good.answer("x")) == 3  # magics work


def test_no_threads_are_left_over_from_before_the_fork(good):
    """A training in the process that forks, and then one in the child: a pool of threads would hang there."""
    train = "model = torch.nn.Linear(512, 512); model(torch.randn(256, 512)).square().mean().backward()"
    there, text = good, "def trains(x):\n    global model\n    {}\n    return model.weight.grad.shape[0]"
    assert there.prepare(train) == ""
    assert there.run(text.format(train)) == "" and checks.call(there.answer("trains"), 1) == 512


def test_a_check_looks_its_answers_up_where_they_are(good):
    def check_double(double):
        checks.integer(checks.call(double, 21), 42, "double")

    with answers.elsewhere(good):
        assert checks.check(check_double) is None
    with refuses("not-run"):
        checks.check(check_double)

    def check_nobody(nobody):
        raise RuntimeError

    with answers.elsewhere(good), refuses("not-run"):
        checks.check(check_nobody)


def test_a_kernel_serves_the_same_as_text(monkeypatch):
    shell = type("Shell", (), {"user_ns": {"f": math.sqrt, "predicted": {"a": 1}}})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)

    class Kernel(answers.Channel):
        def exchange(self, request, about):
            return base64.b64decode(answering.serve_text(base64.b64encode(request).decode()))

    assert checks.call(Kernel().answer("f"), 9) == 3.0
    assert checks.value(Kernel().answer("predicted")) == {"a": 1}
