"""Readers that the user wrote: functions that yield rows as in a JSONL file.

    def read_mine(folder: Path, split: str) -> Iterator[dict]:
        for picture in sorted((folder / split).glob("*.png")):
            yield {"image": f"{split}/{picture.name}", "question": …, "answers": [picture.stem]}

The function is called more than once, and must yield the same rows each time. These files count as
its inputs, by content: every file in its folder that is not a picture or clip, whether it opens it
or not, and every picture or clip that a row names.
"""

import functools
import traceback
from collections.abc import Iterator
from typing import Any

from infra.references import add_sources, load_reference
from pipelines.records.schema import Reject
from pipelines.sources.own.rows import Numbered, items_of
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.omissions import is_media
from pipelines.sources.reading.spec import SourceSpec


def read_function(corpus: Corpus, split: str, *, source: OwnSource) -> Iterator[Item | Reject]:
    """Yields a would-be record per row of a function.

    Raises:
      ValueError: if the function fails, with its error in one line.
    """
    add_sources(dict(source.code))
    for path in corpus.files():
        if not is_media(path.name):
            corpus.annotation(path)
    function = load_reference(source.reader)
    rows = functools.partial(_call_reader, function, source.reader, corpus, split)
    yield from items_of(corpus, split, rows, source=source, file=corpus.folder, unit="row")


def _call_reader(function: Any, reference: str, corpus: Corpus, split: str) -> Numbered:
    number = 0
    try:
        for number, row in enumerate(function(corpus.folder, split), start=1):
            yield number, lambda row=row: row
    except Exception as error:
        # The innermost line: where the user's function, or something that it calls, failed.
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        raise ValueError(
            f"{reference} failed on split {split!r} after {number} rows: {type(error).__name__}: "
            f"{message} ({last.filename} line {last.lineno})."
        ) from error


def function_source(source: OwnSource) -> SourceSpec:
    """Returns the source whose rows a function yields; the function decides which splits exist."""
    return SourceSpec(
        name=source.name,
        folder=source.name,
        splits=(),
        read=functools.partial(read_function, source=source),
        antialias=True,
        antialias_eval=True,
        anywhere=True,
    )
