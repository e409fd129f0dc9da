"""The tabular layouts of web corpora: parquet, Arrow, JSONL, CSV, TSV."""

import array
import contextlib
import dataclasses
import functools
import itertools
import json
import posixpath
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from infra.store.raw_path import local_copy
from pipelines.records.hashing import stable_hash
from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import POINTER, kind_of, reason_of
from pipelines.records.schema import BadInput, Reject, is_of_machine
from pipelines.sources.reading.corpus import Corpus, with_partition
from pipelines.sources.reading.csv_cells import csv_cells, csv_columns, parse_cell
from pipelines.sources.reading.hub import column_names, is_inline, picture_cell, rows_of_batch
from pipelines.sources.reading.item import Media
from pipelines.sources.reading.omissions import is_hidden
from pipelines.sources.reading.unpacking import PACKINGS, DamagedFile, open_lines
from pipelines.sources.reading.values import parse_row, text_of, without_absent
from pipelines.sources.web.tasks import ANNOTATIONS, CAPTIONS, STAGE, WebImage

_BYTES = ("jpg", "png", "image", "image_bytes", "bytes", "images", "jpeg", "webp")
_PATHS = (
    *("image_path", "image", "images", "file_name", "path", "video", "videos"),
    *("jpg", "png", "jpeg", "webp"),
)
"""Fields of a picture's bytes and of its path; a field of either may hold {bytes, path}."""
_URLS = ("url", "URL", "image_url")
PICTURES = (*_BYTES, *_PATHS, *_URLS)
"""Fields of pictures in rows."""
_FIELDS = tuple(dict.fromkeys((*PICTURES, *CAPTIONS)))
"""Fields that a misspelt one may have been meant for."""
_URL = re.compile(r"\w+://\S+")
_MAX_LINE = 16 << 20
"""Longest line read [bytes]."""
_BATCH = 256
"""Rows taken at a time of a table that is stored by columns."""
_ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file whose batches are listed; a stream of batches has none."""
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a stream."""


