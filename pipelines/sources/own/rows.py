"""One's own examples, a JSON line each, as big_vision's JSONL source reads them.

    {train,val,test}.jsonl   image    path of a picture, or a list of two; or
                             video    path of a clip
                             prefix   what the model reads, `<loc0000>` tokens and all
                             suffix   what it writes, or a list that training draws from
                             and, if need be: id, task (the part it goes to), lang, answers, meta

Paths are relative to the file. Without `answers`, the suffixes are the accepted ones.

Source: big_vision `datasets/jsonl.py`.
"""

import re
from collections.abc import Iterator, Mapping

from pipelines.records.schema import BadInput, Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import find, json_lines, read_rows
from pipelines.sources.spec import SourceSpec

NAME = "jsonl"
SPLITS = ("train", "val", "test")
_KEYS = {"image", "video", "prefix", "suffix", "id", "task", "lang", "answers", "meta"}
_MAX_IMAGES = 2
_TASK = re.compile(r"[A-Za-z0-9_-]{1,60}")


def files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the file of a split, which may be packed."""
    return ((f"{split}.jsonl", f"{split}.jsonl.bz2"),)


def read(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per line."""
    file = find(corpus, *files(split)[0])

    def make(numbered) -> Item:
        number, line = numbered
        return _item(corpus, split, str(number), line())

    yield from read_rows(corpus, file, f"{NAME}/{split}", enumerate(json_lines(file)), make)


def _item(corpus: Corpus, split: str, number: str, row: Mapping) -> Item:
    if unknown := set(row) - _KEYS:
        raise BadInput(f"no such key: {min(unknown)}; accepted: {', '.join(sorted(_KEYS))}")
    if ("image" in row) == ("video" in row):
        raise BadInput("either image or video must be given")
    paths = _texts(row, "video" if "video" in row else "image")
    if len(paths) > (1 if "video" in row else _MAX_IMAGES):
        raise BadInput(f"too many pictures: {len(paths)}; a record has one, a pair or a clip")
    suffixes = _texts(row, "suffix")
    task = str(row.get("task") or NAME)
    if not _TASK.fullmatch(task):  # It becomes part of file names.
        raise BadInput(f"task must be letters, digits, - and _, got {task!r}"[:120])
    return Item(
        id=f"{NAME}/{split}/{paths[0]}#{row.get('id', number)}",
        part=task,
        media=tuple(corpus.media(corpus.folder / path, video="video" in row) for path in paths),
        prefix=_texts(row, "prefix")[0],
        suffixes=suffixes,
        task=task,
        lang=str(row.get("lang") or "en"),
        answers=_texts(row, "answers") if "answers" in row else suffixes,
        meta=dict(row.get("meta") or {}),
    )


def _texts(row: Mapping, key: str) -> tuple[str, ...]:
    """Returns the text, or the texts, under `key`."""
    value = row[key]
    values = value if isinstance(value, list) else [value]
    if not values or any(not isinstance(text, str) for text in values):
        raise BadInput(f"{key} must be a text or a list of texts, got {value!r}"[:120])
    return tuple(values)


SOURCES = (
    SourceSpec(
        name=NAME,
        folder=NAME,
        splits=SPLITS,
        read=read,
        antialias=True,
        antialias_eval=True,
        files=files,
        anywhere=True,
    ),
)
