"""However a command ends, nothing of it goes on, and the UI says so."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.prefect.server import running
from infra.store.store import Store
from tests.e2e.conftest import (
    CONFIG,
    ENDLESS,
    PARCEL,
    SMALLEST,
    Finished,
    Served,
    environment,
    parcel,
)
from tests.processes import LOOPBACK, command_line, listened
from tests.slices import deep_slice

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MARK = "PARCEL_TEST_FAMILY"
LONG = ["train", SMALLEST, "hygiene=null", ENDLESS]
"""A study that trains for hours, on few steps."""
PHASES = {
    "start-up": (r"starting Prefect", 0.5),
    "imports": (r"UI: ", 1.0),
    "Ray starting": (r"(made|reused) .*tokenizer", 1.5),
    "training": (r"… stage1 vanilla: \d", 0.0),
}
"""Phase -> what the command prints when it begins, and how long after [s]."""
LAST_LINES = {"last step": r"\[ *(\d+)/\1\]", "sum": r"\d+ steps in"}
"""A line near a run's end -> its pattern."""
ENDS = {
    "TERM": ([signal.SIGTERM], 143),
    "INT": ([signal.SIGINT], 130),
    "INT twice": ([signal.SIGINT, signal.SIGINT], 130),
    "KILL": ([signal.SIGKILL], -9),
}
"""Signals, a second apart, and the exit code."""
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclasses.dataclass
class Command:
    """A `parcel` command under way, as from a terminal: it leads a process group of its own."""

    process: subprocess.Popen[str]
    mark: str
    log: Path

    def wait_for(self, pattern: str, timeout: float = 240) -> None:
        deadline = time.monotonic() + timeout
        while not re.search(pattern, self.log.read_text()):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def family(self) -> list[psutil.Process]:
        """Everything it began, wherever that went: it inherits the environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
        return found

    def end(self, signals: list[signal.Signals]) -> float:
        """Sends signals as a terminal and a shell do; returns the time to its end [s]."""
        began = time.monotonic()
        for i, number in enumerate(signals):
            time.sleep(1.0 if i else 0.0)
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGINT:
                    os.killpg(self.process.pid, number)
                else:
                    self.process.send_signal(number)
        self.process.wait(30)
        return time.monotonic() - began

    def left_after(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.2)
        return [command_line(process)[:100] for process in self.family()]


@contextlib.contextmanager
def command(store: Path, *words: str, log: Path) -> Iterator[Command]:
    mark = uuid.uuid4().hex
    with log.open("w") as out:
        process = subprocess.Popen(
            [PARCEL, *words],
            env={**environment(store), MARK: mark},
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    made = Command(process, mark, log)
    try:
        yield made
    finally:
        for left in made.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()


def begun(store: Path) -> dict[str, str]:
    """Every flow run that began, in order, and its state."""
    database = sqlite3.connect(f"file:{store}/prefect/prefect.db?mode=ro", uri=True)
    with contextlib.closing(database):
        asked = "select id, state_type from flow_run where state_type != 'SCHEDULED'"
        return dict(database.execute(f"{asked} order by created").fetchall())


def rows(store: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Every flow run that began, in order: its state, and its task runs' names and states."""
    found = {}
    database = sqlite3.connect(f"file:{store}/prefect/prefect.db?mode=ro", uri=True)
    with contextlib.closing(database):
        for run, state in begun(store).items():
            asked = "select name, state_type from task_run where flow_run_id = ?"
            tasks = database.execute(asked, (run,)).fetchall()
            assert len({name for name, _ in tasks}) == len(tasks), "two rows of one node"
            found[run] = state, dict(tasks)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store where the data of the long study are prepared."""
    made = tmp_path_factory.mktemp("endings") / "store"
    done = parcel(made, "prepare", *LONG[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def check_end(store: Path, log: Path, phase: str, end: str) -> None:
    pattern, delay = PHASES[phase]
    signals, code = ENDS[end]
    with command(store, *LONG, log=log) as run:
        run.wait_for(pattern)
        time.sleep(delay)
        took = run.end(signals)
        assert run.process.returncode == code, log.read_text()[-3000:]
        assert took < 5 + len(signals) - 1
        assert "Traceback" not in log.read_text()
        assert not run.left_after(10)
    if end != "KILL":
        *_, last = log.read_text().splitlines()
        assert re.fullmatch(
            rf"ended by SIG{end.split()[0]}; continue: parcel (run \S+ --until )?train.*", last
        )
        assert "again " not in log.read_text()
        assert "failed" not in log.read_text()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("phase", "end"),
    deep_slice(
        [
            (phase, end)
            for phase in PHASES
            for end in ENDS
            if phase == "training" or end in ("TERM", "KILL")
        ],
        2,
    ),
)
def test_run_ended_in_any_phase_leaves_no_process(
    store: Path, tmp_path: Path, phase: str, end: str
):
    check_end(store, tmp_path / "log", phase, end)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("line", "end"),
    deep_slice([(line, end) for line in LAST_LINES for end in ("TERM", "INT", "KILL")], 1),
)
def test_run_ended_at_its_end_leaves_no_process(store: Path, tmp_path: Path, line: str, end: str):
    """The signal meets the last rows, the cluster's end, the table, or the server's end."""
    signals, code = ENDS[end]
    with command(store, "prepare", *LONG[1:], log=tmp_path / "log") as run:
        run.wait_for(LAST_LINES[line])
        took = run.end(signals)
        # While Python itself ends, a signal has its default again; to a shell that is one code.
        ended_by = run.process.returncode
        assert ended_by in (0, code, -signals[0]), run.log.read_text()[-3000:]
        assert took < 5 + len(signals) - 1
        assert "Traceback" not in run.log.read_text()
        assert not run.left_after(10)


@pytest.mark.deep
def test_the_next_run_tells_how_all_of_those_ended(store: Path):
    assert parcel(store, "prepare", *LONG[1:]).returncode == 0
    for state, tasks in rows(store).values():
        assert state in FINAL
        assert set(tasks.values()) <= FINAL


@pytest.mark.deep
def test_run_killed_before_it_has_a_journal_is_crashed(store: Path, tmp_path: Path):
    """Prefect makes the row of a run first, and calls the flow a moment later."""
    before = set(begun(store))
    with command(store, *LONG, log=tmp_path / "log") as run:
        run.wait_for(r"starting Prefect")
        while not set(begun(store)) - before:
            assert run.process.poll() is None, run.log.read_text()[-3000:]
        run.end([signal.SIGKILL])
        assert not run.left_after(10)
    (killed,) = set(begun(store)) - before
    assert begun(store)[killed] in ("PENDING", "RUNNING")
    assert not (store / "runs" / "active" / f"{killed}.jsonl").exists()
    assert parcel(store, "prepare", *LONG[1:]).returncode == 0
    assert begun(store)[killed] == "CRASHED"


@pytest.mark.night
def test_ended_in_training_the_ui_shows_nothing_that_goes_on(store: Path, tmp_path: Path):
    check_end(store, tmp_path / "log", "training", "INT")
    state, tasks = list(rows(store).values())[-1]
    assert state == "CANCELLED"
    assert tasks["stage1 vanilla"] == "CRASHED"
    assert tasks["tokenizer"] == "COMPLETED"
    assert set(tasks.values()) <= FINAL
    check_end(store, tmp_path / "log", "training", "KILL")
    assert list(rows(store).values())[-1][0] == "RUNNING"  # Nobody was left to tell.
    assert parcel(store, "prepare", *LONG[1:]).returncode == 0
    for state, tasks in rows(store).values():
        assert state in FINAL
        assert set(tasks.values()) <= FINAL


@pytest.fixture(scope="module")
def copied(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished study's store, for runs that others should not see in theirs."""
    copy = tmp_path_factory.mktemp("copied") / "store"
    shutil.copytree(finished.store, copy)
    return copy


