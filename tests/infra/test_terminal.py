"""Text of strangers on a terminal: escaped, and what we draw ourselves is drawn."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flows.run.display import Display
from infra.progress import Progress
from infra.terminal import PlainStream, printable_lines, terminal_console

HOSTILE = "\x1b[31mRED\x1b]0;owned\x07\x1b[2J\x1b[1;1H\u202eevil\u202c \rFORGED\x08\x9b31m\x00\x7f"
OBEYED = ("\x1b", "\x07", "\x08", "\x9b", "\x00", "\x7f", "\u202e", "\u202c")


@pytest.mark.parametrize(
    "text", [HOSTILE, "\u2066a\u2069", "\ufeff", "a\u2028b", "\U000e0041", "\ufff9b\ufffa\ufffb"]
)
def test_what_a_terminal_obeys_is_escaped(text: str):
    shown = printable_lines(text)
    assert not any(
        each in shown
        for each in (*OBEYED, "\r", "\u2066", "\ufeff", "\u2028", *"\ufff9\ufffa\ufffb")
    )
    assert printable_lines(shown) == shown


def test_ordinary_text_stays():
    text = "a\tb\nc\r\nnaïve café \N{NO-BREAK SPACE}日本語 नमस्ते \u200d👩\u200d👧 → … ━"
    assert printable_lines(text) == text


@given(st.text())
def test_json_stays_json(text: str):
    written = json.dumps(text, ensure_ascii=False)
    assert json.loads(printable_lines(written)) == text


def test_a_stream_escapes_what_is_printed_and_lets_drawings_pass():
    under = io.StringIO()
    stream = PlainStream(under)
    print(HOSTILE, file=stream)
    stream.writelines([HOSTILE, "\n"])
    assert not any(each in under.getvalue() for each in OBEYED)
    console = terminal_console(file=stream, force_terminal=True, width=200)
    console.print("[bold]ours[/bold]", HOSTILE)
    assert "\x1b[1mours\x1b[0m" in under.getvalue()
    assert "\x1b[2J" not in under.getvalue()
    assert "\u202e" not in under.getvalue()


def test_bars_of_a_run_show_names_and_notes_as_they_are():
    under = io.StringIO()
    console = terminal_console(file=under, force_terminal=True, width=300)
    with Display(1, console) as display:
        display.begin(f"prepare [red]web {HOSTILE}")
        display.update("prepare [red]web", Progress(done=1, total=2, note=f"[red]{HOSTILE}"))
        display.print_event("prepare", HOSTILE)
        display.finish("prepare", outcome="failed", detail=f": {HOSTILE}")
    drawn = under.getvalue()
    assert "[red]web" in drawn
    assert not any(each in drawn for each in ("\x1b[31mRED", "\x1b]0;", "\x07", "\u202e", "\x9b"))


@pytest.mark.slow
def test_a_corpus_says_nothing_to_a_terminal(tmp_path: Path):
    """The command on a terminal of its own, and the bytes that reach it."""
    mine = tmp_path / "mine"
    mine.mkdir()
    rows = []
    for number in range(6):
        pixels = np.full((40, 50, 3), 40 * number, np.uint8)
        Image.fromarray(pixels).save(mine / f"{number}.png")
        texts = {"question": HOSTILE, "answers": [HOSTILE], "id": f"{number}{HOSTILE}"}
        licence = {"licence": HOSTILE, "holder": HOSTILE, "address": HOSTILE}
        rows.append({"image": f"{number}.png", **texts, **licence})
    rows.append({"image": f"missing{HOSTILE}.png", "question": "q", "answers": ["a"]})
    rows.append({f"imge{HOSTILE}": "x", "question": "q", "answers": ["a"]})
    (mine / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours, theirs = pty.openpty()
    command = ["-m", "parcel.cli.main", "data", "check", str(tmp_path), "--source", "jsonl"]
    with subprocess.Popen(
        [sys.executable, *command, "--path", "mine"], stdout=theirs, stderr=theirs, cwd=tmp_path
    ):
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 1 << 16):
                seen += data
        except OSError:  # The last process at the other end has left.
            pass
    os.close(ours)
    shown = seen.decode()
    assert "RED" in shown  # The texts are there.
    shown = shown.replace("\x1b[K", "")  # Ours: the end of the line of progress.
    assert [each for each in OBEYED if each in shown] == []
