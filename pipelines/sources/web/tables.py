"""The tabular layouts of web corpora: parquet, JSONL, TSV."""

import array
import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from infra.store.raw_path import local_copy
from pipelines.records.hashing import stable_hash
from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import BadInput, Reject, is_of_machine
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import column_names, is_inline, picture_cell, rows_of_batch
from pipelines.sources.item import Media
from pipelines.sources.omissions import is_hidden
from pipelines.sources.unpacking import PACKINGS, open_lines
from pipelines.sources.values import text_of, without_absent
from pipelines.sources.web.tasks import CAPTIONS, STAGE, WebImage

_BYTES = ("jpg", "png", "image", "image_bytes", "bytes", "images", "jpeg", "webp")
_PATHS = (
    *("image_path", "image", "images", "file_name", "path", "video", "videos"),
    *("jpg", "png", "jpeg", "webp"),
)
"""Fields of a picture's bytes and of its path; a field of either may hold {bytes, path}."""
_URLS = ("url", "URL", "image_url")
_FIELDS = tuple(dict.fromkeys((*_BYTES, *_PATHS, *_URLS, *CAPTIONS)))
"""Fields that a misspelt one may have been meant for."""
_URL = re.compile(r"\w+://\S+")
_MAX_LINE = 16 << 20
"""Longest line read [bytes]."""


