"""The artifact store: attempts are private, a manifest makes one public.

<store>/artifacts/<key>/manifest.json     the commit point, created once
                        attempts/<id>/…   files of one attempt
                        attempts.jsonl    every attempt ever begun
        scratch/<key>/…                   resumable progress of a step under way
        runs/…                            what each run asked for and got
        cache/…                           compiled programs and the like; safe to delete
"""

import contextlib
import datetime
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.store.digest import file_sha256, listing_sha256
from infra.store.environment import environment
from infra.store.manifest import File, Input, Manifest, Step

MANIFEST = "manifest.json"


class Artifact:
    """A committed artifact."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.path = root / manifest.folder

    @property
    def key(self) -> str:
        """The artifact's name in the store."""
        return self.manifest.key

    @property
    def as_input(self) -> Input:
        """What a step that reads this artifact notes of it."""
        return Input(key=self.manifest.key, content=self.manifest.content)


class Attempt:
    """One try at making an artifact: a folder of its own, and the commit."""

    def __init__(self, store: "Store", step: Step) -> None:
        self.step = step
        self.id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        self.counts: dict[str, float | int | str] = {}
        self.content: str | None = None
        self._root = store.artifact_root(step.key)
        self.path = self._root / "attempts" / self.id
        self._clock = time.monotonic()
        self._started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.path.mkdir(parents=True)
        entry = {"id": self.id, "started": self._started, "host": os.uname().nodename}
        with (self._root / "attempts.jsonl").open("a") as history:
            history.write(json.dumps({**entry, "pid": str(os.getpid())}) + "\n")

    def commit(self, context: Mapping[str, Any]) -> Artifact:
        """Publishes the attempt, unless another one already won; returns the winner.

        Args:
          context: what the orchestrator knows of this run (its run ids).
        """
        files = {
            str(path.relative_to(self.path)): File(
                sha256=file_sha256(path), size=path.stat().st_size
            )
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }
        listing = listing_sha256({name: file.sha256 for name, file in files.items()})
        step = self.step
        manifest = Manifest(
            kind=step.kind,
            name=step.name,
            key=step.key,
            inputs=dict(step.inputs),
            config=step.config,
            seed=step.seed,
            libraries=dict(step.libraries),
            code=step.code,
            source=step.source,
            content=self.content or listing,
            folder=str(self.path.relative_to(self._root)),
            files=files,
            counts=self.counts,
            attempts=self._history(),
            environment={**environment(), **context},
            started=self._started,
            seconds=round(time.monotonic() - self._clock, 3),
        )
        target = self._root / MANIFEST
        if not _create(target, manifest.to_json()):
            shutil.rmtree(self.path)
        return Artifact(self._root, Manifest.from_json(target.read_text()))

    def _history(self) -> list[dict[str, str]]:
        lines = (self._root / "attempts.jsonl").read_text().splitlines()
        return [entry for line in lines if (entry := _parse(line))]


class Store:
    """Artifacts under one local folder.

    Args:
      uri: the folder; made if absent.

    Raises:
      ValueError: if `uri` names another scheme than a local folder.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        text = os.fspath(uri)
        if "://" in text and not text.startswith("file://"):
            raise ValueError(
                f"store must be a local folder, got {text!r}; copy it from or to a bucket with "
                f"your own tools."
            )
        self.root = Path(text.removeprefix("file://")).expanduser().resolve()
        self.root.mkdir(parents=True, exist_ok=True)

    def artifact_root(self, key: str) -> Path:
        """Returns the folder of an artifact, committed or not."""
        return self.root / "artifacts" / key

    def find(self, key: str) -> Artifact | None:
        """Returns a committed artifact whose files all exist with their sizes, or None.

        One that lost files is moved aside, so that its step can run again.
        """
        try:
            artifact = self.get(key)
        except (KeyError, ValueError):
            return None
        for name, file in artifact.manifest.files.items():
            try:
                if (artifact.path / name).stat().st_size == file.size:
                    continue
            except OSError:
                pass
            self._set_aside(key)
            return None
        return artifact

    def get(self, key: str) -> Artifact:
        """Returns a committed artifact, without looking at its files.

        Raises:
          KeyError: if there is none of that key.
        """
        root = self.artifact_root(key)
        try:
            text = (root / MANIFEST).read_text()
        except OSError:
            raise KeyError(f"no artifact {key} in {self.root}") from None
        return Artifact(root, Manifest.from_json(text))

    def resolve(self, prefix: str) -> Artifact:
        """Returns the one artifact whose key begins with `prefix`.

        Raises:
          KeyError: if none or several do, with the candidates.
        """
        every = (path.parent.name for path in self._manifests())
        keys = sorted(key for key in every if key.startswith(prefix))
        if len(keys) != 1:
            found = ", ".join(keys[:5]) or "none"
            raise KeyError(f"artifact must be one key or an unambiguous beginning of one, "
                           f"got {prefix!r}; matches: {found}.")  # fmt: skip
        return self.get(keys[0])

    def artifacts(self, kind: str | None = None) -> Iterator[Artifact]:
        """Yields every committed artifact, by key."""
        for path in sorted(self._manifests()):
            if kind is None or path.parent.name.startswith(kind.replace("_", "-") + "-"):
                yield Artifact(path.parent, Manifest.from_json(path.read_text()))

    def of_identity(self, identity: str) -> list[Artifact]:
        """Returns the artifacts of one identity, whatever their code, newest first."""
        found = [a for a in self.artifacts() if a.key.startswith(f"{identity}-")]
        return sorted(found, key=lambda a: a.manifest.started, reverse=True)

    def keep(self, files):
        return ""

    def source(self, digest):
        return {}

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Path]:
        """Holds a step for this process, and yields its scratch folder.

        The lock dies with the process, so a killed one never blocks the next.
        """
        scratch = self.root / "scratch" / key
        scratch.mkdir(parents=True, exist_ok=True)
        with (self.root / "scratch" / f"{key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._sweep(key)
            yield scratch

    def clear_scratch(self, key: str) -> None:
        """Deletes a step's resumable progress."""
        shutil.rmtree(self.root / "scratch" / key, ignore_errors=True)

    def cache(self, name: str) -> Path:
        """Returns a folder for what can be made again at any time."""
        path = self.root / "cache" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _manifests(self) -> Iterator[Path]:
        return (self.root / "artifacts").glob(f"*/{MANIFEST}")

    def _set_aside(self, key: str) -> None:
        manifest = self.artifact_root(key) / MANIFEST
        with contextlib.suppress(FileNotFoundError):
            manifest.rename(manifest.with_name(f"damaged-{uuid.uuid4().hex[:8]}.json"))

    def _sweep(self, key: str) -> None:
        """Deletes folders of attempts that ended without a commit; the caller holds the lock."""
        root = self.artifact_root(key)
        kept = None
        if (root / MANIFEST).exists():
            kept = Manifest.from_json((root / MANIFEST).read_text()).folder
        for folder in (root / "attempts").glob("*"):
            if str(folder.relative_to(root)) != kept:
                shutil.rmtree(folder, ignore_errors=True)


def _create(path: Path, text: str) -> bool:
    """Writes a file that is whole or absent; returns False if one is already there."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def _parse(line: str) -> dict[str, str] | None:
    try:
        return json.loads(line)  # A writer killed mid-line leaves half of one.
    except json.JSONDecodeError:
        return None
