import io
import time

import pytest
from rich.console import Console

from flows.study.display import Display


def test_minutes_go_on_after_an_hour(monkeypatch: pytest.MonkeyPatch):
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(3, console)
    later = time.monotonic() + 66 * 60 + 37.5
    monkeypatch.setattr("flows.study.display.time.monotonic", lambda: later)
    display.finish("tokenizer", outcome="made", seconds=1.25, detail="size 7")
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.startswith("66:37 [  1/3] made      1.2 s tokenizer size 7")
