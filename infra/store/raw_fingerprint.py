"""Whether anything changed in the folders of raw data, told without reading a file.

What changed is then read by `RawDigestCache`.
"""

import hashlib
import time
from collections.abc import Iterable

from infra.store.digest import value_sha256
from infra.store.raw_files import SETTLED_NS
from infra.store.stored_folder import open_backend


class RawFingerprint:
    """Digests of names, sizes and times in the folders of a data root; each is walked once.

    Args:
      data_root: a folder, or a bucket's prefix such as gs://bucket/prefix.
    """

    def __init__(self, data_root: str) -> None:
        self._files = open_backend(data_root)
        self._sums: dict[str, int] = {}

    def sha256(self, folders: Iterable[str]) -> str:
        """Returns a digest that changes when a file in one of the folders does [hex].

        A file that was written within the last two seconds may change again unseen, so the digest
        then differs from every other. Memory use does not grow with the number of files.

        Args:
          folders: folders below the data root; "" is all of it, and a missing one is empty.

        Raises:
          OSError: if one cannot be listed.
        """
        return value_sha256({folder: self._folder_sum(folder) for folder in sorted(set(folders))})

    def _folder_sum(self, folder: str) -> int:
        """Returns a sum over the files' digests, which does not depend on their order."""
        if folder not in self._sums:
            # A sum of digests and not a digest of a sorted list: files come in any order, and
            # millions of names need no memory.
            total, now = 0, time.time_ns()
            for name, stat in self._files.walk(folder):
                version = (*stat.version, stat.changed)
                # (In a bucket, whose objects have no time of change, the version is another.)
                if stat.changed and now - stat.modified <= SETTLED_NS:
                    # May change again within this tick of the clock: never equal to another look.
                    version = (*version, now)
                text = f"{name}\0{stat.size} {version} {stat.crc32c}"
                digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
                total += int.from_bytes(digest, "big")
            self._sums[folder] = total % 2**256
        return self._sums[folder]
