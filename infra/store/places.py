"""Places that a step reads from: a folder of this machine, or an artifact in a bucket.

What is small is had whole, as local files; what is large is read in ranges. A place is written as
a path or as gs://bucket/prefix/artifacts/<key>/attempts/<id>, so that any process can open it.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from infra.store.disk import Disk
from infra.store.files import Files
from infra.store.history import ARTIFACTS
from infra.store.manifest import File
from infra.store.range_cache import RangeCache, range_cache

BUCKET = "gs://"
"""Begins the places that are not on this machine."""


class Place:
    """A folder of files that are there for good. Safe to share between threads.

    Attributes:
      uri: the place, for people.
      is_local: whether reading costs no request.
    """

    def __init__(self, files: Files, folder: str, listed: Mapping[str, File] | None) -> None:
        """Opens a folder of `files`.

        Args:
          files: where it is.
          folder: its name there; "" for all of them.
          listed: path in it -> digest and size; None for a folder of this machine.
        """
        self.is_local = listed is None
        self.uri = f"{files.uri}/{folder}".rstrip("/")
        self._files, self._folder, self._listed = files, folder, listed
        self._whole: dict[str | tuple[str, ...], Path] = {}
        self._ranges: RangeCache | None = None
        if listed is not None:
            ranges = range_cache(files.state)
            size = sum(file.size for file in listed.values())
            self._ranges = ranges if ranges.takes(size) else None

    def whole(self, ending: str | tuple[str, ...]) -> Path:
        """Returns a local folder that holds at least the files with an ending, or with one of some.

        Of a bucket they are copied to this machine's cache, compared with their digests.

        Raises:
          OSError: if what is stored is not what the manifest says.
        """
        if self._listed is None:
            return Path(self.uri)
        if ending not in self._whole:
            wanted = {name: file for name, file in self._listed.items() if name.endswith(ending)}
            self._whole[ending] = self._files.local(self._folder, wanted)
        return self._whole[ending]

    def size(self, name: str) -> int:
        """Returns a file's size [bytes].

        Raises:
          FileNotFoundError: if there is no such file.
        """
        if self._listed is None:
            return self._files.stat(name).size
        if name not in self._listed:
            raise FileNotFoundError(f"{self.uri}/{name}")
        return self._listed[name].size

    def read(self, name: str, start: int, length: int, *, fresh: bool = False) -> bytes:
        """Returns a range of a file's bytes; whoever reads compares them with a checksum.

        Of a bucket, this machine keeps what it read, unless the folder is too large for that.

        Args:
          name: of the file.
          start: its first byte.
          length: of the range, which lies in the file [bytes].
          fresh: read it from where it is stored: what came before was wrong.

        Raises:
          OSError: if it cannot be read.
        """
        path = f"{self._folder}/{name}" if self._folder else name
        asked = functools.partial(self._files.read_range, path, start, length)
        if self._listed is None or self._ranges is None:
            return asked()
        sha256 = self._listed[name].sha256
        return self._ranges.get(sha256, start, length, asked, fresh=fresh)


def open_files(uri: str) -> Files:
    """Returns the files below a folder of this machine, or below gs://bucket/prefix.

    Raises:
      ValueError: if it is neither.
      OSError: if the bucket cannot be read.
    """
    if not uri.startswith(BUCKET):
        return Disk(Path(uri).absolute(), durable=False)
    from infra.store.bucket import Bucket  # Its libraries take their time.

    return Bucket(uri)


def open_place(place: str | os.PathLike[str] | Place) -> Place:
    """Opens a folder, or an artifact of a store in a bucket, for reading; an open one stays so.

    Raises:
      ValueError: if it is in a bucket, and no artifact of a store.
      OSError: if the bucket cannot be read.
    """
    if isinstance(place, Place):
        return place
    text = os.fspath(place)
    if not text.startswith(BUCKET):
        return Place(Disk(Path(text).absolute(), durable=False), "", None)
    from infra.store.store import Store  # It imports what imports this.

    root, _, rest = text.rpartition(f"/{ARTIFACTS}/")
    try:
        artifact = Store(root).get(rest.partition("/")[0]) if root else None
    except KeyError:
        artifact = None
    if artifact is None or f"{ARTIFACTS}/{rest}" != artifact.folder:
        raise ValueError(f"{text} is not an artifact of a store; name a folder, or a store's own.")
    return Place(artifact.files, artifact.folder, artifact.manifest.files)
