"""A sweep that loops for an hour beside `parcel serve`: what grows, and how fast.

    python -m perf.soak --minutes 60

Each round makes one new cell of the smallest study, and deletes what an earlier round left: its
record, its rows in Prefect's database, and what `parcel gc` then finds. Rounds take turns: one is
started from the form that `parcel serve` has, the next by a process that calls `parcel.sweep`, as a
notebook does. Between two rounds, when nothing runs, it counts the memory, file descriptors and
threads of the processes that stay, the files in every folder that they write to, and the rows of
each table. After the first tenth of the time, all of it must be flat. Prefect keeps events and
tokens for minutes here, where it keeps them for days and an hour.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil

from infra.prefect.server import running
from perf.timing import table
from tests.e2e.conftest import PARCEL, SMALLEST, Served, environment, serving

_KEPT = 4
"""Number of runs whose records and rows stay."""
_RUN_TIMEOUT = 900.0
"""Longest round [s]."""
_RETENTION = 120.0
"""Time for which Prefect's server keeps events, and pause between two of its clean-ups [s]."""
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_MB = 1e6
_SHARE = 0.05
"""Rise of a quantity that counts as flat, as a part of its mean."""
_SETTLED = 0.1
"""Part of the time that does not count: caches fill."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trend:
    """What a quantity did after the first tenth of the time.

    Attributes:
      mean: its mean.
      slope: its rise per hour, by least squares.
      rise: the slope times the time it was watched for.
      noise: standard deviation of its distances from the line.
    """

    mean: float
    slope: float
    rise: float
    noise: float

    @classmethod
    def of(cls, seconds: Sequence[float], values: Sequence[float]) -> "Trend":
        """Fits a line.

        Args:
          seconds: times of the samples, from the start [s].
          values: the samples; at least three must be after the first tenth of the time.

        Raises:
          ValueError: if there are fewer.
        """
        times, samples = np.asarray(seconds, float), np.asarray(values, float)
        late = times >= times[0] + _SETTLED * (times[-1] - times[0])
        times, samples = times[late], samples[late]
        if len(times) < 3:
            raise ValueError(
                f"a trend needs three samples after the first tenth, got {len(times)}."
            )
        slope, start = np.polyfit(times, samples, 1)
        return cls(
            mean=float(samples.mean()),
            slope=float(slope * 3600),
            rise=float(slope * (times[-1] - times[0])),
            noise=float(np.std(samples - (start + slope * times))),
        )

    @property
    def is_flat(self) -> bool:
        """Whether it rose by less than a twentieth, or by less than it varies anyway."""
        return self.rise <= max(_SHARE * self.mean, 2 * self.noise)


def soak(
    folder: Path, minutes: float, most_rounds: int | None = None
) -> Iterator[dict[str, float]]:
    """Yields the quantities after each round, with their time as `seconds`.

    Args:
      folder: an empty folder with a short name, which Ray's sockets lie below.
      minutes: time until no further round begins.
      most_rounds: number of rounds after which it ends in any case; None for no such number.

    Raises:
      RuntimeError: if a round fails.
    """
    store, began = folder / "store", time.monotonic()
    places = {"TMPDIR": folder / "t", "HOME": folder / "home", "store": store}
    for place in places.values():
        place.mkdir()
    own = environment(store) | {
        "TMPDIR": str(places["TMPDIR"]),
        "HOME": str(places["HOME"]),
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"PT{_RETENTION:.0f}S",
        "PREFECT_SERVER_CSRF_TOKEN_EXPIRATION": f"PT{_RETENTION:.0f}S",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "true",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": str(_RETENTION),
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ORPHAN_CLEANUP_LOOP_SECONDS": str(_RETENTION),
    }
    with serving(store, own) as served, _notebook(own, folder / "notebook.log") as notebook:
        number, rounds = 0, most_rounds or sys.maxsize
        while number < rounds and time.monotonic() - began < 60 * minutes:
            # A learning rate that no round had before, so that the transfer is another one.
            rate = f"transfers.chartqa.train.peak_lr={1e-3 * (1 + number / 1000):.6f}"
            pid = notebook.submit(_sweep, rate if number % 2 else None).result(_RUN_TIMEOUT)
            if number % 2 == 0:
                _run_of_form(served, rate)
            _read_pages(served)
            _drop_old_runs(served, own)
            counts = {"seconds": time.monotonic() - began}
            yield counts | dict(_counts(served, pid, places))
            number += 1


@contextlib.contextmanager
def _notebook(own: Mapping[str, str], log: Path) -> Iterator[ProcessPoolExecutor]:
    """Yields a process that stays, in which studies run as in a notebook."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_begin_notebook, initargs=(own, log)
    ) as pool:
        yield pool


