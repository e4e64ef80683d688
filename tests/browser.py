"""A headless Chromium, driven over a pipe by the DevTools protocol: no further package is needed, and no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

PATIENCE = 60  # seconds for whatever is waited for; machines are slow


def chromium() -> str:
    """The program; skips the test where there is none."""
    found = os.environ.get("CARILLON_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("no chromium: tools/setup --with-browser installs it, or name it in CARILLON_CHROMIUM")
    return found


class Browser:
    """One page in a profile of its own. Use as a context manager."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900, dark: bool = False, scale: float = 1):
        self.program = chromium()
        self.folder = folder
        self.size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.dark = dark
        self.console: list[str] = []  # errors and warnings, whoever says them
        self.requested: list[str] = []  # addresses
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Browser:
        # Chromium reads from descriptor 3 and writes to 4: what becomes these must not be one of them before.
        (low_in, self._out), (self._in, low_out) = os.pipe(), os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20) for low in (low_in, low_out))
        os.close(low_in)
        os.close(low_out)
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", self.program, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={self.folder}/profile",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self) -> None:
        self._session = None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", **self.size)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}])

    def __exit__(self, *_) -> None:
        os.close(self._out)  # it ends without its driver
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + PATIENCE
        while True:
            answer = self._next(limit)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._heard(answer)

    def _next(self, limit: float) -> dict:
        while b"\0" not in self._buffer:
            left = limit - time.monotonic()
            assert left > 0 and select.select([self._in], [], [], left)[0], "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _heard(self, event: dict) -> None:
        what, told = event.get("method"), event.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif what == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif what == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.console.append(json.dumps(told["args"]))
        elif what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.console.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str):
        """The value of an expression, of a promise once it is there."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, patience: float = PATIENCE) -> None:
        """Until the expression is true."""
        limit = time.monotonic() + patience
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < limit, f"never: {condition}\nthe page says: {self.run('document.body.innerText')}"
            time.sleep(0.1)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        """As a mouse does: on what lies in its middle. Where the page moved the element meanwhile, nothing else
        hears of the click, and the mouse tries again."""
        for _ in range(20):
            at = self.run(f"""(() => {{
                const e = document.querySelector({json.dumps(selector)});
                e.scrollIntoView({{block: 'center'}});
                window.hit = undefined;
                window.addEventListener('click', (click) => {{
                    window.hit = e.contains(click.target);
                    if (window.hit) return;
                    click.stopPropagation();
                    click.preventDefault();
                }}, {{capture: true, once: true}});
                const r = e.getBoundingClientRect();
                return [r.x + r.width / 2, r.y + r.height / 2];
            }})()""")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)
            self.settle()
            if self.run("window.hit"):
                return
        raise AssertionError(f"20 clicks missed {selector}")

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: str = "", text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode={"Escape": 27, "Enter": 13}.get(key, 0), **({"text": text} if text and kind == "keyDown" else {}))

    def settle(self) -> None:
        """All that was told so far is heard."""
        self.call("Runtime.evaluate", expression="0")

    def resize(self, width: int, height: int) -> None:
        self.size |= {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **self.size)

    def picture(self, file: Path, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
