"""The folder of one source, as its reader uses it."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote

import google_crc32c

from infra.store.raw_path import local_copy, raw_path
from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput, Omission
from pipelines.sources.reading.item import Media
from pipelines.sources.reading.values import answer_of, text_of

WEB_TASKS = ("caption", "grounded_caption", "ocr", "vqa", "question", "detect", "segment")
"""Kinds of records that a web image can make; the reader of web images says how."""

FEATURES = (
    "image",
    "id",
    "caption",
    "question",
    "answer",
    "prefix",
    "suffix",
    "mask",
    "task",
    "lang",
    "ocr",
    "objects",
    "qa",
    "captions",
    "licence",
    "holder",
    "address",
)
"""Fields that features of a `tf.train.Example` can fill; see `pipelines.sources.web.examples`. The
last three can be filled by columns and JSON members of web images, too."""

_LISTS = {"state.json": "_data_files", "index.json": "shards"}
"""Lists of the files beside them, of `datasets` and MosaicML, and the key under which they are; the
second are in forms and packings of MosaicML's own, and not followed."""

_LIVE = re.compile(
    r".*/(_delta_log|_spark_metadata|_temporary|\.hoodie|\.nv-meta|_committed_\d+)"
    r"|_versions/.*\.manifest|metadata/.*\.metadata\.json"
)
"""What says, in the form of an engine for tables or of Energon, which files of a folder count."""

_CACHE = re.compile(r"cache-[0-9a-f]+(_\d+_of_\d+)?\.arrow$")
"""What `map` and `filter` of `datasets` leave beside the rows that they read."""

NOT_UTF8 = "name is not UTF-8; rename it"

LINK = "link to a "
"""How the reason begins why a link is passed over."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Value in the name of a folder whose rows have none."""

MAX_REASONS = 64
"""Most fields named that one file has and nothing reads; the names may be a row's own."""

Fact = TypeVar("Fact")


class UnpackedMedia:
    """Stores bytes that cannot be found again by offset (compressed archives, parquet cells)."""

    def __init__(self, file: BinaryIO | None = None, name: str = "") -> None:
        """Appends to a file.

        Args:
          file: file to append to; None stores nothing, for listing only.
          name: name of the file in `Media.store`.
        """
        self._file, self._name = file, name

    def append(self, data: bytes) -> dict[str, object]:
        """Stores `data` and returns the `Media` fields that find it again."""
        if self._file is None:
            return {"size": len(data)}
        # Position, length and checksum are all that a worker on another machine needs to find it.
        offset = self._file.tell()
        self._file.write(data)
        crc = google_crc32c.value(data)
        return {"store": self._name, "offset": offset, "size": len(data), "crc32c": crc}


