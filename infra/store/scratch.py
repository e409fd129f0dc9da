"""Resumable progress of a step: on this machine's disk, with a copy in a store that is elsewhere.

<state>/scratch/<key>/<holding>/…                folder that the step writes to
<store>/scratch/<key>/<holding>/kept.json        path -> sha256 and size, of the last copy
                                 files/<sha256>  bytes of a file; unchanged ones are not sent again

A process that takes a step over, here or on another machine, resumes from the newest progress.

<store>/scratch/<key>/shared/…                   folder that workers of any machine write to; on a
                                                 disk it is in the holding's folder

A shared file belongs to the step, not to a holding: it has the same bytes whichever worker writes
it, or a name that no other worker uses.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from infra.store.backend import StoreBackend
from infra.store.digest import file_sha256
from infra.store.manifest import File, validate_path
from infra.typed_json import parse_typed

SCRATCH = "scratch"
RECIPE = "recipe.json"
"""File of a training's progress: the recipe of its artifact, by which others know it meanwhile."""
_INDEX = "kept.json"
_SHARED = "shared"
_MAX_TRANSFERS = 8
"""Files in transfer at a time."""


class Scratch:
    """The progress of one holding of a step; only its holder touches it.

    Args:
      files: the store's files.
      key: key of the step.
      token: token of the holding.
      is_held: see below.

    Attributes:
      path: folder that the step writes to.
      is_held: returns whether the step is still held.
    """

    def __init__(
        self, files: StoreBackend, key: str, token: str, is_held: Callable[[], bool] = lambda: True
    ) -> None:
        self.is_held = is_held
        self.path = files.state / SCRATCH / key / token
        self._files, self._folder, self._token = files, f"{SCRATCH}/{key}", token
        self._is_remote = files.uri != str(files.state)

    @property
    def shared(self) -> str:
        """Name in the store of the folder that workers of any machine may write to."""
        folder = self._folder if self._is_remote else f"{self._folder}/{self._token}"
        return f"{folder}/{_SHARED}"

    def restore(self) -> None:
        """Makes the folder, with the newest progress of earlier holders of the step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        local_folders = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        stored = self._saved_tokens() if self._is_remote else []
        # What may be there, newest last, and what becomes of it:
        #
        #   local folders t1, t2   no copy         t2 is renamed to ours, t1 deleted
        #   local folders t1, t2   copy of t2      the same: t2 is not older than its copy
        #   local folder  t1       copy of t2      t2 ran on another machine: download it, delete t1
        #   none                   copy of t2      download it
        #
        # The rename also tells the earlier holder, if it lives after all: its next write fails.
        #
        # A holding's local folder is at least as new as its copy: fetch only a copy without one.
        if stored and stored[-1] not in [path.name for path in local_folders]:
            self.path.mkdir()
            self._download_copy(stored[-1])
        elif local_folders:
            local_folders.pop().rename(self.path)
        self.path.mkdir(exist_ok=True)
        for path in local_folders:
            shutil.rmtree(path, ignore_errors=True)
        if stored:  # The new copy is complete before the old ones are deleted.
            self.save()
        for token in stored:
            self._files.remove(f"{self._folder}/{token}")

    def read(self, name: str) -> bytes:
        """Returns a file of the step's newest progress here, whoever holds it, or else of its copy.

        Raises:
          FileNotFoundError: if there is none.
        """
        local = sorted(self.path.parent.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime_ns)
        if local:
            return local[-1].read_bytes()
        for token in reversed(self._saved_tokens() if self._is_remote else []):
            folder = f"{self._folder}/{token}"
            if name in (index := self._read_index(folder)):
                return self._files.read(f"{folder}/files/{index[name][0]}")
        raise FileNotFoundError(f"no {name} of {self._folder}")

    def save(self) -> None:
        """Copies the folder to the store, if that is elsewhere.

        Raises:
          FileNotFoundError: if the lease was lost, and the folder with it.
        """
        if not self._is_remote:
            return
        # A holder that was stopped still has its folder if its successor is on another machine, so
        # the lease is checked, too.
        if not self.path.is_dir() or not self.is_held():
            raise FileNotFoundError(f"{self.path} is another process's now.")
        folder = f"{self._folder}/{self._token}"
        paths = [path for path in self.path.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            # Files go by digest, so that a save sends only what changed since the last one:
            #
            #   files/<sha256 of a>, files/<sha256 of b>     kept.json  {"a": ..., "b": ...}
            #   b changes: files/<sha256 of new b> is sent   kept.json  {"a": ..., "b": new}
            #   files/<sha256 of old b> is deleted
            #
            # kept.json is replaced in between, at once: so wherever this is killed, the copy is the
            # old state or the new one, and whole.
            digests = dict(zip(paths, pool.map(file_sha256, paths), strict=True))
            stored = self._files.listing(f"{folder}/files")
            new_files = {digest: path for path, digest in digests.items() if digest not in stored}
            list(
                pool.map(
                    lambda d: self._files.upload_file(new_files[d], f"{folder}/files/{d}"),
                    new_files,
                )
            )
        index = {
            path.relative_to(self.path).as_posix(): (digest, path.stat().st_size)
            for path, digest in digests.items()
        }
        self._files.put(f"{folder}/{_INDEX}", json.dumps(index).encode())
        for digest in stored.keys() - set(digests.values()):
            self._files.remove(f"{folder}/files/{digest}")

    def clear(self) -> None:
        """Deletes the folder, and its copy."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._is_remote:
            for folder in (self._token, _SHARED):
                with contextlib.suppress(OSError):  # gc deletes it later.
                    self._files.remove(f"{self._folder}/{folder}")

    def remove_if_empty(self) -> None:
        """Deletes the folder if it is empty."""
        for folder in (self.path, self.path.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _saved_tokens(self) -> list[str]:
        """Returns the holdings that left a copy, the newest last."""
        dated = []
        # kept.json is written last, so its time is that of the last whole copy.
        for token in self._files.folders(self._folder):
            with contextlib.suppress(FileNotFoundError):  # Killed before its first copy was whole.
                stat = self._files.stat(f"{self._folder}/{token}/{_INDEX}")
                dated.append((stat.modified, token))
        return [token for _, token in sorted(dated)]

    def _read_index(self, folder: str) -> dict[str, tuple[str, int]]:
        """Returns path -> sha256 and size of the files of a copy."""
        place = f"{folder}/{_INDEX}"
        return parse_typed(dict[str, tuple[str, int]], self._files.read(place), place)

    def _download_copy(self, token: str) -> None:
        folder = f"{self._folder}/{token}"
        index = self._read_index(folder)

        def fetch(name: str) -> None:
            sha256, size = index[name]
            file = File(sha256=sha256, size=size)
            self._files.download_file(
                f"{folder}/files/{sha256}", file, self.path / validate_path(name)
            )

        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            list(pool.map(fetch, index))
