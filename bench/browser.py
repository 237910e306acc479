"""Debian's chromium without a window, driven over its DevTools protocol: for the page's tests and its screenshots."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
KEYS = {
    "End": 35,
    "Enter": 13,
    "Tab": 9,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Escape": 27,
    "Home": 36,
}


def chromium() -> str | None:
    """Where the browser is; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A tab: what it shows, what it asked for, and what went wrong in it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection, self.number = connection, 0
        self.requests: list[str] = []
        self.mistakes: list[str] = []
        for part in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{part}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        self.connection.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.connection.recv(timeout=30))
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.mistakes.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.mistakes.append(details["entry"]["text"])

    def look(self, *, width: int = 1100, height: int = 900, dark: bool = False, language: str = "en") -> None:
        """What kind of screen and reader the page has."""
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        locale = "zh-CN" if language == "zh" else "en-GB"
        agent = self.evaluate("navigator.userAgent")
        self.send("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=locale)

    def go(self, url: str) -> None:
        self.send("Page.navigate", url="about:blank")  # a new hash alone would not load the page again
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelector('#panel *') !== null")

    def evaluate(self, script: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, script: str, *, seconds: float = 15) -> Any:
        """The value of a script once it is one; scripts that fail meanwhile are asked again."""
        deadline, value = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            value = self.evaluate(f"(() => {{ try {{ return {script}; }} catch {{ return null; }} }})()")
            if value:
                return value
            time.sleep(0.03)
        raise AssertionError(f"{script} stayed {value!r}; the page says: {self.text('body')[:600]} {self.mistakes}")

    def text(self, selector: str) -> str:
        return str(
            self.evaluate(f"(e => e.innerText ?? e.textContent)(document.querySelector({json.dumps(selector)}))")
        )

    def write(self, selector: str, text: str) -> None:
        """Types a text instead of what a field holds."""
        where = json.dumps(selector)
        self.evaluate(f"document.querySelector({where}).focus(); document.querySelector({where}).select()")
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": "\r"} if key == "Enter" else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def point(self, selector: str, *, click: bool = False) -> None:
        """Moves the mouse over an element, and presses there if asked to."""
        where = json.dumps(selector)
        self.evaluate(f"document.querySelector({where}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"document.querySelector({where}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def shoot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


class Browser:
    def __init__(self, address: str) -> None:
        self.address = address

    @contextmanager
    def page(self, **look: Any) -> Iterator[Page]:
        """A fresh tab."""
        tab = httpx.put(f"{self.address}/json/new?about:blank", timeout=30).json()
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as connection:
            page = Page(connection)
            page.look(**look)
            yield page
            page.send("Page.close")


@contextmanager
def browser() -> Iterator[Browser]:
    program = chromium()
    assert program is not None, "chromium is not installed (Debian: apt-get install chromium)"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
        try:
            yield Browser(f"http://127.0.0.1:{_port(Path(folder) / 'DevToolsActivePort')}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _port(file: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise RuntimeError("chromium did not start within 30 seconds")
