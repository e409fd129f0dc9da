"""The tabular layouts of web corpora: parquet, JSONL, TSV."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelines.records.schema import BadInput, Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import picture_cell
from pipelines.sources.item import Media
from pipelines.sources.unpacking import open_unpacked
from pipelines.sources.values import text_of, without_absent
from pipelines.sources.web.tasks import STAGE, WebImage

_BYTES = ("jpg", "png", "image", "image_bytes", "bytes", "images", "jpeg", "webp")
_PATHS = (
    *("image_path", "image", "images", "file_name", "path", "video", "videos"),
    *("jpg", "png", "jpeg", "webp"),
)
"""Fields of a picture's bytes and of its path; a field of either may hold {bytes, path}."""
_URLS = ("url", "URL", "image_url")
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
                for batch in file.iter_batches(batch_size=256):
                    for row in batch.to_pylist():
                        yield _sample_or_reject(corpus, path, number, lambda row=row: row)
                        number += 1
        except (pa.ArrowException, OSError) as error:
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
        key = "url" if "://" in cells[1] else "path"
        return {"caption": cells[0], key: cells[1]}

    yield from _read_lines(corpus, path, row)


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
    with open_unpacked(path) as file:
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
            raise BadInput(f"row is a {type(values).__name__}, not an object")
        return _sample_of_row(corpus, path, number, values)
    except (ValueError, RecursionError) as error:  # BadInput, JSON and UTF-8 errors.
        return _reject_row(corpus, path, number, str(error))


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
        raise BadInput(f"no image among the fields {', '.join(map(str, values))}")
    return WebImage.from_fields(_row_id(corpus, path, number), media, row)


def _media_of_row(corpus: Corpus, path: Path, number: int, row: Mapping) -> Media | None:
    """Returns a row's pixels; None if no field has any."""
    # Pixels in the table itself come first, then files, then addresses whose file was downloaded.
    # What cannot be read is an error only if nothing before it can.
    for field in filter(row.__contains__, _BYTES):
        with contextlib.suppress(BadInput):
            if data := picture_cell(row[field], field)[0]:
                place: dict[str, Any] = corpus.unpacked.append(data)
                member = f"{number:09d}.{field}"
                return Media(path=corpus.relative(path), member=member, **place)
    for field in filter(row.__contains__, _PATHS):
        if name := picture_cell(row[field], field)[1]:
            if "://" in name:
                return _find_download(corpus, path, name)
            return corpus.media(path.parent / name, video=field.startswith("video"))
    for field in filter(row.__contains__, _URLS):
        return _find_download(corpus, path, text_of(row[field], field))
    return None


def _find_download(corpus: Corpus, path: Path, url: str) -> Media:
    """Returns the local file of a URL, by its last part: beside the table or in a folder there."""
    name = urlsplit(url).path.rpartition("/")[2]
    for folder in (path.parent, path.with_suffix(""), path.parent / "images"):
        if name and corpus.has(folder / name):
            return corpus.media(folder / name)
    raise BadInput("only a URL; download the images first, with img2dataset for instance")
