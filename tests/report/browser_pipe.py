"""A real browser, driven over its own pipe: headless Chromium and the few words of its debugging protocol that tests need."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
PATIENCE = 600  # Seconds after which a browser counts as hanging.


class Browser:
    """One page in a browser of its own. `complaints` are console errors, exceptions and refused loads."""

    def __init__(self, folder: Path, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        assert PROGRAM is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
            f"--user-data-dir={folder}", f"--window-size={width},{height}", "--remote-debugging-pipe",
        ]  # fmt: skip
        script = (
            f'exec "$@" 3<&{to_browser} 4>&{from_browser}'  # Chromium reads commands from 3 and answers on 4
        )
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        if dark:
            self.ask(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._in)

    def ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                return heard["result"]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            part = os.read(self._in, 2**20)
            assert part, "the browser has gone"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        heard: dict[str, Any] = json.loads(text)
        told = heard.get("params", {})
        if heard.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        if heard.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"])
        if heard.get("method") == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.complaints.append(str(told["args"]))
        return heard

    def open(self, page: Path, anchor: str = "") -> None:
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=page.resolve().as_uri() + anchor)
        self.wait_for("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        said = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def wait_for(self, code: str) -> None:
        """Until an expression is true; what follows a key or a new address comes when the page has heard of it."""
        until = time.monotonic() + PATIENCE
        while not self.run(code):
            assert time.monotonic() < until, f"never true: {code}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        number = {"Enter": 13, "Escape": 27}[key]
        for kind, text in (("keyDown", {"text": "\r"} if key == "Enter" else {}), ("keyUp", {})):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number, **text
            )

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def pdf(self) -> bytes:
        return base64.b64decode(
            self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        )
