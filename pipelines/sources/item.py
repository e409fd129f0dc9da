"""What a reader lists: one would-be record each, with references to its pixels but no pixels."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

MAX_ENCODED = 512 << 20
"""Largest encoded image read into memory [bytes]; the largest photographs have some 100 MB."""

BOX_MARKER = "\ue000"
"""Stands in a prefix or suffix where the four location tokens of the next box belong."""


class BadInput(ValueError):
    """An input that cannot become a record; the message is the reason it is rejected for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edit:
    """What is changed in an image before it is stored.

    Attributes:
      quarter_turns: counter-clockwise.
      labels: x0, y0, x1, y1 of white rectangles, each with the black text in it [pixels].
      frame: x0, y0, x1, y1 of a red frame, one pixel wide once stored [fractions of the height].
    """

    quarter_turns: int = 0
    labels: tuple[tuple[float, float, float, float, str], ...] = ()
    frame: tuple[float, float, float, float] | None = None

    @classmethod
    def from_fields(cls, raw: dict) -> "Edit":
        """Returns the edit of fields read from JSON."""
        frame = raw["frame"]
        labels = tuple(tuple(label) for label in raw["labels"])
        return cls(**{**raw, "labels": labels, "frame": None if frame is None else tuple(frame)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Media:
    """Where the encoded bytes of one image or video lie.

    Attributes:
      path: the file, or the archive that holds it, relative to the data root [path].
      member: name inside the archive; "" for a plain file.
      store: where the bytes really are, if not at `path` (unpacked) [absolute path].
      offset: first byte.
      size: length; -1 means to the end [bytes].
      video: decoded into frames rather than as one image.
      start: where the part of the video that is meant begins, from its first frame [s].
      end: where that part ends; None for the video's end [s].
      edit: what is changed in its pixels; None for nothing.
    """

    path: str
    member: str = ""
    store: str = ""
    offset: int = 0
    size: int = -1
    video: bool = False
    start: float = 0.0
    end: float | None = None
    edit: Edit | None = None

    @classmethod
    def from_fields(cls, raw: dict) -> "Media":
        """Returns the media of fields read from JSON."""
        edit = raw["edit"]
        return cls(**{**raw, "edit": None if edit is None else Edit.from_fields(edit)})

    @property
    def source(self) -> str:
        """The name a record gives it."""
        return f"{self.path}/{self.member}" if self.member else self.path

    def location(self, data_root: str | os.PathLike[str]) -> str:
        """Returns the file to open."""
        return self.store or os.path.join(data_root, self.path)

    def read(self, data_root: str | os.PathLike[str]) -> bytes:
        """Returns the encoded bytes.

        Raises:
          BadInput: if the file is missing, unreadable or shorter than listed.
        """
        try:
            with open(self.location(data_root), "rb") as file:
                size = self.size if self.size >= 0 else os.fstat(file.fileno()).st_size
                if size > MAX_ENCODED:
                    raise BadInput(f"too large: {size} bytes, {MAX_ENCODED} are accepted")
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise BadInput(f"{error.strerror or type(error).__name__}: {self.source}") from error
        if self.size >= 0 and len(data) != self.size:
            raise BadInput(f"truncated: {len(data)} of {self.size} bytes")
        return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One would-be record.

    Attributes:
      id: of the record. Items made of the same pixels share what precedes "#".
      part: the dataset part it goes to.
      media: its images (one, or a pair) or its video.
      prefix: as in the record, with a `BOX_MARKER` per box.
      suffixes: as in the record, with a `BOX_MARKER` per box and a `MASK_MARKER` per mask.
      prefixes: as in the record; no boxes are in them.
      task: as in the record.
      lang: as in the record.
      boxes: x0, y0, x1, y1 of every `BOX_MARKER`, prefix first [pixels].
      masks: per `MASK_MARKER`, COCO run lengths, or {"size", "polygons"} [JSON].
      annotated_size: width and height the boxes refer to; None if not stated [pixels].
      answers: as in the record.
      meta: as in the record.
    """

    id: str
    part: str
    media: tuple[Media, ...]
    prefix: str
    suffixes: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()
    task: str
    lang: str = "en"
    boxes: tuple[tuple[float, ...], ...] = ()
    masks: tuple[str, ...] = ()
    annotated_size: tuple[int, int] | None = None
    answers: tuple[str, ...] = ()
    meta: dict[str, object] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the item as one line."""
        return json.dumps(vars(self), default=vars, ensure_ascii=False)  # `asdict` is slow.

    @classmethod
    def from_json(cls, line: str) -> "Item":
        """Returns the item of a line written by `to_json`."""
        raw = json.loads(line)
        raw["media"] = tuple(Media.from_fields(m) for m in raw["media"])
        for name in ("boxes", "prefixes"):
            raw[name] = tuple(tuple(one) for one in raw[name])
        size = raw["annotated_size"]
        raw["annotated_size"] = None if size is None else tuple(size)
        for name in ("suffixes", "masks", "answers"):
            raw[name] = tuple(raw[name])
        return cls(**raw)


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


def stable_hash(text: str) -> int:
    """Returns 64 bits of a digest, the same on every machine: for choices that look random."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
