"""nbgrader's Execute, in a box, and without the checks: these are judged outside, each as soon as its turn comes.

Two processes run a submission. The notebook's own kernel runs all of it but the checks, for the feedback page and for
what its cells make. The closed one (``closed.py``) has the answers, and is asked by the checks (``judge.py``). Both are
in boxes. A cell that ends the kernel, or does not end, costs itself: a new kernel has setup and answers run again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nbformat
from IPython.paths import get_ipython_dir
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import run_sync
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from nbgrader.utils import is_grade, is_solution
from traitlets import Integer, Unicode

from tools import ROOT
from tools.grading import edition, stand_ins
from tools.grading.box import Box, held
from tools.grading.closed import Closed, about, acts, exercise
from tools.grading.judge import SHARED, Verdict, judge, prepared, unreadable
from tools.grading.kernels import BoxedManager, Kernel, reply
from tools.grading.untouched import untouched

SAID = 10 * 2**20  # characters of what one cell puts out, after which nothing is kept
ALIVE = 10  # seconds in which a kernel that has nothing to do answers
REVIVED = 5  # times that one submission gets a new kernel
NOTES: list[str] = []  # what there is to say of the submission that this process graded last, a sentence each
GONE = {"ends-program", "not-run"}  # what is said of an answer when another has ended its process
AGAIN = "An earlier part has not passed, so this one was judged with the course's own earlier answers."
ALONE = "Another cell of this notebook spoils this answer, so it was judged where that cell has not run."


class Judged(Execute):
    """Named in Autograde.autograde_preprocessors in the place of Execute."""

    sandbox = Unicode("auto", help="require, auto or off").tag(config=True)
    course = Unicode(str(ROOT), help="the folder with solutions/").tag(config=True)
    together = Integer(900, help="seconds that all cells of the notebook's own kernel may take").tag(config=True)
    patience = Integer(60, help="seconds that one call of an answer may take").tag(config=True)
    timeout = Integer(120, help="seconds that one of them may take").tag(config=True)

    def preprocess(self, nb, resources=None, km=None):
        names = (resources or {}).get("nbgrader", {})
        lab = Path(self.course, "solutions", names["assignment"], f"{names['notebook']}.ipynb")
        self.cells = nbformat.read(lab, as_version=4).cells
        self.checks = {cell.metadata.nbgrader.grade_id: cell for cell in self.cells if judged(cell)}
        self.boxed, self.files = held(self.sandbox), Path(resources["metadata"]["path"]).resolve()
        self.spent, self.revived, self.done = 0.0, 0, []
        self.broken: list[str] = []
        self.opened = Kernel(self._evaluate)
        late = f"This cell had not ended after {self.timeout} seconds."
        self.error_on_timeout = {"ename": "Stopped", "evalue": late, "traceback": [late]}
        packages, hidden = editions(Path(self.course).resolve(), names["assignment"])
        more = {"ANSWER_SECONDS": str(self.patience)}
        beside = self._beside()
        box = Box(self.boxed, packages, Path(beside.name), hidden, more)
        get_ipython_dir()  # which makes it: that is no doing of the student's
        alone: contextlib.AbstractContextManager[None] = (
            contextlib.nullcontext() if self.boxed else untouched(Path(self.course), Path.home(), NOTES)
        )
        with alone, beside, box, ThreadPoolExecutor(1) as pool:
            # bubblewrap ends with the thread that started it; the pool's stays to the end
            self.pool, self.closing = pool, pool.submit(self._close, box)
            self.waiting: list[Future] = []
            begun = time.monotonic()
            self.namespace = prepared(self.cells)
            self._log(begun, "the judge is there")
            try:
                return super().preprocess(nb, resources, km)
            finally:
                self.closed.close()
                NOTES[:] = self.broken

    def _beside(self) -> tempfile.TemporaryDirectory:
        """A copy of what the student handed in beside the notebook; the notebook has the hidden tests in it."""
        folder = tempfile.TemporaryDirectory(prefix="beside-", ignore_cleanup_errors=True)
        shutil.copytree(self.files, folder.name, ignore=shutil.ignore_patterns("*.ipynb"), dirs_exist_ok=True)
        return folder

    def _close(self, box: Box) -> Closed:
        """Takes seconds, for its imports, while the kernel and the judge have theirs."""
        begun = time.monotonic()
        closed = Closed(box, self.cells, 2 * self.patience + 30)
        self._log(begun, "the closed process is there")
        return closed

    @property
    def closed(self) -> Closed:
        return self.closing.result()

    def create_kernel_manager(self):
        self.km = BoxedManager(kernel_name="python3", config=self.config)
        self.km.use(Box(self.boxed, [ROOT / "minigpt"], self.files))
        return self.km

    def preprocess_cell(self, cell, resources, index):
        begun = time.monotonic()
        if cell.cell_type != "code":
            return cell, resources
        if judged(cell):
            self._judge(cell)
        else:
            self._run(cell, index)
            self.waiting.append(self.pool.submit(lambda: self.closed.run(cell)))
        self._log(begun, cell.metadata.get("nbgrader", {}).get("grade_id") or cell.id)
        return cell, resources

    # ------------------------------------------------------------ the notebook's own kernel

    def _run(self, cell, index: int) -> None:
        """Execute a cell, as nbgrader does, and see that the kernel is still there afterwards."""
        cell.outputs, cell.execution_count, begun = [], None, time.monotonic()
        self.said, self.leaving = 0, False
        if self.revived > REVIVED or self.spent > self.together:
            why = f"the kernel was ended {self.revived} times" if self.revived > REVIVED else "its time was used up"
            cell.outputs = [_stopped(f"This cell was not run: {why}.")]
            return
        try:
            self.execute_cell(cell, index, store_history=True)
            if self.leaving:
                raise DeadKernelError
            self._see(ALIVE)
            self.done.append(cell)
        except DeadKernelError:
            cell.outputs.append(
                _stopped("This cell ended the kernel. The cells after it ran in a new one, without it.")
            )
            self._revive()
        except (CellTimeoutError, TimeoutError):
            cell.outputs.append(_stopped("This cell could not be stopped. The cells after it ran without it."))
            self._revive()
        except Exception as error:  # jupyter's client trusts a kernel to speak as kernels do
            print(f"the kernel speaks no more: {type(error).__name__}: {error}", file=sys.stderr)
            cell.outputs.append(
                _stopped("This cell broke the kernel. The cells after it ran in a new one, without it.")
            )
            self._revive()
        finally:
            self.spent += time.monotonic() - begun

    def on_cell_executed(self, **kwargs):
        """``quit()`` ends the kernel a moment after its cell."""
        super().on_cell_executed(**kwargs)
        payload = kwargs["execute_reply"]["content"].get("payload") or ()
        self.leaving = any(isinstance(each, dict) and each.get("source") == "ask_exit" for each in payload)

    def process_message(self, msg, cell, cell_index):
        """Nothing more is kept of a cell that has put out too much."""
        if msg["msg_type"] not in ("status", "execute_input"):
            self.said += len(json.dumps(msg["content"], default=str))
            if self.said > SAID:
                return None
        return super().process_message(msg, cell, cell_index)

    def _see(self, seconds: float) -> None:
        """Raises DeadKernelError where the kernel has ended, TimeoutError where it does not answer."""
        if reply(self.kc, self.km, self.kc.kernel_info(), seconds) is None:
            raise TimeoutError

    def _revive(self) -> None:
        """A new kernel, in which setup and finished answers have run; from the second on those that only define."""
        self.revived += 1
        kept = [cell for cell in self.done if SHARED & {*cell.metadata.get("tags", [])} or not self._given(cell)
                and not (self.revived > 1 and acts(cell.source))]  # fmt: skip
        self.done = []
        self._cleanup_kernel()
        self.create_kernel_manager()
        self.start_new_kernel()
        self.start_new_kernel_client()
        for i, cell in enumerate(kept):
            try:
                if reply(self.kc, self.km, self.kc.execute(cell.source, silent=True), self.timeout) is None:
                    raise TimeoutError
                self._see(ALIVE)
                self.done.append(cell)
            except (DeadKernelError, TimeoutError):  # it has run before: so this time it depends on luck
                self.done += kept[i + 1 :]
                if self.revived <= REVIVED:
                    self._revive()
                return

    def _given(self, cell) -> bool:
        """Whether it is the course's own cell, no answer."""
        return not exercise(cell) and any(cell.id == each.id for each in self.cells)

    def _evaluate(self, code: str) -> dict:
        """What an expression gives in the kernel. Raises DeadKernelError and TimeoutError."""
        sent = self.kc.execute("", silent=True, store_history=False, user_expressions={"r": code})
        try:
            content = reply(self.kc, self.km, sent, 2 * self.patience + 30)
            if content is None:
                run_sync(self.km.interrupt_kernel)()
                raise TimeoutError
            self._see(ALIVE)
            return content["user_expressions"]["r"]
        except (DeadKernelError, TimeoutError):
            self._revive()
            raise

    # ------------------------------------------------------------ the checks

    def _judge(self, cell) -> None:
        name = cell.metadata.nbgrader.grade_id
        if name not in self.checks:
            return
        while self.waiting:
            self.waiting.pop(0).result()
        verdict = self._ask(name)
        if verdict.points is not None and (alone := self.closed.alone(name)):
            verdict = self._again(name, verdict, alone, ALONE)
        own, _ = about(self.closed.cells, name)  # a run has none: with the course's answers it would be the course's
        if own and "earlier-part" in verdict.ids:
            verdict = self._again(name, verdict, self.closed.course(name), AGAIN)
        if verdict.broken:
            verdict = self._whose(name, verdict)
            self.broken.append(verdict.broken)
        self.closed.anew()
        cell.outputs, cell.execution_count = verdict.outputs, None
        cell.metadata["verdict"] = verdict.wrong.id if verdict.wrong else ""  # for points.csv

    def _ask(self, name: str) -> Verdict:
        return judge(self.checks[name], self.namespace, self.closed.beside(self.opened))

    def _again(self, name: str, verdict: Verdict, where: contextlib.AbstractContextManager, why: str) -> Verdict:
        """The better one, of ``verdict`` and of what comes of it there; there, where here its process had ended."""
        with where:
            again = self._ask(name)
        ended = GONE & verdict.ids and again.ids != verdict.ids and not verdict.better(again)
        if not (again.better(verdict) or ended):
            return verdict
        again.outputs.insert(0, new_output("stream", name="stdout", text=f"{why}\n"))
        return again

    def _whose(self, name: str, verdict: Verdict) -> Verdict:
        """Of a check that failed itself: whether it fails with the course's own answers, too. Else a reply lied."""
        with self.closed.solved():
            right = self._ask(name)
        return verdict if right.broken else unreadable(verdict.broken)

    def _log(self, begun: float, what: str) -> None:
        print(f"{time.monotonic() - begun:7.2f} s  {what}", file=sys.stderr)


def judged(cell) -> bool:
    """Whether it is a check."""
    return cell.cell_type == "code" and is_grade(cell) and not is_solution(cell)


def editions(root: Path, lab: str) -> tuple[list[Path], tuple[str, ...]]:
    """The packages of the closed process, and the installed ones that it does not have."""
    folder = edition.cached(root, lab)
    return sorted(path for path in folder.iterdir() if path.is_dir()), stand_ins.PACKAGES


def _stopped(sentence: str):
    return new_output("error", ename="Stopped", evalue=sentence, traceback=[sentence])
