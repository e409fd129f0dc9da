"""A headless Chromium with a mouse and a keyboard, by its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.effects.product import wait_for

_ANSWER_TIMEOUT = 30.0
"""Longest wait for the browser's answer to a command [s]."""
_PAGE_TIMEOUT = 60.0
"""Longest wait for something to be on a page [s]: it draws itself by answers of a busy server."""

DIALOG = "[role=dialog], [role=alertdialog]"
"""CSS selector of the dialog that lies over a page."""
# The middle of the last control of a name; null while there is none that would take a click there.
_CONTROL = """(() => {
  const found = [...document.querySelectorAll(%s)].flatMap(
    part => [...part.querySelectorAll('a, button, [role=menuitem], [role=switch]')]
  ).filter(each => [each.innerText.trim(), each.getAttribute('aria-label')].includes(%s));
  const last = found.at(-1);
  if (!last) return null;
  const box = last.getBoundingClientRect();
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  const hit = document.elementFromPoint(x, y);
  return hit && last.contains(hit) ? [x, y] : null;
})()"""


class Page:
    """A page of the browser.

    Args:
      socket: connection to the page's DevTools.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Gives a command of the DevTools protocol, and returns its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        until = time.monotonic() + _ANSWER_TIMEOUT
        while True:  # Events come in between.
            answer = json.loads(self._socket.recv(timeout=until - time.monotonic()))
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the page's window [pixels]."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, address: str, until: str) -> None:
        """Goes to a page, and waits until an expression of JavaScript is true on it."""
        self.send("Page.navigate", url=address)
        self.wait(
            f"location.protocol !== 'about:' && document.readyState === 'complete' && {until}"
        )

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript, which JSON can hold."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression of JavaScript is true; returns its value."""

        def look() -> Any:
            # A page that is being replaced has nothing to ask.
            with contextlib.suppress(AssertionError):
                return self.evaluate(expression)

        return wait_for(look, _PAGE_TIMEOUT, lambda: f"{expression}; the page says {self.text()}")

    def text(self) -> str:
        """Returns what the page says."""
        return self.evaluate("document.body.innerText")

    def click(self, x: float, y: float) -> None:
        """Clicks at a point of the window [pixels]."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, name: str, within: str = "body") -> None:
        """Clicks in the middle of a link, button, menu item or switch, once it takes that.

        Args:
          name: its text, or the name that it has for readers of the screen.
          within: CSS selector of what it lies in, such as `DIALOG`.
        """
        find, before = _CONTROL % (json.dumps(within), json.dumps(name)), None

        def still() -> Any:
            nonlocal before  # Menus and dialogs glide to their place.
            last, before = before, self.evaluate(find)
            return before if before == last else None

        x, y = wait_for(still, _PAGE_TIMEOUT, lambda: f"{name}; the page says {self.text()}")
        self.click(x, y)

    def type(self, text: str) -> None:
        """Types text into what has the focus."""
        self.send("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        """Writes a picture of the window."""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """Starts a browser with one page; the test is skipped where there is none.

    Args:
      profile: folder for the browser's files.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: install Debian's package `chromium` for the browser tests")
    browser = subprocess.Popen(
        [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
            "--remote-debugging-port=0", "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        noted = profile / "DevToolsActivePort"
        wait_for(lambda: noted.exists() and noted.read_text(), 60)
        port = noted.read_text().split()[0]

        def pages() -> list[dict[str, str]]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
                return [page for page in json.load(answer) if page["type"] == "page"]

        (first, *_) = wait_for(pages, 60)
        address = first["webSocketDebuggerUrl"]
        with connect(address, max_size=None, proxy=None) as socket:
            page = Page(socket)
            page.send("Page.enable")
            yield page
    finally:
        browser.terminate()
        try:
            browser.wait(timeout=20)
        except subprocess.TimeoutExpired:
            browser.kill()
