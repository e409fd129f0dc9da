"""A bucket on the loopback for measurements, served by a process of its own.

The server's work counts in wall times, but not in this process's processor time.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from tests.gcs.server import environment

BUCKET = "gs://perf"


@contextlib.contextmanager
def bucket(latency_ms: float, state: Path) -> Iterator[str]:
    """Serves the empty bucket `BUCKET` to this process and those it starts; yields the address.

    Args:
      latency_ms: latency of every answer [ms].
      state: folder for this machine's state of stores there.
    """
    words = ["--bucket", BUCKET.removeprefix("gs://"), "--latency-ms", str(latency_ms)]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.gcs.server", *words], stdout=subprocess.PIPE, text=True
    )
    before = dict(os.environ)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        # No cache of ranges on this machine's disk, which would hide the reading.
        os.environ |= {**environment(url), "PARCEL_STATE": str(state), "PARCEL_RANGES_GB": "0"}
        yield url
    finally:
        server.terminate()
        server.wait()
        os.environ.clear()
        os.environ |= before


def stored(folder: Path, state: Path) -> str:
    """Stores a dataset in the bucket as if from another machine, and returns its place.

    Args:
      folder: folder of the dataset.
      state: folder for the other machine's state.
    """
    own = os.environ["PARCEL_STATE"]
    os.environ["PARCEL_STATE"] = str(state)
    store = Store(f"{BUCKET}/store")
    attempt = Attempt(store, Recipe(kind="dataset", name=folder.name))
    shutil.copytree(folder, attempt.path, dirs_exist_ok=True)
    key = attempt.commit({}).key
    os.environ["PARCEL_STATE"] = own
    return Store(store.uri).get(key).place