def test_every_node_of_a_reused_study_has_its_row(copied: Path):
    """A second run reuses everything, says so in the terminal and the UI, and has its table."""
    json_of = ("results", "tiny", "--format", "json")
    table = parcel(copied, *json_of).stdout
    again = parcel(copied, "run", CONFIG)
    assert again.returncode == 0, again.stderr
    assert "0 made, everything reused" in again.stdout
    assert parcel(copied, *json_of).stdout == table
    (first_state, first), *_, (state, tasks) = rows(copied).values()
    steps = int(re.search(r"^(\d+) steps in", again.stdout, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert (first_state, state) == ("COMPLETED", "COMPLETED")
    assert set(first) == set(tasks)
    assert len(tasks) == steps
    assert set(tasks.values()) == set(first.values()) == {"COMPLETED"}
    database = sqlite3.connect(f"file:{copied}/prefect/prefect.db?mode=ro", uri=True)
    with contextlib.closing(database):
        said, told = (
            [message or "" for (message,) in database.execute(f"select message from {name}")]
            for name in ("log", "task_run_state")
        )
    assert any(re.search(r"made in \d+\.\d s: .*score", line) for line in said)
    assert f"{steps} steps, {steps} of them there already: nothing is to be made" in said
    assert any("reused: " in line and "score" in line for line in told)


@pytest.mark.deep
def test_a_failed_cell_fails_the_flow_run_after_all_else_is_done(copied: Path):
    """Records with masks need the codec that this study does not have: Stage 1 fails."""
    done = parcel(copied, "train", CONFIG, "name=broken", "mask_codec=null")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^failed: stage1 vanilla: (?!stage1)", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ steps in .* made, .*, 1 failed, \d not run$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^not run, since stage1 vanilla failed: intermediary", done.stdout, re.MULTILINE
    )
    state, tasks = list(rows(copied).values())[-1]
    assert state == "FAILED"
    assert tasks["stage1 vanilla"] == "FAILED"
    assert tasks["intermediary parcel"] == "CANCELLED"  # Not run: an input failed.
    assert tasks["tokenizer"] == "COMPLETED"
    assert set(tasks.values()) <= FINAL
    # What failed is tried alone: first as it was, then with what it lacked.
    again = parcel(copied, "train", CONFIG, "name=broken", "mask_codec=null", "--failed")
    assert again.returncode == 1, again.stdout + again.stderr
    assert re.search(r"\d steps? failed .*broken's last run", again.stdout)
    assert "failed: stage1 vanilla: " in again.stdout
    mended = parcel(copied, "train", CONFIG, "name=broken", "--failed")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert parcel(copied, "train", CONFIG, "name=broken", "--failed").stdout.startswith(
        "nothing to run: no step failed"
    )


@pytest.mark.deep
def test_a_server_that_dies_does_not_end_the_training(copied: Path, tmp_path: Path):
    words = ["train", CONFIG, "name=other", "methods=[vanilla]", "budgets=[256]",
             "stage1.total_steps=7", "stage1.peak_lr=0.002"]  # fmt: skip
    with command(copied, *words, log=tmp_path / "log") as run:
        run.wait_for(r"(made|reused) .*mask codec")
        server = running(copied)
        assert server is not None
        psutil.Process(server.process.pid).kill()
        assert run.process.wait(400) == 0, run.log.read_text()[-3000:]
        assert re.search(r"made .*intermediary vanilla", run.log.read_text())
        assert not run.left_after(10)
    names = [a.manifest.name for a in Store(copied).artifacts()]
    assert names.count("stage1 vanilla") >= 2
    assert parcel(copied, "prepare", CONFIG).returncode == 0
    assert all(state in FINAL for state, _ in rows(copied).values())


@pytest.mark.deep
def test_a_server_that_stands_still_holds_no_work(store: Path, tmp_path: Path):
    """It accepts connections, as the kernel does for it, and answers nothing."""
    words = ["train", SMALLEST, "hygiene=null", "name=still", "stage1.peak_lr=0.002"]
    with command(store, *words, log=tmp_path / "log") as run:
        run.wait_for(r"(made|reused) .*tokenizer")
        server = running(store)
        assert server is not None
        stopped = psutil.Process(server.process.pid)
        stopped.suspend()
        try:
            run.wait_for(r"made .*intermediary vanilla")
            began = time.monotonic()
            assert run.process.wait(240) == 0, run.log.read_text()[-3000:]
            assert time.monotonic() - began < 120
            log = run.log.read_text()
            assert log.count("the UI could not be updated") == 1
            assert re.search(r"\d+ steps in", log)
            assert "prefect" not in log.lower().replace("starting prefect", "")
        finally:
            stopped.resume()
        assert not run.left_after(30)
    assert parcel(store, "prepare", *LONG[1:]).returncode == 0
    state, tasks = list(rows(store).values())[-2]
    assert state == "COMPLETED"
    assert tasks["intermediary vanilla"] == "COMPLETED"
    assert set(tasks.values()) == {"COMPLETED"}


@pytest.mark.deep
def test_a_run_of_the_terminal_ends_if_it_is_cancelled_in_the_ui(store: Path, tmp_path: Path):
    with command(store, *LONG, log=tmp_path / "log") as run:
        run.wait_for(PHASES["training"][0])
        server = running(store)
        assert server is not None
        served = Served(server.api.removesuffix("/api"), store)
        run_id, state = list(begun(store).items())[-1]
        assert state == "RUNNING"
        cancelling = b'{"state": {"type": "CANCELLING", "name": "Cancelling"}}'
        served.ask(f"/flow_runs/{run_id}/set_state", cancelling)
        assert run.process.wait(30) == 130, run.log.read_text()[-3000:]
        assert not run.left_after(10)
        assert "the run is cancelled, as somebody asked in the UI" in run.log.read_text()
    state, tasks = rows(store)[run_id]
    assert state == "CANCELLED"
    assert tasks["stage1 vanilla"] == "CRASHED"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "127.0.0.1:4200", "nonsense"])
