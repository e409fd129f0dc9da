"""Source trees of runs, kept file by file, so that an unchanged file is kept once.

sources/<sha256>   a file's bytes, or a listing {path: sha256} as canonical JSON

A tree is named by the sha256 of its listing.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.store.backend import StoreBackend
from infra.store.digest import canonical_json
from infra.store.manifest import validate_path
from infra.typed_json import parse_typed

SOURCES = "sources"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def save_tree(files: StoreBackend, tree: Mapping[str, bytes]) -> str:
    """Stores a tree of path -> bytes, and returns the digest that names it."""
    # One listing, so that a tree of which little changed costs a few requests and not hundreds.
    stored = files.listing(SOURCES)
    listing = {
        validate_path(path): _source_blob_sha256(data) for path, data in sorted(tree.items())
    }
    text = canonical_json(listing).encode()
    # The listing is written last: if it is there, so are all files that it names.
    for data in (*tree.values(), text):
        digest = _source_blob_sha256(data)
        if digest not in stored:
            files.create_if_absent(f"{SOURCES}/{digest}", data)
    return _source_blob_sha256(text)


def write_tree(tree: Mapping[str, bytes], folder: Path) -> None:
    """Writes a tree of path -> bytes into a folder, to be run from there."""
    for name, data in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class SourceTree(Mapping[str, bytes]):
    """A tree that was kept; files are read, and verified, when asked for.

    Args:
      files: the store's files.
      digest: digest that `save_tree` returned.

    Raises:
      KeyError: if the store has no such tree, or the tree no such path.
      ValueError: if `digest` is not one, or the stored bytes do not match it.
      FileNotFoundError: if a file that the listing names was lost.
    """

    def __init__(self, files: StoreBackend, digest: str) -> None:
        self._files = files
        try:
            text = _read_blob(files, digest)
        except FileNotFoundError:
            raise KeyError(f"no source {digest} in {files.uri}") from None
        try:
            listing: dict[str, str] = parse_typed(dict[str, str], text, "it")
            self.digests = {validate_path(path): entry for path, entry in listing.items()}
        except ValueError as error:
            raise ValueError(f"{SOURCES}/{digest} is no listing of a tree: {error}") from None

    def __getitem__(self, path: str) -> bytes:
        return _read_blob(self._files, self.digests[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self.digests)

    def __len__(self) -> int:
        return len(self.digests)


def _read_blob(files: StoreBackend, digest: str) -> bytes:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"a source's digest must be 64 hex digits, got {digest!r}.")
    data = files.read(f"{SOURCES}/{digest}")
    if _source_blob_sha256(data) != digest:
        raise ValueError(
            f"{files.uri}/{SOURCES}/{digest} holds other bytes than its name says; restore it, or "
            f"delete it if nothing is to be replayed with it."
        )
    return data


def _source_blob_sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
