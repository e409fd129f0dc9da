"""Resumable progress of a step: on this machine's disk, and a copy where the store is elsewhere.

<state>/scratch/<key>/<holding>/…                where the step writes
<store>/scratch/<key>/<holding>/kept.json        path -> sha256 and size, of the last copy
                                 files/<sha256>  its bytes: what did not change is not sent again

Whoever takes a step over, here or on another machine, goes on from the newest.

<store>/scratch/<key>/shared/…                   where workers of any machine write to; on a disk
                                                 it is in the holding's folder

What lies there belongs to the step, not to a holding: it has the same bytes whoever writes it, or a
name that nobody else takes.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from infra.store.digest import file_sha256
from infra.store.files import Files
from infra.store.manifest import File, checked_path

SCRATCH = "scratch"
_KEPT = "kept.json"
_SHARED = "shared"
_AT_ONCE = 8
"""Files on their way at a time."""


class Scratch:
    """The progress of one holding of a step; only its holder touches it.

    Args:
      files: the store's.
      key: of the step.
      token: of the holding.
      is_held: whether the step is still held.
    """

    def __init__(
        self, files: Files, key: str, token: str, is_held: Callable[[], bool] = lambda: True
    ) -> None:
        self._is_held = is_held
        self.path = files.state / SCRATCH / key / token
        self._files, self._folder, self._token = files, f"{SCRATCH}/{key}", token
        self._is_elsewhere = files.uri != str(files.state)

    @property
    def shared(self) -> str:
        """Name in the store of a folder that any machine's workers may write to."""
        own = self._folder if self._is_elsewhere else f"{self._folder}/{self._token}"
        return f"{own}/{_SHARED}"

    def take(self) -> None:
        """Makes the folder, with the newest progress of those who held the step before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        left = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        stored = self._stored() if self._is_elsewhere else []
        if stored and stored[-1] not in [path.name for path in left]:
            self.path.mkdir()
            self._fetch(stored[-1])
        elif left:
            left.pop().rename(self.path)
        self.path.mkdir(exist_ok=True)
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        if stored:
            self.save()
        for token in stored:
            self._files.remove(f"{self._folder}/{token}")

    def save(self) -> None:
        """Copies the folder to where the store is, if that is elsewhere.

        Raises:
          FileNotFoundError: if the lease was lost, and the folder with it.
        """
        if not self._is_elsewhere:
            return
        # Who was stopped, and wakes on a machine of its own, still has its folder.
        if not self.path.is_dir() or not self._is_held():
            raise FileNotFoundError(f"{self.path} is another process's now.")
        own = f"{self._folder}/{self._token}"
        paths = [path for path in self.path.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            digests = dict(zip(paths, pool.map(file_sha256, paths), strict=True))
            there = self._files.listing(f"{own}/files")
            new = {digest: path for path, digest in digests.items() if digest not in there}
            list(pool.map(lambda d: self._files.upload(new[d], f"{own}/files/{d}"), new))
        kept = {
            path.relative_to(self.path).as_posix(): (digest, path.stat().st_size)
            for path, digest in digests.items()
        }
        self._files.put(f"{own}/{_KEPT}", json.dumps(kept).encode())
        for digest in there.keys() - set(digests.values()):
            self._files.remove(f"{own}/files/{digest}")

    def clear(self) -> None:
        """Deletes it, and its copy."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._is_elsewhere:
            for folder in (self._token, _SHARED):
                with contextlib.suppress(OSError):  # gc has it, some day.
                    self._files.remove(f"{self._folder}/{folder}")

    def leave(self) -> None:
        """Gives the folder up if it holds nothing for the next."""
        for folder in (self.path, self.path.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _stored(self) -> list[str]:
        """Returns the holdings that left a copy, the newest last."""
        found = []
        for token in self._files.folders(self._folder):
            with contextlib.suppress(FileNotFoundError):  # Killed before its first was whole.
                stat = self._files.stat(f"{self._folder}/{token}/{_KEPT}")
                found.append((stat.modified, token))
        return [token for _, token in sorted(found)]

    def _fetch(self, token: str) -> None:
        folder = f"{self._folder}/{token}"
        kept = json.loads(self._files.read(f"{folder}/{_KEPT}"))

        def fetch(name: str) -> None:
            sha256, size = kept[name]
            file = File(sha256=sha256, size=size)
            self._files.download(f"{folder}/files/{sha256}", file, self.path / checked_path(name))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, kept))
