import io
import time

import pytest
from rich.console import Console

from flows.report.durations import time_left_text
from flows.run.display import Display
from infra.progress import Progress, wait_line


def test_minutes_go_on_after_an_hour(monkeypatch: pytest.MonkeyPatch):
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(3, console)
    later = time.monotonic() + 66 * 60 + 37.5
    monkeypatch.setattr("flows.run.display.time.monotonic", lambda: later)
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


def test_of_steps_that_are_not_run_for_one_reason_the_first_is_printed():
    console = Console(file=io.StringIO(), highlight=False, width=200)
    display = Display(40, console)
    display.finish("stage1", outcome="failed", detail=": out of memory")
    for number in range(35):
        display.finish(f"cell {number}", outcome="not run", detail=": since stage1 failed")
    display.finish("other", outcome="made", seconds=2.0)
    failed, held, made = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert failed.endswith("stage1: out of memory")
    assert "cell 0: since stage1 failed" in held
    assert "[ 37/40] made" in made


def test_a_log_file_shows_that_time_goes_on_while_nothing_is_reported(monkeypatch):
    monkeypatch.setattr("flows.run.display.WAIT_EVERY", 0.1)
    console = Console(file=io.StringIO(), highlight=False, width=200)

    def lines() -> list[str]:
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    def wait_for(number: int) -> list[str]:
        deadline = time.monotonic() + 30
        while len(lines()) < number:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return lines()

    with Display(3, console) as display:
        assert wait_for(1)[0].startswith("       … waits for a worker, for ")
        display.update("stage1", Progress(done=0, total=9, note="compiles"))
        told = wait_for(len(lines()) + 2)
        assert told[-1].startswith("       … stage1: compiles, for ")
    number = len(lines())
    time.sleep(1.5)
    assert len(lines()) == number


def test_a_wait_is_shown_until_it_is_over(capsys: pytest.CaptureFixture[str]):
    seen = ""
    with wait_line("starting Prefect", every=0.05):
        while seen.count("\n") < 2:
            seen += capsys.readouterr().out
    assert seen.startswith("starting Prefect … 0 s\n")
