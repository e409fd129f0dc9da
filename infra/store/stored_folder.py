"""Places that a step reads from: a folder on this machine, or an artifact in a bucket.

Small files are copied to this machine as a whole; large ones are read in ranges. A place is written
as a path or as gs://bucket/prefix/artifacts/<key>/attempts/<id> (or s3://…, az://…), so that any
process can open it.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from infra.store.backend import BUCKET_SCHEME, StoreBackend
from infra.store.disk import Disk
from infra.store.history import ARTIFACTS
from infra.store.manifest import File
from infra.store.objects.range_cache import RangeCache, range_cache


class StoredFolder:
    """A folder of files that do not change. Safe to share between threads.

    Attributes:
      uri: the place, for people.
      is_local: whether reading costs no request.
    """

    def __init__(
        self, files: StoreBackend, folder: str, manifest_files: Mapping[str, File] | None
    ) -> None:
        """Opens a folder of `files`.

        Args:
          files: files that the folder is part of.
          folder: name of the folder there; "" for all of them.
          manifest_files: path in it -> digest and size; None for a folder on this machine.
        """
        self.is_local = manifest_files is None
        self.uri = f"{files.uri}/{folder}".rstrip("/")
        self._files, self._folder, self._manifest_files = files, folder, manifest_files
        self._local_folders: dict[str | tuple[str, ...], Path] = {}
        self._ranges: RangeCache | None = None
        if manifest_files is not None:
            ranges = range_cache(files.state)
            size = sum(file.size for file in manifest_files.values())
            self._ranges = ranges if ranges.accepts(size) else None

    def local_folder(self, ending: str | tuple[str, ...]) -> Path:
        """Returns a local folder with at least the files that have an ending, or one of several.

        Files in a bucket are copied to this machine's cache and compared with their digests.

        Raises:
          OSError: if what is stored is not what the manifest says.
        """
        if self._manifest_files is None:
            return Path(self.uri)
        if ending not in self._local_folders:
            selected = {
                name: file for name, file in self._manifest_files.items() if name.endswith(ending)
            }
            self._local_folders[ending] = self._files.local_folder(self._folder, selected)
        return self._local_folders[ending]

    def size(self, name: str) -> int:
        """Returns a file's size [bytes].

        Raises:
          FileNotFoundError: if there is no such file.
        """
        if self._manifest_files is None:
            return self._files.stat(name).size
        if name not in self._manifest_files:
            raise FileNotFoundError(f"{self.uri}/{name}")
        return self._manifest_files[name].size

    def read(self, name: str, start: int, length: int, *, fresh: bool = False) -> bytes:
        """Returns a range of a file's bytes, which the caller must compare with a checksum.

        Ranges from a bucket are cached on this machine, unless the folder is too large for that.

        Args:
          name: name of the file.
          start: first byte of the range.
          length: length of the range, which must be inside the file [bytes].
          fresh: whether to bypass the cache, because the cached range was wrong.

        Raises:
          OSError: if it cannot be read.
        """
        path = f"{self._folder}/{name}" if self._folder else name
        fetch_range = functools.partial(self._files.read_range, path, start, length)
        if self._manifest_files is None or self._ranges is None:
            return fetch_range()
        # Cached by the file's digest and not by its name, so equal files of two artifacts are
        # fetched once.
        sha256 = self._manifest_files[name].sha256
        return self._ranges.get(sha256, start, length, fetch_range, fresh=fresh)


def open_backend(uri: str) -> StoreBackend:
    """Returns the files below a folder of this machine, or below a bucket's prefix.

    Raises:
      ValueError: if it is neither.
      OSError: if the bucket cannot be read.
    """
    if not uri.startswith(BUCKET_SCHEME):
        return Disk(Path(uri).absolute(), durable=False)
    from infra.store.objects.bucket import Bucket  # Here, because its libraries are slow to import.

    return Bucket(uri)


def open_stored_folder(place: str | os.PathLike[str] | StoredFolder) -> StoredFolder:
    """Opens a folder, or an artifact of a store in a bucket, for reading.

    A place that is open already is returned as it is.

    Raises:
      ValueError: if it is in a bucket, and not an artifact of a store.
      OSError: if the bucket cannot be read.
    """
    if isinstance(place, StoredFolder):
        return place
    text = os.fspath(place)
    if not text.startswith(BUCKET_SCHEME):
        return StoredFolder(Disk(Path(text).absolute(), durable=False), "", None)
    from infra.store.store import Store  # Here: it imports this module.

    # The store and the artifact are in the address:
    #
    #   gs://bucket/studies/artifacts/<key>/attempts/<id>
    #   root                          artifact_path
    root, _, artifact_path = text.rpartition(f"/{ARTIFACTS}/")
    try:
        artifact = Store(root).get(artifact_path.partition("/")[0]) if root else None
    except KeyError:
        artifact = None
    # The attempt must be the committed one: another attempt's files may be half written.
    if artifact is None or f"{ARTIFACTS}/{artifact_path}" != artifact.folder:
        raise ValueError(f"{text} is not an artifact of a store; name a folder, or a store's own.")
    return StoredFolder(artifact.files, artifact.folder, artifact.manifest.files)
