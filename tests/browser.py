"""A real Chromium without a window, told what to do in its own protocol (DevTools), as a person would do it."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

import requests
import websocket

CHROMIUM = shutil.which("chromium")
WITHIN = 120  # seconds for anything to appear


class Browser:
    """One page, ``width`` x ``height`` pixels. Inside ``with``."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 1400) -> None:
        assert CHROMIUM
        self.numbers, self.folder = itertools.count(1), folder
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"]
        words += [f"--window-size={width},{height}", f"--user-data-dir={folder}", "--no-proxy-server", "about:blank"]
        self.process = subprocess.Popen([CHROMIUM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Browser:
        try:
            said, end = self.folder / "DevToolsActivePort", time.monotonic() + WITHIN
            while not (said.exists() and said.read_text().count("\n")):
                assert time.monotonic() < end and self.process.poll() is None, "Chromium does not start"
                time.sleep(0.2)
            session = requests.Session()
            session.trust_env = False
            pages = session.get(f"http://127.0.0.1:{said.read_text().split()[0]}/json", timeout=WITHIN).json()
            address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            self.socket = websocket.create_connection(
                address, timeout=WITHIN, suppress_origin=True, http_no_proxy=["127.0.0.1"]
            )
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(WITHIN)

    def say(self, method: str, **params) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self.socket.recv())
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def run(self, script: str):
        """What a JavaScript expression gives."""
        said = self.say("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until a JavaScript expression, or what it promises, is true."""
        end = time.monotonic() + WITHIN
        while not self.run(f"Promise.resolve({script}).then(Boolean)"):
            assert time.monotonic() < end, f"not in {WITHIN} seconds: {script}"
            time.sleep(0.2)

    def open(self, url: str) -> None:
        self.say("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({url.partition('?')[0]!r})")

    def type(self, field: str, text: str) -> None:
        """Types into the element that a selector names, and leaves it."""
        self.run(f"document.querySelector({field!r}).focus()")
        self.say("Input.insertText", text=text)
        self.run(f"document.querySelector({field!r}).blur()")

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.say("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
