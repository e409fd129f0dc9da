"""A study in a real kernel of Jupyter, with a store that is empty."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.prefect import journal
from infra.store.store import Store
from tests.e2e.conftest import ENDLESS, SMALLEST
from tests.jupyter import Kernel

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def kernel(tmp_path: Path, store: Path) -> Iterator[Kernel]:
    # Nothing of the checkout is in its folder.
    folder = tmp_path / "notebooks"
    folder.mkdir()
    kernel = Kernel(folder, store)
    yield kernel
    kernel.kill()


AFTER = """
import json, os, signal, sys, threading
import matplotlib
print(json.dumps({
    "backend": os.environ["MPLBACKEND"],
    "drawn by": matplotlib.get_backend(),
    "beam": "apache_beam" in sys.modules,
    "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "rows": len(table.to_pandas()),
    "mine": mine,
    "figure": [*get_ipython().display_formatter.format(table.plot("curves"))[0]],
}))
"""


def test_a_new_study_becomes_a_table_in_a_kernel(kernel: Kernel, store: Path):
    # pandas first, and a logger: what a user's own cells have done by then.
    printed = kernel.run(
        "import pandas, logging, parcel; mine = 7; logging.getLogger().setLevel('ERROR')\n"
        "assert get_ipython() is not None\n"
        f"study = parcel.load({SMALLEST!r})\n"
        "table = parcel.run(study)"
    )
    assert "failed" not in printed, printed
    assert "\x1b" not in printed  # No bars that are drawn over and over.
    assert re.search(r"made .*prepare chartqa/train ", printed), printed
    found = json.loads(kernel.run(AFTER))
    assert found == {
        "backend": "module://matplotlib_inline.backend_inline",
        "drawn by": "module://matplotlib_inline.backend_inline",
        "beam": False,
        "handler": True,
        "rows": 2,
        "mine": 7,
        "figure": ["text/plain", "image/png"],
    }
    kernel.run("table.plot('scores').save('scores.pdf')")
    assert (kernel.folder / "scores.pdf").read_bytes().startswith(b"%PDF")
    printed, error = kernel.finish(kernel.start("table.plot('losses')"))
    assert error == "ConfigError"
    assert "--figure must be one of scores, pareto, retention, curves" in printed
    kinds = {found.manifest.kind for found in Store(store).artifacts()}
    assert {"dataset", "checkpoint", "predictions", "scores", "results"} <= kinds
    # Again, from a cell of asynchronous code and from a thread: all is reused.
    again = kernel.run("async def cell():\n    return parcel.run(study)\ntable = await cell()")
    assert "0 made, everything reused" in again
    again = kernel.run(
        "import threading\nthread = threading.Thread(target=parcel.run, args=[study])\n"
        "thread.start(); thread.join()"
    )
    assert "parcel: " not in again
    # What is wrong is said in one line, and costs nothing.
    printed, error = kernel.finish(kernel.start("parcel.sweep('smallest', methods=['none such'])"))
    assert error == "ConfigError"
    # The command from a cell inherits the kernel's variables.
    printed = kernel.run(f"!{sys.executable} -m parcel.cli.main run {SMALLEST}")
    assert "0 made, everything reused" in printed


def test_an_interrupt_ends_the_run_and_leaves_the_kernel(kernel: Kernel, store: Path):
    kernel.run("import parcel; mine = 7")
    name, _, value = ENDLESS.partition("=")
    cell = kernel.start(f"parcel.run({SMALLEST!r}, **{{{name!r}: {value}}})")
    wait_until_training(store)
    began = time.monotonic()
    kernel.interrupt()
    printed, error = kernel.finish(cell, timeout=60)
    assert error == "KeyboardInterrupt", printed
    assert time.monotonic() - began < 15
    assert kernel.run("print(mine)").strip() == "7"
    (record,) = (store / "runs").glob("*.json")
    assert json.loads(record.read_text())["state"] == "cancelled"
    # An interrupt of another cell is that cell's, too.
    cell = kernel.start("import time\ntime.sleep(600)")
    time.sleep(1)
    kernel.interrupt()
    assert kernel.finish(cell, timeout=60)[1] == "KeyboardInterrupt"
    assert kernel.run("print(mine)").strip() == "7"


def test_a_killed_kernel_ends_its_run(kernel: Kernel, store: Path):
    name, _, value = ENDLESS.partition("=")
    kernel.start(f"import parcel; parcel.run({SMALLEST!r}, **{{{name!r}: {value}}})")
    wait_until_training(store)
    family = psutil.Process(kernel.pid).children(recursive=True)
    assert any("infra.processes.child" in " ".join(p.cmdline()) for p in family)
    os.kill(kernel.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(family, timeout=60)
    assert not left


def wait_until_training(store: Path) -> None:
    """Waits until a run has begun the stage that does not end."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        for path in journal.folder(store).glob("*.jsonl"):
            text = path.read_text()
            if '"started", ' in text and '"name": "stage1' in text:
                return
        time.sleep(0.5)
    raise AssertionError("no training began")
