"""What a run writes down of itself holds no credentials: journal, progress and log lines."""

import json
import logging
from pathlib import Path

import pytest

from infra.credentials import REDACTED
from infra.errors import one_line, one_line_message, redact_error, traceback_text
from infra.prefect.ending import journal_of, redact_logs
from infra.prefect.journal import Journal, folder, read_journal
from infra.prefect.page_queue import UIPage
from infra.prefect.progress import NodeProgress, ProgressFile
from infra.prefect.progress import read_progress as read_progress
from infra.processes.identity import NOBODY, ProcessIdentity

SECRET = "x7Kq55Zp"
MESSAGE = f"cannot log in with token={SECRET} at https://me:{SECRET}@host/x?sig={SECRET}"


def test_journals_are_written_without_credentials(tmp_path: Path):
    journal = Journal(tmp_path, "run")
    journal.plan("study", {"stage1 vanilla": ["prepare web"]})
    journal.ended("stage1 vanilla", "failed", MESSAGE)
    journal.reused({"prepare web": MESSAGE})
    journal.close("failed", MESSAGE)
    assert SECRET not in journal.path.read_text()
    record = read_journal(journal.path)
    assert record is not None
    assert REDACTED in record.message
    assert [*record.nodes] == ["stage1 vanilla", "prepare web"]


def test_the_progress_beside_a_journal_too(tmp_path: Path):
    values = {"devices": "", "seconds_left": None, "began": 0.0, "written": 0.0}
    progress = NodeProgress(step="s", done=1, total=2, note=MESSAGE, **values)
    ProgressFile(tmp_path, "run").update("node", progress)
    (written,) = folder(tmp_path).glob("run.json")
    assert SECRET not in written.read_text()


@pytest.mark.parametrize(
    "damage",
    [
        b"null",
        b"[]",
        b"{}",
        b'{"what": "ended", "at": "2026-11-28T22:0',
        b'\xff\xfe{"what": "\x80"}',
        b"[" * 100_000,
        b'{"what": "ended", "at": "2026-11-28T22:00:00+00:00", "name": "n"}',
        b'{"what": "ended", "at": "2026-11-28T22:00:00", "name": "n"}',
        b'{"what": "started", "at": "2026-11-28T22:00:00+00:00", "name": "n", "task_run_id": "x"}',
        b'{"what": "started", "at": "2026-11-28T22:00:00+00:00", "name": ["n"]}',
        b'{"what": "plan", "at": "2026-11-28T22:00:00+00:00", "reads": {"n": 1}}',
        b'{"what": "ended", "at": "2026-11-28T22:00:00+00:00", "name": "n", "outcome": "won",'
        b' "detail": ""}',
        b'{"what": "closed", "at": "2026-11-28T22:00:00+00:00", "ending": [], "message": ""}',
        b'{"what": "run", "at": "2026-11-28T22:00:00+00:00", "flow_run_id": "x", "process": {}}',
    ],
)
def test_a_damaged_line_hides_no_other(damage: bytes, tmp_path: Path):
    journal = Journal(tmp_path, "run")
    journal.path.open("ab").write(damage + b"\n")
    journal.ended("stage1 vanilla", "made")
    record = read_journal(journal.path)
    assert record is not None
    assert record.process == ProcessIdentity.of_this_process()
    assert record.nodes == {"stage1 vanilla": record.nodes["stage1 vanilla"]}
    assert record.ending is None
    (line,) = record.damaged
    assert line.startswith("line 2: ")


def test_a_journal_whose_first_line_is_damaged_is_of_the_run_that_names_it(tmp_path: Path):
    journal = Journal(tmp_path, "run")
    journal.path.write_text("null\n")
    journal.ended("stage1 vanilla", "made")
    record = read_journal(journal.path)
    assert record is not None
    assert (record.flow_run_id, record.process) == ("run", NOBODY)
    assert [*record.nodes] == ["stage1 vanilla"]


def test_progress_is_that_of_the_nodes_that_still_run(tmp_path: Path):
    values = {"devices": "", "seconds_left": None, "began": 0.0, "written": 0.0}
    file = ProgressFile(tmp_path, "run")
    names = ["stage1 vanilla", 'a "quoted" \\ name', "Stäge, with: {signs}"]
    first = {n: NodeProgress(step=n, done=0, total=7, note="", **values) for n in names}
    for name, progress in first.items():
        file.update(name, progress)
    assert read_progress(tmp_path, "run") == first
    # Another step of a node is written at once, and so is a node's end.
    later = NodeProgress(step="its last", done=3, total=5, note="loss 0.5", **values)
    file.update(names[1], later)
    assert read_progress(tmp_path, "run") == {**first, names[1]: later}
    file.end(names[0])
    file.end("of another run")
    assert read_progress(tmp_path, "run") == {names[1]: later, names[2]: first[names[2]]}
    for name in names:
        file.end(name)
    assert json.loads((folder(tmp_path) / "run.json").read_text()) == {}


@pytest.mark.parametrize(
    "damage",
    [b"", b"null", b"[1]", b'{"node": null}', b'{"node": {"step": 1}}', b"\xff", b"[" * 99_999],
)
def test_damaged_progress_is_none(damage: bytes, tmp_path: Path):
    values = {"devices": "", "seconds_left": None, "began": 0.0, "written": 0.0}
    progress = NodeProgress(step="s", done=1, total=2, note="", **values)
    ProgressFile(tmp_path, "run").update("node", progress)
    assert read_progress(tmp_path, "run") == {"node": progress}
    (folder(tmp_path) / "run.json").write_bytes(damage)
    assert read_progress(tmp_path, "run") == {}


def test_an_error_that_ends_a_run_goes_on_without_credentials(tmp_path: Path):
    """Prefect sends its message with the state of the run, and its traceback as a log line."""
    with pytest.raises(ValueError, match="cannot log in") as raised, journal_of(tmp_path, ""):
        raise ValueError(MESSAGE)
    assert SECRET not in str(raised.value)


@pytest.fixture
def _usual_logs():
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


@pytest.mark.usefixtures("_usual_logs")
def test_log_lines_and_their_tracebacks_have_none(caplog: pytest.LogCaptureFixture):
    redact_logs()
    log = logging.getLogger("test")
    try:
        raise ValueError(MESSAGE)
    except ValueError:
        log.exception("failed at %s", f"https://me:{SECRET}@host")
    log.error("tokens: 64 of %s", 256)
    assert SECRET not in caplog.text
    assert "failed at https://[redacted]@host" in caplog.text
    assert "ValueError: cannot log in with token=[redacted]" in caplog.text
    assert "tokens: 64 of 256" in caplog.text


def test_messages_and_tracebacks_of_errors_have_none():
    error = ValueError(f"password:\n  {SECRET}\n{MESSAGE}")
    assert SECRET not in one_line_message(error) + traceback_text(error) + one_line(MESSAGE)
    redact_error(error)
    assert SECRET not in str(error)


def test_pages_of_the_ui_have_none():
    page = UIPage(key="k", text=MESSAGE, description=MESSAGE).redacted()
    assert SECRET not in f"{page.text} {page.description}"
