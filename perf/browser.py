"""How long Prefect's pages of a large study take to open in a browser.

    python -m perf.browser --seeds 32

The study is that of `perf.pages`: 10,240 cells for 32 seeds. Its results table is published in a
Prefect server, and headless Chromium opens the page, each time in a new tab. The time is from
setting the tab's address until the page shows its last words.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from infra.prefect.settings import apply
from infra.store.store import Store
from perf.pages import study_of
from perf.timing import table

_LOOK_EVERY = 0.05
"""Time between two checks of a page [s]."""
_TIMEOUT = 60.0
"""Longest wait for a page's words [s]."""


async def opened(port: int, url: str, words: str) -> float:
    """Returns the time until a page shows some words [s].

    Args:
      port: port of Chromium's debugger.
      url: address of the page.
      words: words that the page shows last.

    Raises:
      TimeoutError: if the words do not appear.
    """
    import websockets

    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
    with urllib.request.urlopen(request) as answer:
        tab = json.load(answer)
    async with websockets.connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
        number = 0

        async def ask(method: str, **asked: Any) -> Any:
            nonlocal number
            number += 1
            await socket.send(json.dumps({"id": number, "method": method, "params": asked}))
            while True:
                told = json.loads(await socket.recv())
                if told.get("id") == number:
                    return told["result"]

        began = time.monotonic()
        await ask("Page.navigate", url=url)
        there = f"!!document.body && document.body.innerText.includes({json.dumps(words)})"
        while time.monotonic() - began < _TIMEOUT:
            found = await ask("Runtime.evaluate", expression=there)
            if found.get("result", {}).get("value") is True:
                return time.monotonic() - began
            await asyncio.sleep(_LOOK_EVERY)
    raise TimeoutError(f"{url} has not said {words!r} in {_TIMEOUT:.0f} s.")


def measure(store: Store, folder: Path, rounds: int) -> list[list[str]]:
    """Returns a row per page: the time of each opening [s]."""
    apply(store.state)
    from infra.prefect.server import server_of

    # Prefect's client looks up its server once, so it is imported after the server has started.
    with server_of(store.state) as server:
        from prefect import flow
        from prefect.client.orchestration import get_client

        from flows.pages.rebuild import publish_results

        @flow(name="study")
        def publish() -> None:
            publish_results(store, "toy", store.keys("results")[0])

        publish()
        with get_client(sync_client=True) as client:
            asked = {"artifacts": {"key": {"any_": ["results-toy"]}}}
            (page,) = client.request("POST", "/artifacts/filter", json=asked).json()
        site = server.api.removesuffix("/api")
        pages = {"results": (f"{site}/v2/artifacts/artifact/{page['id']}", "bench19")}
        chromium = subprocess.Popen(
            [
                str(shutil.which("chromium")),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-port=0",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            chosen = folder / "DevToolsActivePort"
            while not chosen.exists() or not chosen.read_text().strip():
                time.sleep(_LOOK_EVERY)
            port = int(chosen.read_text().split()[0])
            return [
                [name, *(f"{asyncio.run(opened(port, *page)):.2f}" for _ in range(rounds))]
                for name, page in pages.items()
            ]
        finally:
            chromium.terminate()
            chromium.wait()


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=32, help="320 cells each")
    parser.add_argument("--rounds", type=int, default=3, help="openings of each page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        store = study_of(Path(folder) / "store", asked.seeds)
        print(f"{len(store.keys('predictions'))} cells")
        rows = measure(store, Path(folder) / "chromium", asked.rounds)
        print(table(["page", *(f"{n}. [s]" for n in range(1, asked.rounds + 1))], rows))


if __name__ == "__main__":
    main()
