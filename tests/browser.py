"""Drive a headless Chromium by its DevTools protocol over pipes, without a driver or another library.

https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--window-size=1400,1000", "--hide-scrollbars", "about:blank"),
)


def program() -> str:
    """Return Chromium's path. Skip the test without one; with PFLSWEEP_REQUIRE_BROWSER=1 fail."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("PFLSWEEP_REQUIRE_BROWSER"):
        pytest.fail("Chromium is not installed: apt-get install chromium")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


@contextmanager
def browser(profile: Path) -> "Iterator[Page]":
    """Yield a page of a new browser. profile: a folder that does not exist yet."""
    (to_child, to_us), (from_us, from_child) = os.pipe(), os.pipe()

    def wired() -> None:  # Chromium reads commands from 3 and answers on 4
        ours = os.dup(to_child), os.dup(from_child)
        os.dup2(ours[0], 3)
        os.dup2(ours[1], 4)

    process = subprocess.Popen(
        [program(), f"--user-data-dir={profile}", *FLAGS],
        preexec_fn=wired,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        with open(to_us, "wb", buffering=0) as write, open(from_us, "rb") as read:
            page = Page(write, read)
            yield page
            page.close()
            process.wait(10)
    finally:
        process.kill()
        process.wait()


class Page:
    """One tab of the browser."""

    def __init__(self, write: Any, read: Any) -> None:
        self._write, self._read, self._sent, self._session = write, read, 0, None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, address: str, until: str) -> None:
        """Go to an address, and wait until a JavaScript expression holds. A page that hangs is loaded again. Fails with
        what the page shows instead.
        """
        for last in (False, False, True):
            # Otherwise, where only the part after # changes, the page would not be loaded
            self._call("Page.navigate", url="about:blank")
            self._call("Page.navigate", url=address)
            if self._is_so(until) or last:
                break
        self.wait(until, 0)

    def wait(self, until: str, seconds: float = 20.0) -> None:
        if not self._is_so(until, seconds):
            shown = self.ask("document.body.innerText")
            raise AssertionError(f"never so: {until}; the page shows:\n{str(shown)[:2000]}")

    def _is_so(self, until: str, seconds: float = 15.0) -> bool:
        """Return whether an expression holds within the time."""
        end = time.monotonic() + seconds
        while not (so := self.ask(until)) and time.monotonic() < end:
            time.sleep(0.1)
        return bool(so)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; None while it has none."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def ask_frame(self, expression: str) -> Any:
        """Return the value of an expression in the page's sandboxed frame, which is a target of its own."""
        session, self._session = self._session, None
        targets = self._call("Target.getTargets")["targetInfos"]
        (frame,) = (target["targetId"] for target in targets if target["type"] == "iframe")
        self._session = self._call("Target.attachToTarget", targetId=frame, flatten=True)["sessionId"]
        value, self._session = self.ask(expression), session
        return value

    def picture(self, file: Path) -> None:
        """Return a PNG of the window."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Close the whole browser, which then leaves its folder alone."""
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._sent:
                assert "error" not in told, told["error"]
                return dict(told["result"])

    def _next(self) -> dict[str, Any]:
        """Return the next message, which may be an event."""
        text = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return dict(json.loads(text))
