"""The tabular layouts of web corpora: parquet, JSONL, TSV."""

import array
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from infra.store.raw_path import local_copy
from pipelines.records.hashing import stable_hash
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import BadInput, Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import column_names, rows_of_batch
from pipelines.sources.item import Media
from pipelines.sources.web.tasks import STAGE, WebImage

_PATHS = ("image_path", "image", "images", "file_name", "path", "video", "videos")
_BYTES = ("jpg", "png", "image", "image_bytes", "bytes")
_TEXTS = ("caption", "text", "TEXT", "txt")
_URLS = ("url", "URL", "image_url")
_URL = re.compile(r"\w+://\S+")
_MAX_LINE = 16 << 20
"""Longest line read [bytes]."""

_DATA_JUICER_TOKEN = re.compile(r"<\|?__dj__\w+\|?>")
"""Placeholders that data-juicer puts in captions (`<__dj__image>`)."""


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
        except (pa.ArrowException, OSError) as error:
            message = " ".join(str(error).split())[:120]
            yield _reject_row(corpus, path, None, f"damaged parquet: {message}")


def read_jsonl(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line."""
    for number, line in _number_lines(corpus, path):
        yield _sample_or_reject(
            corpus, path, number, lambda line=line: json.loads(_check_length(line))
        )


def read_tsv(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields a sample per line."""

    def row(line: bytes) -> dict[str, object]:
        cells = _check_length(line).decode("utf-8").rstrip("\r\n").split("\t")
        if len(cells) < 2:
            raise BadInput("line has no tab")
        # CC3M has the caption first, CC12M the URL; a caption has blanks and may quote a URL.
        first, second = ((_URL.fullmatch(cell.strip()) is not None) for cell in cells[:2])
        if first and second:
            raise BadInput("both columns are URLs; one must be the caption")
        caption, place = reversed(cells[:2]) if first else cells[:2]
        return {"caption": caption, "url" if first or second else "path": place.strip()}

    for number, line in _number_lines(corpus, path):
        yield _sample_or_reject(corpus, path, number, lambda line=line: row(line))


def _number_lines(corpus: Corpus, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number and content of every line that is not empty; too long ones are cut off."""
    with corpus.annotation(path).open("rb") as file:
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


def _sample_of_row(corpus: Corpus, path: Path, number: int, row: Mapping) -> WebImage:
    # The first field that holds pixels or names them; `used` is its name, so that it is not taken
    # for metadata, too.
    media, used = _media_of_row(corpus, path, number, row)
    if unread := [k for k in _TEXTS if isinstance(row.get(k), bytes)]:
        raise BadInput(f"{unread[0]} is not UTF-8")
    text = next((row[k] for k in _TEXTS if isinstance(row.get(k), str)), "")
    metadata = {k: v for k, v in row.items() if k not in (*_TEXTS, used)}
    return WebImage(
        id=_row_id(corpus, path, number),
        media=media,
        text=_DATA_JUICER_TOKEN.sub(" ", text),
        metadata=metadata,
    )


def _media_of_row(corpus: Corpus, path: Path, number: int, row: Mapping) -> tuple[Media, str]:
    """Returns a row's pixels and the name of the field that gave them."""
    # Pixels in the table itself come first, then files, then addresses whose file was downloaded.
    for field in _BYTES:
        value = row.get(field)
        if isinstance(value, Mapping):  # Hugging Face: {"bytes", "path"}.
            value = value.get("bytes")
        if isinstance(value, bytes):
            place = corpus.unpacked.append(value)
            member = f"{number:09d}.{field}"
            return Media(path=corpus.relative(path), member=member, **place), field  # type: ignore[arg-type]
    for field in _PATHS:
        value = row.get(field)
        if isinstance(value, list) and len(value) != 1:
            raise BadInput(f"{field} lists {len(value)} files, one is expected")
        value = value[0] if isinstance(value, list) else value
        if isinstance(value, str):
            return corpus.media(path.parent / value, video=field.startswith("video")), field
    for field in _URLS:
        if isinstance(row.get(field), str):
            return _find_download(corpus, path, row[field]), field
    raise BadInput(f"no image among the fields {', '.join(map(str, row))}")


def _find_download(corpus: Corpus, path: Path, url: str) -> Media:
    """Returns the local file of a URL, by its last part: beside the table or in a folder there.

    Raises:
      BadInput: if there is none, or several URLs end alike: the file is of one of them at most.
    """
    name, folder_of_table = _name_in_url(url), path.with_suffix("")
    for folder in (path.parent, folder_of_table, path.parent / "images"):
        if not name or not corpus.has(folder / name):
            continue
        # A folder named after the table has its pictures alone; the others have those of all tables
        # beside it.
        if folder == folder_of_table:
            shared = corpus.once(f"URLs of {path}", lambda: _shared_names([path]))
        else:
            shared = corpus.once(
                f"URLs in {path.parent}", lambda: _shared_names(_tables_beside(corpus, path))
            )
        if stable_hash(name) in shared:
            raise BadInput(
                f"several URLs end in {name!r:.60}, and {corpus.relative(folder / name)} is of one "
                f"of them at most; download with names of their own, with img2dataset for instance"
            )
        return corpus.media(folder / name)
    raise BadInput("only a URL; download the images first, with img2dataset for instance")


def _tables_beside(corpus: Corpus, path: Path) -> list[Path]:
    """Returns the tables in a table's folder, itself among them."""
    return [p for p in corpus.files() if p.parent == path.parent and p.suffix in _URLS_OF]


def _name_in_url(url: str) -> str:
    """Returns the last part of a URL, which downloaders take for the file's name."""
    try:
        return urlsplit(url.strip()).path.rpartition("/")[2]
    except ValueError as error:
        raise BadInput(f"{url!r:.80} is no URL") from error


def _shared_names(tables: Iterable[Path]) -> frozenset[int]:
    """Returns the hashes of the names in which different URLs of some tables end.

    A name and its URL take 16 bytes of memory.
    """
    import numpy as np

    hashes = array.array("Q")
    for table in tables:
        for url in _URLS_OF[table.suffix](table):
            with contextlib.suppress(BadInput):
                hashes.extend((stable_hash(_name_in_url(url)), stable_hash(url.strip())))
    pairs = np.unique(np.frombuffer(hashes, np.uint64).reshape(-1, 2), axis=0)
    names, counts = np.unique(pairs[:, 0], return_counts=True)
    return frozenset(names[counts > 1].tolist())


def _urls_of_parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    from pyarrow import parquet

    # A damaged table is a reject where its rows are read.
    with (
        contextlib.suppress(pa.ArrowException, OSError),
        local_copy(path) as local,
        parquet.ParquetFile(local) as file,
    ):
        columns = [name for name in _URLS if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            for row in rows_of_batch(batch):
                yield from _url_of_row(row)


def _urls_of_jsonl(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                yield from _url_of_row(json.loads(line))


def _urls_of_tsv(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            cells = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")[:2]
            yield from (cell for cell in cells if _URL.fullmatch(cell.strip()))


def _url_of_row(row: object) -> list[str]:
    urls = [row.get(field) for field in _URLS] if isinstance(row, Mapping) else []
    return [url for url in urls if isinstance(url, str)][:1]


_URLS_OF = {".parquet": _urls_of_parquet, ".jsonl": _urls_of_jsonl, ".tsv": _urls_of_tsv}
"""Extension of a table -> function that yields the URLs of its rows."""
