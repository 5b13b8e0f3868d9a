"""A page in a headless Chromium."""

import base64
import html
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FLAGS = (
    "--headless",
    "--no-sandbox",  # which root may not use
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
    "--dump-dom",
)


def opened(page: Path, place: str, profile: Path) -> tuple[str, dict[str, Any]]:
    """Open a page at `#place` with a new profile; return the document, and the report of its tests."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"{page.as_uri()}#{place}"]
    document = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'<pre id="report">(.*?)</pre>', document, re.DOTALL)
    assert found is not None, document[-2000:]
    return document, json.loads(html.unescape(found[1]))


class Page:
    """A page in a browser of its own, driven as a person does: by the mouse and the keyboard."""

    def __init__(self, page: Path, profile: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Start the browser; within the block, the page is open."""
        assert CHROMIUM is not None
        self.errors: list[str] = []
        """What went wrong in the page: exceptions, and errors on its console."""
        (ours, self._to), (self._from, theirs) = os.pipe(), os.pipe()
        flags = [flag for flag in FLAGS if not flag.startswith(("--virtual-time", "--dump"))]
        command = [CHROMIUM, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # The browser reads from its descriptor 3 and writes to 4.
        script = f'exec 3<&{ours} 4>&{theirs}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(ours, theirs),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._last, self._rest = 0, b""
        self._session: str | None = None
        self._address, self._width, self._scheme = page.as_uri(), width, "dark" if dark else "light"

    def __enter__(self) -> "Page":
        """Open the page, and wait until it says that it is ready."""
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.resize(self._width)
        features = {"prefers-color-scheme": self._scheme, "prefers-reduced-motion": "reduce"}
        self._call(
            "Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()]
        )
        self._call("Page.navigate", url=self._address)
        self.wait("document.documentElement?.dataset.ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window a size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def __call__(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self(condition):
            assert time.monotonic() < end, f"{condition} did not come true. {self.errors}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        place = f"document.querySelector({json.dumps(selector)})"
        self(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        settled = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        box = self(f"{settled}.then(() => {place}.getBoundingClientRect().toJSON())")
        self.mouse(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, "mousePressed", "mouseReleased")

    def mouse(self, x: float, y: float, *kinds: str) -> None:
        """Let the mouse do something at a place of the window."""
        for kind in ("mouseMoved", *kinds):
            self._call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if kinds else "none", clickCount=1
            )

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}[key]
            for kind in ("rawKeyDown", "keyUp"):
                self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self._call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser, and take note of what else it says until it answers."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                received = os.read(self._from, 1 << 20)
                assert received, "the browser is gone"
                self._rest += received
            line, _, self._rest = self._rest.partition(b"\0")
            said = json.loads(line)
            if said.get("id") == self._last:
                assert "error" not in said, said["error"]
                return dict(said["result"])
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        """Keep what went wrong in the page."""
        about = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        if said.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(str(about["args"]))
        if said.get("method") == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
