"""The database of a store's Prefect server, `prefect.db`: a view, made anew if it is damaged.

What it shows of runs and artifacts is in the store's own records. Only schedules and alerts that
were registered there are in it alone.
"""

import contextlib
import sqlite3
import time
from pathlib import Path

_FILES = ("", "-wal", "-shm", "-journal")
"""Endings of the files that SQLite has of one database."""


def put_damaged_database_aside(store: Path) -> str:
    """Renames a database that SQLite cannot read; returns one line on it, "" if all is well.

    Call it while no server of the store runs.
    """
    path = store / "prefect" / "prefect.db"
    why = _describe_database_damage(path)
    if not why:
        return ""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    # With what Prefect remembers of what it wrote there.
    path.with_name("memo_store.toml").unlink(missing_ok=True)
    for ending in _FILES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(f"{path.name}{ending}").rename(f"{aside}{ending}")
    return (
        f"{path} is damaged ({why}): it is put aside as {aside.name}, and made anew; `parcel "
        f"lineage rebuild` publishes its pages again, schedules and alerts must be given again."
    )


def _describe_database_damage(path: Path) -> str:
    """Returns what is wrong with a database, in a few words; "" if nothing is, or there is none."""
    if not path.exists():
        return ""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=1.0)) as database:
            # Reads each page once, a second for some hundred megabytes. A server would meet the
            # damage at any time, in the middle of a run.
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
            return "" if answer == "ok" else " ".join(answer.split())
    except sqlite3.OperationalError:
        return ""  # Such as one that is locked: the server says so.
    except sqlite3.DatabaseError as error:
        return str(error)
