"""The folder of one source, as its reader sees it."""

import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from pipelines.records.schema import BadInput
from pipelines.sources.item import Media

WEB_TASKS = ("caption", "grounded_caption", "ocr", "vqa", "question", "detect", "segment")
"""Kinds of records that a web image can make; the reader of web images says how."""


class Spool:
    """Keeps bytes that cannot be found again by offset (compressed archives, parquet cells)."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """Appends to the file `path`; None keeps nothing, for listing only."""
        self._file = None if path is None else open(path, "wb")  # noqa: SIM115
        self._path = "" if path is None else os.path.abspath(path)

    def put(self, data: bytes) -> dict[str, object]:
        """Stores `data` and returns the `Media` fields that find it again."""
        if self._file is None:
            return {"size": len(data)}
        offset = self._file.tell()
        self._file.write(data)
        return {"store": self._path, "offset": offset, "size": len(data)}

    def close(self) -> None:
        """Makes everything readable."""
        if self._file is not None:
            self._file.close()


class Corpus:
    """The folder of one source, and a note of every annotation file that was read from it."""

    def __init__(
        self,
        data_root: str | os.PathLike[str],
        path: str,
        spool: Spool,
        *,
        per_task: int = 1,
        tasks: Collection[str] = (),
    ) -> None:
        """Opens `data_root/path`.

        A web image makes at most `per_task` records of each of the kinds `tasks`; none are all.
        """
        self.per_task, self.tasks = per_task, tasks
        self.data_root = Path(data_root)
        self.folder = self.data_root / path
        self.spool = spool
        self.annotations: set[str] = set()
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder} is not a folder; check data_root and path.")

    def relative(self, path: str | os.PathLike[str]) -> str:
        """Returns `path` relative to the data root, with forward slashes.

        Raises:
          BadInput: if it lies outside, as a hostile or absolute path in an annotation may.
        """
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in str(path)):
            raise BadInput(f"path is not a name of a file: {str(path)[-120:]!r}")
        relative = os.path.relpath(os.path.normpath(path), os.path.normpath(self.data_root))
        if relative.startswith("..") or os.path.isabs(relative):
            raise BadInput(f"path leaves the data root: {str(path)[-120:]!r}")
        return Path(relative).as_posix()

    def annotation(self, path: Path) -> Path:
        """Returns `path`, noted as an input.

        Raises:
          FileNotFoundError: naming the file, if there is none.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing.")
        self.annotations.add(self.relative(path))
        return path

    def files(self) -> Iterator[Path]:
        """Yields every file below the folder, sorted; memory holds one folder's names."""
        return _files(self.folder)

    def load_json(self, path: Path, compact: Callable[[dict], object] | None = None) -> object:
        """Returns the content of a JSON file, its objects replaced by `compact` of them.

        Raises:
          ValueError: if it is not JSON, naming the file.
        """
        try:
            text = self.annotation(path).read_text(encoding="utf-8")
            return json.loads(text, object_hook=compact)
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}.") from error

    def media(self, path: Path, **fields: Any) -> Media:
        """Returns a reference to a plain file; whether it exists shows when it is read."""
        return Media(path=self.relative(path), **fields)


def _files(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path
