"""A headless Chromium, driven through a pipe: no driver, no port, no further library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Path of a Chromium; None if none is installed."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in found if path is not None), None)


class Browser:
    """A page in a running Chromium, by the DevTools protocol.

    Args:
        requests: File descriptor to write commands to.
        answers: File descriptor to read answers and events from.

    Attributes:
        events: What the browser has reported, the oldest first.
    """

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._buffer = b""
        self._sent = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while (answer := self._read(60.0)).get("id") != self._sent:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str, size: tuple[int, int] = (1400, 900), *, dark: bool = False) -> None:
        """Open a page of the viewer, and wait until it is ready.

        Args:
            url: Its address.
            size: Width and height of the window in pixels.
            dark: Whether the person prefers dark colours.
        """
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait_for("document.documentElement?.dataset.ready !== undefined")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 30.0) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(f"not true after {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """What the page's scripts and its policy complained of."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
        return found

    def _read(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], seconds)[0]:
                raise TimeoutError(f"Chromium has not answered for {seconds} s")
            read = os.read(self._answers, 2**16)
            if not read:
                raise RuntimeError("Chromium has ended")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium, and end it with the context.

    Raises:
        RuntimeError: When none is installed.
    """
    path = find_chromium()
    if path is None:
        raise RuntimeError(f"no Chromium is installed; looked for {', '.join(NAMES)}")
    to_read, requests = os.pipe()
    answers, to_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="vagentrl-chromium-") as profile:
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        program = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",  # it cannot be set up by root
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
        ]
        process = subprocess.Popen(
            ["bash", "-c", program, path, *options],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            yield Browser(requests, answers)
        finally:
            os.close(requests)
            os.close(answers)
            process.terminate()
            process.wait(10)