def test_a_server_that_is_named_and_does_not_answer_is_a_line(tmp_path: Path, url: str):
    done = subprocess.run(
        [PARCEL, "prepare", SMALLEST],
        env={**environment(tmp_path / "store"), "PREFECT_API_URL": url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("parcel: PREFECT_API_URL must be ")
    assert url in line
    assert "made" not in done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_serve(store: Path, log: Path, phase: str, end: str) -> None:
    signals, code = ENDS[end]
    port = free_port()
    with command(store, "serve", "--port", str(port), log=log) as serve:
        serve.wait_for(r"starting Prefect" if phase == "start-up" else r"UI: ")
        if phase == "training":
            with command(store, *LONG, log=log.with_name("run.log")) as run:
                run.wait_for(PHASES["training"][0])
                assert f":{port}/v2" in run.log.read_text(), "it has a server of its own"
                server = running(store)
                assert server is not None
                heard = listened([*serve.family(), *run.family()])
                assert heard
                assert heard <= LOOPBACK
                run.end([signal.SIGINT])
                assert not run.left_after(10)
        else:
            time.sleep(0.5)
        took = serve.end(signals)
        assert serve.process.returncode == code, log.read_text()[-3000:]
        assert took < 5 + len(signals) - 1
        assert "Traceback" not in log.read_text()
        assert not serve.left_after(10)


@pytest.mark.deep
def test_serve_is_the_one_server_and_ends_whole(store: Path, tmp_path: Path):
    check_serve(store, tmp_path / "log", "training", "INT")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("phase", "end"),
    deep_slice(
        [("start-up", "TERM"), ("start-up", "KILL"), *(("serving", end) for end in ENDS)], 1
    ),
)
def test_serve_ended_in_any_phase_leaves_no_process(
    store: Path, tmp_path: Path, phase: str, end: str
):
    check_serve(store, tmp_path / "log", phase, end)


@pytest.mark.deep
@pytest.mark.parametrize("end", deep_slice(["TERM", "KILL"], 1))
def test_a_run_started_from_the_form_ends_with_serve(store: Path, tmp_path: Path, end: str):
    signals, code = ENDS[end]
    port = free_port()
    with command(store, "serve", "--port", str(port), log=tmp_path / "log") as serve:
        serve.wait_for(r"UI: ")
        served = Served(f"http://127.0.0.1:{port}", store)
        found = None
        deadline = time.monotonic() + 120
        while found is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                found = served.ask("/deployments/name/study/study", method="GET")
            time.sleep(0.5)
        assert found is not None
        served.start("study/study", study=SMALLEST, overrides=LONG[2:], until="train")
        deadline = time.monotonic() + 240
        while not any("ray::" in command_line(p) for p in serve.family()):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        took = serve.end(signals)
        assert serve.process.returncode == code
        assert took < 5 + len(signals) - 1
        assert not serve.left_after(10)
    assert parcel(store, "prepare", *LONG[1:]).returncode == 0
    for state, tasks in rows(store).values():
        assert state in FINAL
        assert set(tasks.values()) <= FINAL
