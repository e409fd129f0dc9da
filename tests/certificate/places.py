"""Where a trial's study keeps its artifacts: a folder, or a bucket; seen from outside."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from infra.store.objects.obstore_client import MARKER
from tests.az.server import Azure
from tests.certificate.shim import Change, Shim
from tests.gcs.objects import Content
from tests.gcs.server import GCS
from tests.s3.server import S3

BUCKET = "testing"
PREFIX = "studies/"

SERVERS = {"gs": GCS, "s3": S3, "az": Azure}

Files = dict[str, bytes]
"""What a store holds for good, by name: manifests, artifacts, histories and sources."""
Artifacts = dict[str, tuple[str, dict[str, str]]]
"""Key -> digest of the content, and of each file as it is stored."""

RECORDS = ("store.json", "manifests", "artifacts", "sources", "aside")


class Place(Protocol):
    """A store of a trial.

    Attributes:
      state: folder of this machine's state.
      environment: variables that name the store and the state.
    """

    @property
    def state(self) -> Path: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    def put(self, files: Files) -> None:
        """Puts files there, before the trial begins."""
        ...

    def files(self) -> Files:
        """Returns what is there now."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Has a file hold other bytes, which looks like damage."""
        ...

    def remove(self, name: str) -> None:
        """Deletes a file, as its owner would."""
        ...

    def changes(self) -> list[Change]:
        """Returns what became of the records since `put`."""
        ...

    def age_lease(self, name: str) -> None:
        """Has a lease look as if it had not been renewed for an hour."""
        ...


class Disk:
    """A store in a folder, watched by the shim."""

    def __init__(self, store: Path, shim: Shim) -> None:
        self.state = self._store = store
        self._shim = shim
        self.environment = {"PARCEL_STORE": str(store)}

    def put(self, files: Files) -> None:
        for name, data in files.items():
            path = self._store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def files(self) -> Files:
        found = {}
        for path in (
            p for name in RECORDS for p in (self._store / name, *(self._store / name).rglob("*"))
        ):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                found[path.relative_to(self._store).as_posix()] = path.read_bytes()
        return found

    def replace(self, name: str, data: bytes) -> None:
        path = self._store / name
        path.chmod(0o644)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        (self._store / name).unlink(missing_ok=True)

    def changes(self) -> list[Change]:
        return self._shim.changes()

    def age_lease(self, name: str) -> None:
        path = self._store / name
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3600))


class InBucket:
    """A store in a bucket, watched by its server."""

    def __init__(self, gcs: GCS, machines: Path) -> None:
        self.gcs = gcs
        self._machines, self._machine, self._put = machines, 0, 0

    @property
    def _own(self) -> Path:
        return self._machines / str(self._machine)

    @property
    def state(self) -> Path:
        return next(self._own.glob(f"{BUCKET}-*"), self._own)

    @property
    def environment(self) -> dict[str, str]:
        uri = f"{self.gcs.uri}/{PREFIX.rstrip('/')}"
        return {**self.gcs.environment, "PARCEL_STORE": uri, "PARCEL_STATE": str(self._own)}

    def lose_machine(self) -> None:
        """Has the next command run on another machine, which has nothing but the bucket."""
        self._machine += 1

    def put(self, files: Files) -> None:
        for name, data in files.items():
            self.gcs.store.put(BUCKET, PREFIX + name, Content.of(data))
        self._put = len(self.gcs.store.bucket(BUCKET).past)

    def files(self) -> Files:
        objects = dict(self.gcs.store.bucket(BUCKET).objects)
        names = ((name.removeprefix(PREFIX), there) for name, there in objects.items())
        return {
            name: there.data
            for name, there in names
            if name.split("/")[0] in RECORDS and there.data != MARKER
        }

    def replace(self, name: str, data: bytes) -> None:
        self.gcs.store.put(BUCKET, PREFIX + name, Content.of(data))

    def remove(self, name: str) -> None:
        self.gcs.store.delete(BUCKET, PREFIX + name)

    def changes(self) -> list[Change]:
        """Every change says what it put an end to: so the next one, or what is there, what came."""
        bucket = self.gcs.store.bucket(BUCKET)
        later = {name: there.data for name, there in bucket.objects.items()}
        found = []
        for _, name, before in reversed(bucket.past[self._put :]):
            data = later.get(name)
            found.append(Change(name.removeprefix(PREFIX), None if data == MARKER else data))
            if before is None:
                later.pop(name, None)
            else:
                later[name] = before.data
        return found[::-1]

    def age_lease(self, name: str) -> None:
        self.gcs.skew_s += 3600.0


@contextlib.contextmanager
def in_bucket(machines: Path, scheme: str) -> Iterator[InBucket]:
    """Yields a place in a bucket of its own server, with a folder for what machines keep."""
    with SERVERS[scheme]() as gcs:
        gcs.bucket(BUCKET)
        yield InBucket(gcs, machines)


def artifacts_of(files: Files) -> Artifacts:
    """Returns the artifacts that files of a store make up.

    Raises:
      RuntimeError: if a file of a source tree holds other bytes than its name says.
    """
    found: Artifacts = {}
    # Whatever is named by its digest must have it: source trees.
    sources = [name for name in files if name.startswith("sources/")]
    if other := [s for s in sources if s[-64:] != hashlib.sha256(files[s]).hexdigest()]:
        raise RuntimeError(f"other bytes than their names say: {other}")
    for name, data in files.items():
        if name.startswith("manifests/"):
            manifest = json.loads(data)
            folder = f"artifacts/{manifest['key']}/{manifest['folder']}"
            stored = {
                path: hashlib.sha256(files.get(f"{folder}/{path}", b"not there")).hexdigest()
                for path in manifest["files"]
                if not path.startswith("latency.")  # Measured, and other each time.
            }
            found[manifest["key"]] = manifest["content"], stored
    return found


def inputs_of(files: Files) -> dict[str, frozenset[str]]:
    """Returns key -> keys of its inputs, of each artifact that files of a store make up."""
    manifests = [json.loads(data) for name, data in files.items() if name.startswith("manifests/")]
    return {
        manifest["key"]: frozenset(entry["key"] for entry in manifest["inputs"].values())
        for manifest in manifests
    }


def difference(expected: Artifacts, found: Artifacts) -> str:
    """Returns how two sets of artifacts differ; "" where they do not."""
    if expected.keys() != found.keys():
        return f"other artifacts: {sorted(expected.keys() ^ found.keys())}"
    differ = [
        key
        for key, (content, stored) in expected.items()
        if found[key][0] != content
        # A checkpoint's own files hold times; its digest is of its arrays.
        or (found[key][1] != stored and not key.startswith("checkpoint"))
    ]
    return f"other bytes: {differ}" if differ else ""