def _begin_notebook(own: Mapping[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(own)
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(words, stream)


def _sweep(rate: str | None) -> int:
    """Sweeps the smallest study with a learning rate, if there is one; returns the process's id."""
    if rate is not None:
        import parcel

        key, _, value = rate.partition("=")
        parcel.sweep(SMALLEST, seeds=1, overrides={key: float(value)})
    return os.getpid()


def _run_of_form(served: Served, rate: str) -> None:
    """Starts the same sweep from the form of `parcel serve`, and waits for its end."""
    add = {"seeds": 1}
    run = served.start("sweep/sweep", study=SMALLEST, add=add, overrides=[rate])
    deadline = time.monotonic() + _RUN_TIMEOUT
    while (state := served.ask(f"/flow_runs/{run}", method="GET")["state"])["type"] not in _ENDED:
        if time.monotonic() > deadline:
            raise RuntimeError(f"run {run} did not end within {_RUN_TIMEOUT:.0f} s: {state}")
        time.sleep(1)
    if state["type"] != "COMPLETED":
        raise RuntimeError(f"run {run} ended as {state['type']}: {state['message']}")


def _read_pages(served: Served) -> None:
    """Reads the list of runs and the newest table, as somebody who watches."""
    for path in ("/parcel/", "/parcel/results/smallest"):
        request = urllib.request.Request(f"{served.url}{path}", headers=served.login)
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()


def _drop_old_runs(served: Served, own: Mapping[str, str]) -> None:
    """Deletes the records and rows of all but the newest runs, and what nothing needs then."""
    records = sorted((served.store / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    for path in records[:-_KEPT]:
        path.unlink()
    newest = json.dumps({"sort": "EXPECTED_START_TIME_DESC", "offset": _KEPT}).encode()
    for run in served.ask("/flow_runs/filter", newest):
        if run["state_type"] in _ENDED:
            served.ask(f"/flow_runs/{run['id']}", b"", "DELETE")
    words = [PARCEL, "gc", "--older-than", "0s", "--delete"]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"parcel gc: {done.stdout[-500:]}{done.stderr[-500:]}")


def _counts(
    served: Served, notebook: int, places: Mapping[str, Path]
) -> Iterator[tuple[str, float]]:
    """Yields the name and the value of each quantity."""
    note = running(served.store)
    if note is None:
        raise RuntimeError("the server of `parcel serve` is gone")
    server = psutil.Process(note.process.pid)
    serve = next(p for p in psutil.Process().children() if "serve" in p.cmdline())
    for role, process in (
        ("serve", serve),
        ("Prefect server", server),
        ("notebook", psutil.Process(notebook)),
    ):
        yield f"memory of {role} [MB]", process.memory_info().rss / _MB
        yield f"descriptors of {role}", process.num_fds()
        yield f"threads of {role}", process.num_threads()
    yield "processes", len(psutil.Process().children(recursive=True))
    for name, place in places.items():
        yield from _files_of(name, place)
    yield from _files_of("/dev/shm", Path("/dev/shm"))
    database = f"file:{served.store / 'prefect' / 'prefect.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(database, uri=True, timeout=60)) as connection:
        names = connection.execute(
            "select name from sqlite_master where type = 'table' and name not like '%alembic%'"
        ).fetchall()
        for (name,) in names:
            yield (
                f"rows of {name}",
                connection.execute(f'select count(*) from "{name}"').fetchone()[0],
            )


def _files_of(name: str, place: Path) -> Iterator[tuple[str, float]]:
    count = size = 0
    for folder, _, files in os.walk(place):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, file)).st_size
                count += 1
    yield f"files in {name}", count
    yield f"size of {name} [MB]", size / _MB


def trends(rounds: Sequence[Mapping[str, float]]) -> dict[str, Trend]:
    """Returns the trend of each quantity that is ever other than 0, by name."""
    seconds = [values["seconds"] for values in rounds]
    names = dict.fromkeys(name for values in rounds for name in values if name != "seconds")
    series = {name: [values.get(name, 0.0) for values in rounds] for name in names}
    return {name: Trend.of(seconds, values) for name, values in series.items() if any(values)}


def report(found: Mapping[str, Trend]) -> str:
    """Returns a row per quantity, those that are not flat first."""
    rows = [
        [
            name,
            *(f"{x:.4g}" for x in (t.mean, t.slope, t.rise, t.noise)),
            "" if t.is_flat else "GROWS",
        ]
        for name, t in sorted(found.items(), key=lambda item: item[1].is_flat)
    ]
    return table(["", "mean", "per hour", "rise", "noise", ""], rows)


def main(words: Sequence[str] | None = None) -> int:
    """Prints a line per round and the table of trends; returns 1 if something grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="file for the quantities of each round")
    asked = parser.parse_args(words)
    rounds: list[dict[str, float]] = []
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    try:
        for values in soak(folder, asked.minutes):
            rounds.append(values)
            memory = sum(value for name, value in values.items() if name.startswith("memory"))
            print(
                f"{values['seconds']:6.0f} s: round {len(rounds)}, {memory:.0f} MB, "
                f"{values['files in store']:.0f} files in the store",
                flush=True,
            )
            if asked.json:
                asked.json.write_text(json.dumps(rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = trends(rounds)
    print(report(found))
    return 0 if all(trend.is_flat for trend in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
