import io
import time

import pytest
from rich.console import Console

from flows.report.durations import time_left_text
from flows.study.display import Display
from infra.progress import Progress


def test_minutes_go_on_after_an_hour(monkeypatch: pytest.MonkeyPatch):
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(3, console)
    later = time.monotonic() + 66 * 60 + 37.5
    monkeypatch.setattr("flows.study.display.time.monotonic", lambda: later)
    display.finish("tokenizer", outcome="made", seconds=1.25, detail="size 7")
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.startswith("66:37 [  1/3] made      1.2 s tokenizer size 7")


def test_a_line_tells_the_time_left_where_it_is_known():
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(3, console, time_left=lambda: 150.0)
    display.finish("tokenizer", outcome="made", seconds=1.25)
    assert "[  1/3, 2 min left] made" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_happens_to_a_step_is_a_line_of_its_own():
    console = Console(file=io.StringIO(), highlight=False, width=200)
    Display(3, console).print_event("stage1", "rank 1 was lost")
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line == "00:00 [  0/3]                 stage1: rank 1 was lost\n"


@pytest.mark.parametrize(
    ("time_left", "told"),
    [(None, ""), (0, "10 s left"), (44, "40 s left"), (55, "1 min left"), (7000, "1.9 h left")],
)
def test_time_left_is_spoken_roughly(time_left: float | None, told: str):
    assert time_left_text(time_left) == told


def test_of_many_running_steps_the_first_are_shown_and_the_rest_counted():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=60)
    display = Display(40, console)
    for number in range(20):
        display.update(f"cell {number}", Progress(done=1, total=2))
    shown = [task.description for task in display._progress.tasks if task.visible]
    assert shown == ["[bold]study", *(f"cell {number}" for number in range(16))]
    assert "and 4 more under way" in display._progress.tasks[0].fields["note"]
    display.finish("cell 3", outcome="made")
    shown = [task.description for task in display._progress.tasks if task.visible]
    assert "cell 16" in shown
    assert "cell 17" not in shown


def test_many_that_are_reused_are_one_line():
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(900, console)
    display.reuse(700)
    display.finish("cell", outcome="made", seconds=2.0)
    first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.endswith("[700/900] reused 700 steps")
    assert "[701/900] made" in second
