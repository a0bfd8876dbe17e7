"""formgrader as people have it: its server, started with ``make formgrader``, and what its pages ask of it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

import requests

WITHIN = 240  # seconds in which JupyterLab must be there


class Formgrader:
    """JupyterLab at a course that has a Makefile; inside ``with``, ``url`` answers whoever has the ``token``."""

    def __init__(self, root: Path) -> None:
        self.root, self.token = root, secrets.token_hex(8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.server}/formgrader"
        self.session = requests.Session()
        self.session.trust_env = False  # no proxy between two programs of one machine
        self.session.headers["Authorization"] = f"token {self.token}"

    def __enter__(self) -> Formgrader:
        words = f"--no-browser --allow-root --ServerApp.port={self.port} --IdentityProvider.token={self.token}"
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
        env.pop("JUPYTER_NO_CONFIG", None)
        self.log = open(self.root / "formgrader.log", "w")
        self.process = subprocess.Popen(
            ["make", "formgrader", f"ARGS={words}"], cwd=self.root, env=env, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + WITHIN
        while True:
            try:
                self.ask("GET", "status")
                return self
            except requests.RequestException as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    self.__exit__()
                    raise TimeoutError(f"{error}\n{(self.root / 'formgrader.log').read_text()}") from None
                time.sleep(0.5)

    def __exit__(self, *_) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def ask(self, method: str, path: str, **options):
        answer = self.session.request(method, f"{self.url}/api/{path}", timeout=60, **options)
        answer.raise_for_status()
        return answer.json()

    def submissions(self, lab: str) -> dict[str, str]:
        """{student: the number of what they handed in}, as *Manual Grading* lists them."""
        return {each["student"]: each["id"] for each in self.ask("GET", f"submitted_notebooks/{lab}/{lab}")}

    def give(self, lab: str, student: str, exercise: str, points: float, comment: str) -> None:
        """What a submission's page sends after somebody has typed in the two fields of an exercise."""
        asked = {"params": {"submission_id": self.submissions(lab)[student]}}
        for kind, field, value in (("grade", "manual_score", points), ("comment", "manual_comment", comment)):
            entry = next(each for each in self.ask("GET", f"{kind}s", **asked) if each["name"] == exercise)
            self.ask("PUT", f"{kind}/{entry['id']}", json=entry | {field: value})
