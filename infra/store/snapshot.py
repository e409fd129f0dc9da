"""A snapshot of a bucket from one listing, in which steps are looked up without more requests."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from infra.store.backend import FileStat, StoreBackend, map_reads


class StoreSnapshot:
    """A snapshot of files; writes and copies go to the files themselves.

    Files that were added later are not seen, and files that were deleted since still are. So a
    process that relies on a hit must pin its key first, and take the snapshot after that, or ask
    `Store.snapshot` whether an earlier one still holds.

    Args:
      files: files behind the snapshot.
      stats: name -> state, of all the files.
      records: name -> bytes, of files that were read in advance.
    """

    def __init__(
        self, files: StoreBackend, stats: Mapping[str, FileStat], records: Mapping[str, bytes]
    ) -> None:
        self.uri, self.state = files.uri, files.state
        # Everything that changes files, and everything that reads data, goes to the real back end.
        self.create_if_absent, self.put = files.create_if_absent, files.put
        self.compare_and_swap = files.compare_and_swap
        self.compare_and_delete = files.compare_and_delete
        self.make_workspace, self.publish_folder, self.local_folder, self.remove = (
            files.make_workspace,
            files.publish_folder,
            files.local_folder,
            files.remove,
        )
        self.upload_file, self.upload_bytes = files.upload_file, files.upload_bytes
        self.download_file, self.move = files.download_file, files.move
        self.read_range, self.folder_uri = files.read_range, files.folder_uri
        self.open, self.atomic_write, self.link, self.walk = (
            files.open,
            files.atomic_write,
            files.link,
            files.walk,
        )
        self.sha256, self.now, self._read = files.sha256, files.now, files.read
        self._stats, self._records = stats, records
        self._names: dict[str, dict[str, FileStat]] = {}
        self._folders: dict[str, set[str]] = {}
        # The listing is flat; look-ups ask by folder. For "manifests/dataset/dataset-01.json":
        #
        #   _names    "manifests/dataset" -> {"dataset-01.json": its stat}
        #   _folders  "manifests" -> {"dataset"},  "" -> {"manifests"}
        for name, stat in stats.items():
            folder, _, base_name = name.rpartition("/")
            self._names.setdefault(folder, {})[base_name] = stat
            while folder:
                folder, _, base_name = folder.rpartition("/")
                names = self._folders.setdefault(folder, set())
                if base_name in names:
                    break  # The folders above it are known, too.
                names.add(base_name)

    def snapshot(self) -> StoreBackend:
        return self

    def read(self, name: str) -> bytes:
        record = self._records.get(name)
        return self._read(name) if record is None else record

    def stat(self, name: str) -> FileStat:
        try:
            return self._stats[name]
        except KeyError:
            raise FileNotFoundError(f"{self.uri}/{name}") from None

    def listing(self, folder: str) -> dict[str, FileStat]:
        return dict(sorted(self._names.get(folder, {}).items()))

    def folders(self, folder: str) -> list[str]:
        return sorted(self._folders.get(folder, ()))

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        stats = {name: self._stats.get(f"{folder}/{name}") for name in names}
        return {name: stat.size for name, stat in stats.items() if stat}

    def total_stat(self, name: str) -> FileStat:
        below = [self._stats[name]] if name in self._stats else []
        pending_folders = [name]
        while pending_folders:
            folder = pending_folders.pop()
            below += self._names.get(folder, {}).values()
            pending_folders += [f"{folder}/{inner}" for inner in self._folders.get(folder, ())]
        newest = max((stat.modified for stat in below), default=0)
        return FileStat(size=sum(stat.size for stat in below), modified=newest, version=())


class RecordCache:
    """A cache of small files by name and version, on this machine; it may be deleted at any time.

    Args:
      path: path of the SQLite file, made when first written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, states: Mapping[str, FileStat], read: Callable[[str], bytes]) -> dict[str, bytes]:
        """Returns the bytes of files, reading those that are new or changed, many at a time.

        Files that are no longer asked for are removed from the cache.

        Args:
          states: name -> state, of the files.
          read: returns a file's bytes.
        """
        records = {}
        # Manifests hardly ever change, so nearly all of thousands come from this file, and the
        # bucket is asked only for those that are new since the last command on this machine.
        versions = {name: str(stat.version) for name, stat in states.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS records (name TEXT PRIMARY KEY, version TEXT, "
                "data BLOB) WITHOUT ROWID"
            )
            deleted = []
            for name, version, data in database.execute("SELECT name, version, data FROM records"):
                if versions.get(name) == version:
                    records[name] = data
                elif name not in versions:
                    deleted.append((name,))
            missing = [name for name in states if name not in records]
            contents = map_reads(_none_if_missing(read), missing)
            for name, data in zip(missing, contents, strict=True):
                if data is not None:
                    records[name] = data
            rows = [(name, versions[name], records[name]) for name in missing if name in records]
            # One transaction for both, after all reads: a process that is killed leaves the old
            # cache.
            with database:
                database.executemany("DELETE FROM records WHERE name = ?", deleted)
                database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", rows)
        return records


def _none_if_missing(read: Callable[[str], bytes]) -> Callable[[str], bytes | None]:
    def read_or_none(name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):  # Gone since it was listed.
            return read(name)
        return None

    return read_or_none