def read_parquet(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per row; rows with only a URL whose file is missing are rejects."""
    import pyarrow as pa
    from pyarrow import parquet

    with corpus.local_annotation(path) as local:
        try:
            with parquet.ParquetFile(local) as file:
                number = 0
                column_names(file.schema_arrow.names)
                for batch in file.iter_batches(batch_size=256):
                    for row in rows_of_batch(batch):
                        yield _sample_or_reject(corpus, path, number, lambda row=row: row)
                        number += 1
        except BadInput as error:
            yield _reject_row(corpus, path, None, str(error))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if is_of_machine(error):
                raise
            message = " ".join(str(error).split())[:120]
            yield _reject_row(corpus, path, None, f"damaged parquet: {message}")


def read_jsonl(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line."""
    yield from _read_lines(corpus, path, json.loads)


def read_tsv(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line."""

    def row(line: bytes) -> dict[str, object]:
        cells = text_of(line, "line").rstrip("\r\n").split("\t")
        if len(cells) < 2:
            raise BadInput("line has no tab")
        # CC3M has the caption first, CC12M the URL; a caption has blanks and may quote a URL.
        first, second = (_is_address(cell.strip()) for cell in cells[:2])
        if first and second:
            raise BadInput("both columns are URLs; one must be the caption")
        caption, place = reversed(cells[:2]) if first else cells[:2]
        place = place.strip()
        field = "image" if is_inline(place) else "url" if first or second else "path"
        return {"caption": caption, field: place}

    yield from _read_lines(corpus, path, row)


def _is_address(cell: str) -> bool:
    return _URL.fullmatch(cell) is not None or is_inline(cell)


def _read_lines(
    corpus: Corpus, path: Path, parse: Callable[[bytes], object]
) -> Iterator[WebImage | Reject]:
    """Yields a sample per line that is not empty; a damaged packed file adds a reject."""
    lines = _number_lines(corpus.annotation(path))
    while True:
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except ValueError as error:
            yield _reject_row(corpus, path, None, str(error))
            return
        yield _sample_or_reject(corpus, path, number, lambda line=line: parse(_check_length(line)))


def _number_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number and content of every line that is not empty; too long ones are cut off."""
    with open_lines(path) as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            tail = line
            # The rest of a line that is too long is skipped, or it would be taken for the next
            # line.
            while len(tail) > _MAX_LINE and not tail.endswith(b"\n"):
                tail = file.readline(_MAX_LINE + 1)
            if line.strip():
                yield number, line
            number += 1


def _check_length(line: bytes) -> bytes:
    if len(line) > _MAX_LINE:
        raise BadInput(f"line has more than {_MAX_LINE} bytes")
    return line


def _sample_or_reject(
    corpus: Corpus, path: Path, number: int, row: Callable[[], object]
) -> WebImage | Reject:
    """Returns the sample of one row, or a reject with the error."""
    try:
        values = row()
        if not isinstance(values, Mapping):
            raise BadInput(f"row is {kind_of(values)}, not an object")
        return _sample_of_row(corpus, path, number, values)
    except (ValueError, RecursionError) as error:  # BadInput, JSON and UTF-8 errors.
        return _reject_row(corpus, path, number, reason_of(error))


def _reject_row(corpus: Corpus, path: Path, number: int | None, reason: str) -> Reject:
    return Reject(
        id=_row_id(corpus, path, number), stage=STAGE, reason=reason, source=corpus.relative(path)
    )


def _row_id(corpus: Corpus, path: Path, number: int | None) -> str:
    base = f"web/{path.relative_to(corpus.folder).as_posix()}"
    return base if number is None else f"{base}/{number:09d}"


def _sample_of_row(corpus: Corpus, path: Path, number: int, values: Mapping) -> WebImage:
    row = without_absent(values)
    media = _media_of_row(corpus, path, number, row)
    if media is None:
        raise BadInput(f"no image among the fields {with_nearest(values, _FIELDS)}")
    return WebImage.from_fields(_row_id(corpus, path, number), media, row)


def _media_of_row(corpus: Corpus, path: Path, number: int, row: Mapping) -> Media | None:
    """Returns a row's pixels; None if no field has any."""
    # Pixels in the table itself come first, then files, then addresses whose file was downloaded.
    # What cannot be read is an error only if nothing before it can.
    pictures: list[tuple[str, bytes]] = []
    for field in filter(row.__contains__, _BYTES):
        with contextlib.suppress(BadInput):
            if data := picture_cell(row[field], field)[0]:
                pictures.append((field, data))
    if any(data != pictures[0][1] for _, data in pictures):
        fields = ", ".join(field for field, _ in pictures)
        raise BadInput(f"different pictures in the fields {fields}, one is expected")
    for field, data in pictures[:1]:
        place: dict[str, Any] = corpus.unpacked.append(data)
        return Media(path=corpus.relative(path), member=f"{number:09d}.{field}", **place)
    for field in filter(row.__contains__, _PATHS):
        if name := picture_cell(row[field], field)[1]:
            if "://" in name:
                return _find_download(corpus, path, name)
            return corpus.media(path.parent / name, video=field.startswith("video"))
    for field in filter(row.__contains__, _URLS):
        return _find_download(corpus, path, text_of(row[field], field))
    return None


def _find_download(corpus: Corpus, path: Path, url: str) -> Media:
    """Returns the local file of a URL, by its last part: beside the table or in a folder there.

    Raises:
      BadInput: if there is none, or several URLs end alike: the file is of one of them at most.
    """
    name, folder_of_table = _name_in_url(url), path.parent / _stem(path.name)
    for folder in (path.parent, folder_of_table, path.parent / "images"):
        if not name or not corpus.has(folder / name):
            continue
        # A folder named after the table has its pictures alone; the others have those of all tables
        # beside it.
        if folder == folder_of_table:
            shared = corpus.once(f"URLs of {path}", lambda: _shared_names(_versions([path])))
        else:
            shared = corpus.once(
                f"URLs in {path.parent}", lambda: _shared_names(_versions(_tables_beside(path)))
            )
        if stable_hash(name) in shared:
            raise BadInput(
                f"several URLs end in {name!r:.60}, and {corpus.relative(folder / name)} is of one "
                f"of them at most; download with names of their own, with img2dataset for instance"
            )
        return corpus.media(folder / name)
    raise BadInput("only a URL; download the images first, with img2dataset for instance")


def _tables_beside(path: Path) -> list[Path]:
    """Returns the tables in a table's folder, itself among them."""
    return [
        p
        for p in path.parent.iterdir()
        if table_form(p.name) and not is_hidden(p.name) and p.is_file()
    ]


def _name_in_url(url: str) -> str:
    """Returns the last part of a URL, which downloaders take for the file's name."""
    try:
        return urlsplit(url.strip()).path.rpartition("/")[2]
    except ValueError as error:
        raise BadInput(f"{url!r:.80} is no URL") from error


def _versions(tables: Iterable[Path]) -> tuple[tuple[Path, Hashable], ...]:
    """Returns tables, in order, each with what changes whenever its content does."""

    def version(table: Any) -> Hashable:
        if not isinstance(table, Path):
            return table.state()
        stat = table.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    return tuple((table, version(table)) for table in sorted(tables))


# A worker lists many units of one corpus, each with a `Corpus` of its own.
@functools.lru_cache(maxsize=16)
def _shared_names(tables: tuple[tuple[Path, Hashable], ...]) -> frozenset[int]:
    """Returns the hashes of the names in which different URLs of `_versions` of tables end.

    A name and its URL take 16 bytes of memory.
    """
    import numpy as np

    hashes = array.array("Q")
    for table, _ in tables:
        form = table_form(table.name)
        for url in form.urls(table) if form else ():
            with contextlib.suppress(BadInput):
                hashes.extend((stable_hash(_name_in_url(url)), stable_hash(url.strip())))
    pairs = np.unique(np.frombuffer(hashes, np.uint64).reshape(-1, 2), axis=0)
    names, counts = np.unique(pairs[:, 0], return_counts=True)
    return frozenset(names[counts > 1].tolist())


def _urls_of_parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    from pyarrow import parquet

    with local_copy(path) as local:
        try:
            with parquet.ParquetFile(local) as file:
                column_names(file.schema_arrow.names)
                for batch in file.iter_batches(columns=_url_columns(file.schema_arrow)):
                    for row in rows_of_batch(batch):
                        yield from _url_of_row(row)
        # A table that cannot be read is a reject where its rows are; a failing disk is none.
        except (BadInput, pa.ArrowException, OSError) as error:
            if is_of_machine(error):
                raise


def _url_columns(schema: Any) -> list[str]:
    """Returns the columns that may hold URLs, without the pictures beside them."""
    import pyarrow as pa

    columns = [name for name in _URLS if name in schema.names]
    for name in dict.fromkeys(_PATHS):
        kind = schema.field(name).type if name in schema.names else None
        if kind is not None and pa.types.is_struct(kind):
            columns += [f"{name}.path"] * (kind.get_field_index("path") >= 0)
        elif kind is not None and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            columns.append(name)
    return columns


def _urls_of_jsonl(path: Path) -> Iterator[str]:
    for _, line in _whole_lines(path):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _url_of_row(json.loads(line))


def _urls_of_tsv(path: Path) -> Iterator[str]:
    for _, line in _whole_lines(path):
        text = text_of(line.decode("utf-8", "replace"), "line")
        cells = text.rstrip("\r\n").split("\t")[:2]
        yield from (cell for cell in cells if _URL.fullmatch(cell.strip()))


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # A damaged file is a reject where its rows are read.
    with contextlib.suppress(ValueError):
        yield from _number_lines(path)


def _url_of_row(row: object) -> list[str]:
    """Returns the URL under which `_media_of_row` looks for a row's picture."""
    if not isinstance(row, Mapping):
        return []
    for field in filter(row.__contains__, _PATHS):
        with contextlib.suppress(BadInput):
            if name := picture_cell(row[field], field)[1]:
                return [name] if "://" in name else []
    return [url for url in map(row.get, _URLS) if isinstance(url, str)][:1]


@dataclasses.dataclass(frozen=True)
class TableForm:
    """A kind of table.

    Attributes:
      read: yields the samples and the rejects of its rows.
      urls: yields the URLs of its rows.
    """

    read: Callable[[Corpus, Path], Iterator[WebImage | Reject]]
    urls: Callable[[Path], Iterator[str]]


_LINES = {
    ".jsonl": TableForm(read_jsonl, _urls_of_jsonl),
    ".ndjson": TableForm(read_jsonl, _urls_of_jsonl),
    ".tsv": TableForm(read_tsv, _urls_of_tsv),
}
_FORMS = {
    ".parquet": TableForm(read_parquet, _urls_of_parquet),
    **{f"{suffix}{packing}": form for suffix, form in _LINES.items() for packing in PACKINGS},
}


def table_form(name: str) -> TableForm | None:
    """Returns how the table of a name is read; None if it is no table."""
    return _FORMS.get(_table_suffix(name))


def _table_suffix(name: str) -> str:
    file = PurePosixPath(name.lower())
    both = "".join(file.suffixes[-2:])
    return both if both in _FORMS else file.suffix


def _stem(name: str) -> str:
    """Returns a table's name without its extension; x.jsonl.gz is x."""
    return name[: len(name) - len(_table_suffix(name))]