class OmissionCounts:
    """What the reading of one file passes over: reason -> number, and one of them by name."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, example: str = "", num: int = 1) -> None:
        """Counts one thing, or several, that are passed over for the same reason."""
        reason, example = printable_name(reason), printable_name(example)
        count, first = self._counts.get(reason, (0, example))
        self._counts[reason] = count + num, min(first, example)

    def __len__(self) -> int:
        """Returns the number of reasons."""
        return len(self._counts)

    def clear(self) -> None:
        """Forgets all counts, before the file is read again."""
        self._counts.clear()

    def omissions(self, source: str) -> Iterator[Omission]:
        """Yields an omission per reason."""
        for reason, (num, example) in self._counts.items():
            yield Omission(source=source, reason=reason, num=num, example=example)


class Corpus:
    """The folder of one source.

    It notes every annotation file that is read from it, and what its readers pass over.

    Attributes:
      annotations: the annotation files that were read, below the data root.
      passed_over: what `files` has met and does not yield -> why.
    """

    def __init__(
        self,
        data_root: str | os.PathLike[str],
        path: str,
        unpacked: UnpackedMedia,
        *,
        per_task: int = 1,
        tasks: Collection[str] = (),
        features: Mapping[str, str] | None = None,
    ) -> None:
        """Opens `data_root/path`; the root is a folder on this machine or in a bucket.

        Args:
          data_root: folder of all sources [path or URI].
          path: the source's folder below it.
          unpacked: store for unpacked bytes.
          per_task: most records of one task kind per web image.
          tasks: kinds of records made from web images; empty makes all kinds.
          features: one of `FEATURES` -> feature of an Example that holds it.

        Raises:
          ValueError: if a key of `features` is none of `FEATURES`.
          FileNotFoundError: if there is no such folder.
        """
        self.per_task, self.tasks = per_task, tasks
        self.features = check_features(features or {})
        # A root that is already open keeps its connection and its cache of names.
        self.data_root = cast(
            Path, data_root if isinstance(data_root, PurePath) else raw_path(data_root)
        )
        self.folder = self.data_root / path
        self.unpacked = unpacked
        self.annotations: set[str] = set()
        self.passed_over: dict[Path, str] = {}
        self._omissions: dict[str, OmissionCounts] = {}
        self._facts: dict[str, Any] = {}
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder} is not a folder; check data_root and path.")

    def relative(self, path: str | os.PathLike[str]) -> str:
        """Returns `path` relative to the data root, with forward slashes.

        Raises:
          BadInput: if it is outside, which a hostile or absolute path in an annotation may be.
        """
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in str(path)):
            raise BadInput(f"path is not a name of a file: {os.path.basename(path)[-120:]!r}")
        # By its text: a/../../b leaves the root, whatever links there are.
        relative = os.path.relpath(os.path.normpath(path), os.path.normpath(self.data_root))
        if relative.startswith("..") or os.path.isabs(relative):
            # Only the file name: rejects must not depend on where the data root is.
            raise BadInput(f"path leaves the data root: {os.path.basename(path)[-120:]!r}")
        return Path(relative).as_posix()

    def annotation(self, path: Path) -> Path:
        """Notes `path` as an input and returns it.

        Raises:
          FileNotFoundError: if the file is missing, naming it.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing.")
        self.annotations.add(self.relative(path))
        return path

    def omission_counts(self, path: Path) -> OmissionCounts:
        """Returns the count of what is passed over in a file, to which its reader adds."""
        return self._omissions.setdefault(self.relative(path), OmissionCounts())

    def omissions(self) -> list[Omission]:
        """Returns what the readers have passed over so far, by file and reason."""
        counts = self._omissions.items()
        return sorted(o for source, of_file in counts for o in of_file.omissions(source))

    @contextlib.contextmanager
    def local_annotation(self, path: Path) -> Iterator[Path]:
        """Notes `path` as an input, and yields it as a file on this machine.

        For files that are read at random offsets: from a bucket it is a copy, checked against the
        object's checksum, which ranges of an object do not have.

        Raises:
          FileNotFoundError: if the file is missing, naming it.
        """
        with local_copy(self.annotation(path)) as local:
            yield local

    def once(self, name: str, find: Callable[[], Fact]) -> Fact:
        """Returns a fact of the whole folder, which `find` works out when it is first needed."""
        if name not in self._facts:
            self._facts[name] = find()
        return self._facts[name]

    def has(self, path: Path) -> bool:
        """Whether a file exists; False, too, for names that are invalid or too long."""
        return os.path.isfile(path) if self.is_local else path.is_file()

    def files(self) -> Iterator[Path]:
        """Yields every file below the folder, sorted; memory holds one folder's names per level.

        Links to folders are not followed, and names that are not UTF-8 are passed over, since no
        record could name them; nor do files count that a list in their folder leaves out.

        Raises:
          ValueError: if a list cannot be followed.
        """
        return self._walk_corpus_files(self.folder)

    def _walk_corpus_files(self, folder: Path) -> Iterator[Path]:
        # `os.path.isdir` is False for a path in a bucket.
        names = os.listdir(folder) if os.path.isdir(folder) else [p.name for p in folder.iterdir()]
        reasons = self._unlisted_file_reasons(folder, [*filter(is_unicode, sorted(names))])
        for name in sorted(names):
            path = folder / printable_name(name)
            if not is_unicode(name):
                self.passed_over[path] = NOT_UTF8
            elif path.is_dir() and not path.is_symlink():
                yield from self._walk_corpus_files(path)
            elif not path.is_file():
                what = "folder, which is not followed" if path.is_dir() else "missing file"
                reason = f"{LINK}{what}" if path.is_symlink() else "neither a file nor a folder"
                self.passed_over[path] = reason
            elif name not in reasons:
                yield path
            elif left_out := reasons[name]:
                self.passed_over[path] = left_out

    def _unlisted_file_reasons(self, folder: Path, names: list[str]) -> dict[str, str | None]:
        """Returns why files of a folder do not count, by its own list; None for the list."""
        caches: dict[str, str | None] = {n: "cache of datasets" for n in names if _CACHE.match(n)}
        reasons: dict[str, str | None] = {}
        for name in names:
            if _LIVE.fullmatch(f"{folder.name}/{name}"):
                raise ValueError(
                    f"{folder / name} says which files there are live, and is not followed; export "
                    f"the live rows to another folder, or move this one away."
                )
            fields: Any = self.load_json(folder / name) if name in _LISTS else None
            entries = fields.get(_LISTS[name]) if isinstance(fields, dict) else None
            if not isinstance(entries, list):
                continue
            if name == "index.json":
                raise ValueError(
                    f"{folder / name} lists shards of MosaicML's streaming, which are not read; "
                    f"export their rows to another folder, or move this one away."
                )
            listed = {str(e.get("filename")) if isinstance(e, dict) else "" for e in entries}
            if not listed <= {*names} or fields.get("_indices_data_files"):
                raise ValueError(f"{folder / name} must list whole files, all there; copy them.")
            # Versions before 2.0 save what `map` made under the name of its cache.
            caches = {n: reason for n, reason in caches.items() if n not in listed}
            reasons |= {n: f"not listed in {name}" for n in names if n not in listed}
            reasons[name] = None
        return caches | reasons

    def read_text(self, path: Path) -> str:
        """Notes `path` as an input, and returns its text without a byte order mark.

        Raises:
          BadInput: if it is not UTF-8, nor UTF-16 with a mark.
        """
        return text_of(self.annotation(path).read_bytes(), str(path))

    def load_json(self, path: Path, compact: Callable[[dict], object] | None = None) -> object:
        """Returns the content of a JSON file, after `compact` has replaced each of its objects.

        Raises:
          ValueError: if it is not JSON, naming the file.
        """
        text = self.read_text(path)
        try:
            return json.loads(text, object_hook=compact)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is {reason_of(error)}.") from error

    @property
    def is_local(self) -> bool:
        """Whether its files are on this machine; ranges of other files need a checksum."""
        return isinstance(self.data_root, Path)

    def media(self, path: Path, **fields: Any) -> Media:
        """Returns a reference to a plain file; a missing file is an error only when it is read."""
        return Media(path=self.relative(path), **fields)


