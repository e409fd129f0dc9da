"""The log of a server: what it says of errors, what it never says, and how large it gets."""

import subprocess
import sys
from pathlib import Path

from infra.prefect.server_log import log_file, open_log, read_errors

# A process as the server is one: what it prints goes to the log, and its loggers' errors do.
SERVER = """
import logging, sys
from pathlib import Path
from infra.prefect.server_log import log_errors
logging.getLogger("quiet").propagate = False
log_errors(Path(sys.argv[1]), ("me:s3cret", "s3cret"))
log = logging.getLogger("docket.dependencies")
def insert(value):
    raise ValueError(f"no such table: worker\\n[SQL: INSERT INTO t]\\n[parameters: ({value!r})]")
"""


def served(store: Path, does: str) -> str:
    """Runs lines of Python as a store's server; returns its log."""
    (store / "prefect").mkdir(parents=True, exist_ok=True)
    with open_log(store) as log:
        subprocess.run(
            [sys.executable, "-c", SERVER + does, str(store)], stdout=log, stderr=log, check=True
        )
    return log_file(store).read_text()


FAIL = """
for number in range({times}):
    try:
        insert("a row's value")
    except ValueError as error:
        log.error("schedule_deployments()", exc_info=error)
"""


def test_an_error_is_a_line_and_its_place_is_told_once(tmp_path: Path):
    assert read_errors(tmp_path) is None
    log = served(tmp_path, FAIL.format(times=3))
    found = read_errors(tmp_path)
    assert found is not None
    assert (found.count, found.file) == (3, log_file(tmp_path))
    told = "docket.dependencies: schedule_deployments(): ValueError: no such table: worker"
    assert found.message == told
    assert log.count("  in insert, <string>:") == 1
    assert found.since <= found.newest
    assert 0 <= found.age < 60


def test_values_addresses_and_the_servers_secrets_stay_out(tmp_path: Path):
    log = served(
        tmp_path,
        FAIL.format(times=1)
        + """
log.error("sent to slack://T0K3N/channel by me:s3cret, Basic bWU6czNjcmV0")
logging.getLogger("quiet").error("postgresql+asyncpg://user:word@db/x: refused\\nsecond line")
log.warning("a warning")
""",
    )
    for hidden in ("a row's value", "INSERT", "T0K3N", "s3cret", "bWU6czNjcmV0", "word@db"):
        assert hidden not in log
    assert "sent to slack://… by …, Basic …" in log
    assert "quiet: postgresql+asyncpg://… refused" in log
    assert "second line" not in log
    assert "a warning" not in log


def test_a_group_of_errors_names_the_first_of_them(tmp_path: Path):
    log = served(
        tmp_path,
        """
try:
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("the cause")])
except ExceptionGroup as error:
    log.error("service failed!", exc_info=error)
""",
    )
    assert "service failed!: ValueError: the cause" in log


def test_the_log_is_bounded_and_what_is_printed_goes_on_into_it(tmp_path: Path):
    log = served(
        tmp_path,
        """
for number in range(12_000):
    log.error("%d %s", number, "x" * 300)
print("printed last", flush=True)
""",
    )
    older = log_file(tmp_path).with_name("server.log.1")
    assert log.endswith("printed last\n")
    assert "11999 xxx" in log
    assert log_file(tmp_path).stat().st_size < 2**20 + 1000
    assert older.stat().st_size < 2**20 + 1000
    for path in (older, log_file(tmp_path)):
        assert path.stat().st_mode & 0o077 == 0
    assert {path.name for path in log_file(tmp_path).parent.iterdir()} == {older.name, "server.log"}