def read_parquet(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per row; rows with only a URL whose file is missing are rejects."""
    yield from _read_columns(corpus, path, _parquet_batches)


def read_arrow(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per row, as `read_parquet` does."""
    yield from _read_columns(corpus, path, _arrow_batches)


Batches = Callable[[Path, Callable[[Any], list[str]]], Iterator[Any]]
"""(local file, schema -> the columns that are wanted) -> batches of rows."""


def _parquet_batches(local: Path, columns: Callable[[Any], list[str]]) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(local) as file:
        column_names(file.schema_arrow.names)
        yield from file.iter_batches(_BATCH, columns=columns(file.schema_arrow))


def _arrow_batches(local: Path, columns: Callable[[Any], list[str]]) -> Iterator[Any]:
    import pyarrow as pa

    # Feather's files have their batches listed at the end; `datasets` writes them as a stream.
    with pa.OSFile(str(local)) as file:
        is_listed = file.read(len(_ARROW_FILE)) == _ARROW_FILE
        file.seek(0)
        reader: Any = pa.ipc.open_file(file) if is_listed else pa.ipc.open_stream(file)
        column_names(reader.schema.names)
        # A column of structs is read as a whole: only parquet keeps its fields apart.
        wanted = list(dict.fromkeys(name.partition(".")[0] for name in columns(reader.schema)))
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_listed else reader
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.select(wanted).slice(start, _BATCH)
        # A stream that ends between two batches, since its writer died, is no error to Arrow.
        file.seek(max(0, file.size() - len(_ARROW_END)))
        if not is_listed and file.read() != _ARROW_END:
            raise BadInput("the stream lacks the mark of its end; what followed is lost")


def _read_columns(corpus: Corpus, path: Path, batches: Batches) -> Iterator[WebImage | Reject]:
    """Yields a sample per row of a table that is stored by columns; damage adds a reject."""
    import pyarrow as pa

    with corpus.local_annotation(path) as local:
        try:
            rows = itertools.chain.from_iterable(
                rows_of_batch(batch, named=True)
                for batch in batches(local, lambda schema: schema.names)
            )
            for number, row in enumerate(rows):
                yield from _read_row(corpus, path, number, lambda row=row: row)
        except BadInput as error:
            yield _reject_table_row(corpus, path, None, str(error))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if is_of_machine(error):
                raise
            message = " ".join(str(error).split())[:120]
            form = _table_suffix(path.name).removeprefix(".")
            with local.open("rb") as file:
                if file.read(len(POINTER)) == POINTER:
                    message = "it is a pointer of Git LFS; get the files by git lfs pull"
            yield _reject_table_row(corpus, path, None, f"damaged {form}: {message}")


def read_jsonl(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line."""
    yield from _read_lines(corpus, path, parse_row)


def read_tsv(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line; one with a line of column names is read as CSV is."""
    if _has_names(path):
        yield from read_csv(corpus, path)
        return

    def row(line: bytes) -> dict[str, object]:
        cells = text_of(line, "line").rstrip("\r\n").split("\t")
        if len(cells) < 2:
            raise BadInput("line has no tab")
        if any(cells[2:]):
            raise BadInput(f"line has {len(cells)} columns, two are read; name all in a first line")
        # CC3M has the caption first, CC12M the URL; a caption has blanks and may quote a URL.
        first, second = (_is_address(cell.strip()) for cell in cells[:2])
        if first and second:
            raise BadInput("both columns are URLs; one must be the caption")
        caption, place = reversed(cells[:2]) if first else cells[:2]
        place = place.strip()
        field = "image" if is_inline(place) else "url" if first or second else "path"
        return {"caption": caption, field: place}

    yield from _read_lines(corpus, path, row)


def read_csv(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per row; a table without a column of pictures is passed over."""
    rows = csv_cells(corpus.annotation(path))
    num_read = 0
    try:
        if not set(csv_columns(path)) & set(PICTURES):
            corpus.omission_counts(path).add("table without a column of pictures, paths or URLs")
            return
        for number, cells in rows:
            num_read += 1
            yield from _read_row(corpus, path, number, lambda c=cells: _fields_of_cells(c()))
    except DamagedFile as error:
        yield _reject_table_row(corpus, path, None, error.after(num_read))
    except BadInput as error:
        yield _reject_table_row(corpus, path, None, f"table {error}")


def _fields_of_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a row; JSON is parsed where a field may hold a list or an object."""
    may_be_lists = {*ANNOTATIONS, *PICTURES}
    return {
        name: parse_cell(name, cell) if name in may_be_lists else cell
        for name, cell in cells.items()
    }


def _has_names(path: Path) -> bool:
    """Returns whether a TSV begins with names: of pictures, and of texts or of a third column."""
    with contextlib.suppress(ValueError):  # What is damaged is a reject where its lines are read.
        names = set(csv_columns(path))
        is_pair = len(names) == 2 and names.isdisjoint((*CAPTIONS, *ANNOTATIONS))
        return not is_pair and not names.isdisjoint(PICTURES)
    return False


def _is_address(cell: str) -> bool:
    return _URL.fullmatch(cell) is not None or is_inline(cell)


def _read_lines(
    corpus: Corpus, path: Path, parse: Callable[[bytes], object]
) -> Iterator[WebImage | Reject]:
    """Yields a sample per line that is not empty; a damaged packed file adds a reject."""
    lines = _number_lines(corpus.annotation(path))
    for num_read in itertools.count():
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except DamagedFile as error:
            yield _reject_table_row(corpus, path, None, error.after(num_read))
            return
        yield from _read_row(corpus, path, number, lambda line=line: parse(_check_length(line)))


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


def _read_row(
    corpus: Corpus, path: Path, number: int, row: Callable[[], object]
) -> Iterator[WebImage | Reject]:
    """Yields the sample of one row, or a reject with the error; nothing for a failed download."""
    identity = _row_id(corpus, path, number)
    try:
        values = row()
        if not isinstance(values, Mapping):
            raise BadInput(f"row is {kind_of(values)}, not an object")
        fields = with_partition(without_absent(values), corpus.relative(path))
        status = fields.get("status", "success")
        # Tables of others have a status of their own, and not these words or columns.
        is_failed = {"key", "error_message"} <= values.keys() or "failed_to_" in str(status)
        if status != "success" and is_failed:
            corpus.omission_counts(path).add("rows whose status is not success", identity)
            return
        media = _media_of_table_row(corpus, path, number, fields)
        if media is None:
            raise BadInput(f"no image among the fields {with_nearest(values, _FIELDS)}")
        yield WebImage.from_fields(identity, media, fields)
    except (ValueError, RecursionError) as error:  # BadInput, JSON and UTF-8 errors.
        yield _reject_table_row(corpus, path, number, reason_of(error))


def _reject_table_row(corpus: Corpus, path: Path, number: int | None, reason: str) -> Reject:
    return Reject(
        id=_row_id(corpus, path, number), stage=STAGE, reason=reason, source=corpus.relative(path)
    )


def _row_id(corpus: Corpus, path: Path, number: int | None) -> str:
    base = f"web/{path.relative_to(corpus.folder).as_posix()}"
    return base if number is None else f"{base}/{number:09d}"


def _media_of_table_row(corpus: Corpus, path: Path, number: int, row: Mapping) -> Media | None:
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
    downloads = {n: "key" for n in _names_of_key(path, row) if corpus.has(path.parent / n)}
    names = _picture_paths_of_row(row) | downloads
    # Several fields may name one picture, from here and from elsewhere: the file that is here
    # counts. Which of several files is the picture is not guessed.
    places = {name: field for name, field in names.items() if "://" not in name}
    here = [n for n in places if corpus.has(path.parent / n)] if len(places) > 1 else []
    if len({posixpath.normpath(name) for name in here}) > 1:
        fields = ", ".join(places[name] for name in here)
        raise BadInput(f"different files in the fields {fields}, one is expected")
    for name in here or places:
        return corpus.media(path.parent / name, video=places[name].startswith("video"))
    for name in names:
        return _find_download(corpus, path, name)
    for field in filter(row.__contains__, _URLS):
        return _find_download(corpus, path, text_of(row[field], field))
    return None


def _picture_paths_of_row(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns the paths and URLs in a row's fields for paths, each with the first such field.

    Raises:
      BadInput: if a field holds neither a picture nor a path.
    """
    names: dict[str, str] = {}
    for field in filter(row.__contains__, _PATHS):
        if name := picture_cell(row[field], field)[1]:
            names.setdefault(name, field)
    return names


def _find_download(corpus: Corpus, path: Path, url: str) -> Media:
    """Returns the local file of a URL, by its last part: beside the table or in a folder there.

    Raises:
      BadInput: if there is none, or several URLs end alike: the file is of one of them at most.
    """
    for file in _possible_downloads(path, url):
        if not corpus.has(file):
            continue
        # A folder named after the table has its pictures alone; the others have those of all tables
        # beside it.
        name = file.name
        if file.parent == _folder_of_table(path):
            shared = corpus.once(f"URLs of {path}", lambda: _shared_names(_table_versions([path])))
        else:
            shared = corpus.once(
                f"URLs in {path.parent}",
                lambda: _shared_names(_table_versions(_tables_beside(path))),
            )
        if stable_hash(name) in shared:
            raise BadInput(
                f"several URLs end in {name!r:.60}, and {corpus.relative(file)} is of one "
                f"of them at most; download with names of their own, with img2dataset for instance"
            )
        return corpus.media(file)
    raise BadInput("only a URL; download the images first, with img2dataset for instance")


def _possible_downloads(path: Path, url: str) -> list[Path]:
    """Returns the files, of which there may be none, that can be the download of a table's URL."""
    name = _name_in_url(url)
    folders = (path.parent, _folder_of_table(path), path.parent / "images")
    return [folder / name for folder in folders] if name else []


def _names_of_key(path: Path, row: Mapping) -> list[str]:
    """Returns the possible names of a row's picture in the format `files` of img2dataset."""
    forms = ("jpg", "png", "webp") if isinstance(row.get("key"), str) else ()
    return [f"{_table_stem(path.name)}/{row['key']}.{form}" for form in forms]


def _folder_of_table(path: Path) -> Path:
    return path.parent / _table_stem(path.name)


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


def _table_versions(tables: Iterable[Path]) -> tuple[tuple[Path, Hashable], ...]:
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
    """Returns the hashes of the names in which different URLs of `_table_versions` of tables end.

    A name and its URL take 16 bytes of memory.
    """
    import numpy as np

    hashes = array.array("Q")
    for table, _ in tables:
        form = table_form(table.name)
        for url in itertools.chain.from_iterable(
            map(_url_of_row, form.places(table) if form else ())
        ):
            with contextlib.suppress(BadInput):
                hashes.extend((stable_hash(_name_in_url(url)), stable_hash(url.strip())))
    pairs = np.unique(np.frombuffer(hashes, np.uint64).reshape(-1, 2), axis=0)
    names, counts = np.unique(pairs[:, 0], return_counts=True)
    return frozenset(names[counts > 1].tolist())


def media_names(corpus: Corpus, path: Path) -> Iterator[str]:
    """Yields the files below the data root in which `_media_of_table_row` looks for pictures.

    A file counts as named by a row that is a reject for something else, too.
    """
    form = table_form(path.name)
    for row in form.places(path) if form else ():
        with contextlib.suppress(BadInput):
            yield from (corpus.relative(path.parent / name) for name in _names_of_key(path, row))
        for field in filter(row.__contains__, (*_PATHS, *_URLS)):
            value = row[field]
            # A row that lists several is a reject, and names them all.
            is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
            for each in value if is_list else [value]:
                with contextlib.suppress(BadInput):
                    name = text_of(each, field) if field in _URLS else picture_cell(each, field)[1]
                    is_url = field in _URLS or "://" in name
                    for place in (
                        _possible_downloads(path, name) if is_url else [path.parent / name]
                    ):
                        yield corpus.relative(place)


def _places_of_columns(path: Path, batches: Batches) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa

    with local_copy(path) as local:
        try:
            for batch in batches(local, _place_columns):
                yield from rows_of_batch(batch)
        # A table that cannot be read is a reject where its rows are; a failing disk is none.
        except (BadInput, pa.ArrowException, OSError) as error:
            if is_of_machine(error):
                raise


def _place_columns(schema: Any) -> list[str]:
    """Returns the columns that may hold paths and URLs, without the pictures beside them."""
    import pyarrow as pa

    columns = [name for name in (*_URLS, "key") if name in schema.names]
    for name in dict.fromkeys(_PATHS):
        kind = schema.field(name).type if name in schema.names else None
        if kind is not None and pa.types.is_struct(kind):
            columns += [f"{name}.path"] * (kind.get_field_index("path") >= 0)
        elif kind is not None and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            columns.append(name)
    return columns


def _places_of_jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    for _, line in _whole_lines(path):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), Mapping):
                yield row


def _places_of_csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with contextlib.suppress(ValueError):
        for _, cells in csv_cells(path):
            with contextlib.suppress(BadInput):
                yield _fields_of_cells(cells())


def _places_of_tsv(path: Path) -> Iterator[Mapping[str, Any]]:
    if _has_names(path):
        yield from _places_of_csv(path)
        return
    # Any cell may be the caption; one that quotes a URL is no place.
    for _, line in _whole_lines(path):
        text = text_of(line.decode("utf-8", "replace"), "line")
        for cell in map(str.strip, text.rstrip("\r\n").split("\t")):
            if _URL.fullmatch(cell) or "://" not in cell:
                yield {"path": cell}


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # A damaged file is a reject where its rows are read.
    with contextlib.suppress(ValueError):
        yield from _number_lines(path)


def _url_of_row(row: Mapping[str, Any]) -> list[str]:
    """Returns the URL under which `_media_of_table_row` looks for a row's picture."""
    with contextlib.suppress(BadInput):
        if names := _picture_paths_of_row(row):
            return [] if any("://" not in name for name in names) else [next(iter(names))]
    return [url for url in map(row.get, _URLS) if isinstance(url, str)][:1]


@dataclasses.dataclass(frozen=True)
class TableForm:
    """A kind of table.

    Attributes:
      read: yields the samples and the rejects of its rows.
      places: yields the fields of its rows that may name a picture; what is damaged is passed over.
    """

    read: Callable[[Corpus, Path], Iterator[WebImage | Reject]]
    places: Callable[[Path], Iterator[Mapping[str, Any]]]


_LINES = {
    ".jsonl": TableForm(read_jsonl, _places_of_jsonl),
    ".ndjson": TableForm(read_jsonl, _places_of_jsonl),
    ".tsv": TableForm(read_tsv, _places_of_tsv),
    ".csv": TableForm(read_csv, _places_of_csv),
}
_ARROW = TableForm(read_arrow, functools.partial(_places_of_columns, batches=_arrow_batches))
_FORMS = {
    ".parquet": TableForm(
        read_parquet, functools.partial(_places_of_columns, batches=_parquet_batches)
    ),
    ".arrow": _ARROW,
    ".feather": _ARROW,
    **{f"{suffix}{packing}": form for suffix, form in _LINES.items() for packing in PACKINGS},
}


def table_form(name: str) -> TableForm | None:
    """Returns how the table of a name is read; None if it is no table."""
    return _FORMS.get(_table_suffix(name))


def _table_suffix(name: str) -> str:
    file = PurePosixPath(name.lower())
    both = "".join(file.suffixes[-2:])
    return both if both in _FORMS else file.suffix


def _table_stem(name: str) -> str:
    """Returns a table's name without its extension; x.jsonl.gz is x."""
    return name[: len(name) - len(_table_suffix(name))]