def is_unicode(name: str) -> bool:
    """Returns whether a name can be written in UTF-8; a disk may hold others."""
    return printable_name(name) == name


def printable_name(name: str) -> str:
    """Returns a name with escapes in place of what is not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def check_features(features: Mapping[str, str]) -> Mapping[str, str]:
    """Checks the keys of `features`, and returns it.

    Raises:
      ValueError: if a key is none of `FEATURES`.
    """
    if unknown := sorted(set(features) - set(FEATURES)):
        raise ValueError(
            f"features must be of {', '.join(FEATURES)}, got {with_nearest(unknown, FEATURES)}."
        )
    return features


def parse_features(words: Iterable[str]) -> dict[str, str]:
    """Parses words such as "image=image/encoded" to field -> feature.

    Raises:
      ValueError: if a word has no "=".
    """
    features = {}
    for word in words:
        field, equals, name = word.partition("=")
        if not equals:
            raise ValueError(f"features must look like image=image/encoded, got {word!r}.")
        features[field] = name
    return features


def with_partition(row: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns a row with the columns that folders of its file state, as Hive and Spark have them.

        web/LANGUAGE=de/license=CC0%201.0/part-0.parquet    LANGUAGE: "de", license: "CC0 1.0"

    Args:
      row: the row, without absent values.
      path: its file, below the data root.

    Raises:
      BadInput: if the row or a further folder has another value, naming the column and both.
    """
    stated: dict[str, str] = {}
    for folder in PurePath(path).parent.parts:
        name, _, value = map(unquote, folder.partition("="))
        if value not in ("", _NULL) and stated.setdefault(name, value) != value:
            raise BadInput(f"folders have {name} as {stated[name]!r:.40} and as {value!r:.40}")
    for name in stated.keys() & row.keys():
        if answer_of(row[name], name) != stated[name]:
            raise BadInput(
                f"{name} is {row[name]!r:.40}, its folder's name has {stated[name]!r:.40}"
            )
    return {**stated, **row}
