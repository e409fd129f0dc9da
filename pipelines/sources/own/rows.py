"""The user's own examples: lines of JSON, or rows of a table.

    {split}.jsonl   image      path of a picture, or a list of two; or
    {split}.csv     video      path of a clip
                    question   text that replaces {text} in the prompt; or
                    prefix     all that the model reads, including `<loc0000>` tokens
                    suffix     text that it writes, or a list from which training draws
                    answers    accepted answers, or a single one
                    optional   id, task (also the dataset's part), lang, meta; licence (or
                               license), holder and address: the row's terms

Paths are relative to the file. If suffix is left out it is the answers, and the other way round.
The cells of a table are texts, and an empty cell counts as left out. In a table, meta and lists of
images, answers or suffixes are JSON; a column `meta.kind` is the field `kind` of meta. A text that
begins with [ or { is written as a list of one text: ["[illegible]"].

Source: big_vision `datasets/jsonl.py`, whose rows have image, prefix and suffix.
"""

import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.benchmarks.row import fill_prompt, prompt_fields
from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput, Omission, Reject
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.csv_cells import csv_cells, parse_cell
from pipelines.sources.reading.item import Item, checked_task, id_of_place
from pipelines.sources.reading.layout import find_annotation, find_file
from pipelines.sources.reading.licences import OWN_NAMES, stated_licence
from pipelines.sources.reading.omissions import (
    data_files,
    looks_like_data,
    note_empty,
    unfollowed,
    unlisted_media,
)
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.reading.unpacking import PACKINGS, DamagedFile, open_lines
from pipelines.sources.reading.values import (
    answer_of,
    language_of,
    parse_row,
    text_of,
    without_absent,
)

KEYS = (
    "image",
    "video",
    "question",
    "prefix",
    "suffix",
    "answers",
    "id",
    "task",
    "lang",
    "meta",
    "licence",
    "license",
    "holder",
    "address",
)
_JSON = {"image", "answers", "suffix", "meta"}
_META = "meta."
_MAX_IMAGES = 2

Numbered = Iterable[tuple[int, Callable[[], Any]]]
"""(number, from 1; function that parses it) of each line or row."""
Rows = Callable[[], Numbered]


def read_jsonl(corpus: Corpus, split: str, *, source: OwnSource) -> Iterator[Item | Reject]:
    """Yields a would-be record per line."""
    path = find_annotation(corpus, *_jsonl_files(split)[0])
    items = items_of(corpus, split, lambda: _json_lines(path), source=source, file=path)
    yield from note_empty(corpus, path, items)


def read_csv(corpus: Corpus, split: str, *, source: OwnSource) -> Iterator[Item | Reject]:
    """Yields a would-be record per row below the header."""
    path = find_annotation(corpus, *_csv_files(split)[0])
    items = items_of(corpus, split, lambda: _table_rows(path), source=source, file=path)
    yield from note_empty(corpus, path, items)


def items_of(
    corpus: Corpus, split: str, rows: Rows, *, source: OwnSource, file: Path, unit: str = "line"
) -> Iterator[Item | Reject]:
    """Yields a would-be record per row; a wrong row is a reject with the row's number in its id.

    Args:
      corpus: the corpus; paths in rows are relative to its folder.
      split: name of the split, as it appears in the ids.
      rows: yields the rows, mappings with some of `KEYS`; called again where one has no id.
      source: name and prompt of the examples.
      file: the file that the rows come from.
      unit: "line" or "row", as rejects call them.
    """
    remaining, stated = iter(rows()), functools.cache(lambda: _stated_ids(rows()))
    for position in itertools.count():
        try:
            number, parse = next(remaining)
        except StopIteration:
            return
        except DamagedFile as error:
            yield Reject(
                id=f"{source.name}/{split}",
                stage="read",
                reason=error.after(position),
                source=corpus.relative(file),
            )
            return
        try:
            place = functools.partial(id_of_place, position, stated)
            yield _item_of_row(corpus, split, place, parse(), source)
        except (ValueError, RecursionError) as error:  # Bad JSON, bad UTF-8, or BadInput.
            reason = reason_of(error)
            yield Reject(
                id=f"{source.name}/{split}/{unit}-{number}",
                stage="read",
                reason=reason if isinstance(error, BadInput) else f"malformed {unit}: {reason}",
                source=corpus.relative(file),
            )


def _stated_ids(rows: Numbered) -> set[str]:
    ids = set()
    # What is damaged, or is no row, is told where it is read.
    with contextlib.suppress(ValueError):
        for _, parse in rows:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                ids.add(answer_of(without_absent(parse())["id"], "id"))
    return ids


def _item_of_row(
    corpus: Corpus, split: str, place: Callable[[], str], row: Any, source: OwnSource
) -> Item:
    # Checks in the order in which a user would fix them: the shape of the row, its keys, its media,
    # its texts. Each says what is accepted.
    if not isinstance(row, Mapping):
        raise BadInput(f"must be an object with {', '.join(KEYS)}; got {row!r:.60}")
    # Tools that write one schema for all rows write null for what a row lacks, pandas NaN.
    row = without_absent(row)
    if unknown := set(row) - set(KEYS):
        raise BadInput(
            f"no such key: {with_nearest(sorted(map(str, unknown)), KEYS)}; accepted: "
            f"{', '.join(KEYS)} (what a metric needs besides goes into meta)"
        )
    if ("image" in row) == ("video" in row):
        raise BadInput("either image or video must be given")
    paths = _texts_under(row, "video" if "video" in row else "image")
    if not all(paths):
        raise BadInput("image, or video, must be the path of a file, got an empty text")
    if len(paths) > (1 if "video" in row else _MAX_IMAGES):
        raise BadInput(f"too many pictures: {len(paths)}; a record has one, a pair or a clip")
    if "suffix" not in row and "answers" not in row:
        raise BadInput("answers, or suffix, must be given")
    # One of both is enough: what may be written is what is accepted, unless the row says otherwise.
    answers = _texts_under(row, "answers") if "answers" in row else _texts_under(row, "suffix")
    task = checked_task(text_of(row.get("task", ""), "task") or source.name)
    lang = language_of(row.get("lang"), "lang")
    key = answer_of(row["id"], "id") if "id" in row else place()
    meta = row.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise BadInput(f"meta must be an object, got {meta!r:.60}")
    # A record stores meta as JSON, so what JSON cannot hold is refused here.
    try:
        json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError) as error:
        reason = reason_of(error)
        raise BadInput(f"meta must be of texts, numbers, lists and objects: {reason}") from None
    return Item(
        id=f"{source.name}/{split}/{paths[0]}#{key}",
        part=task,
        media=tuple(corpus.media(corpus.folder / path, video="video" in row) for path in paths),
        prefix=_prefix_of_row(row, source.prompt, lang),
        suffixes=_texts_under(row, "suffix") if "suffix" in row else answers,
        task=task,
        lang=lang,
        answers=answers,
        meta=dict(meta),
        licence=stated_licence(
            row, OWN_NAMES if "licence" in row else {**OWN_NAMES, "licence": "license"}
        ),
    )


def _prefix_of_row(row: Mapping, prompt: str, lang: str) -> str:
    if "prefix" in row and "question" in row:
        raise BadInput("either prefix or question must be given, not both")
    if "prefix" in row:
        return _text_under(row, "prefix")
    if "question" in row:
        return fill_prompt(prompt, text=_text_under(row, "question"), lang=lang)
    if "text" in prompt_fields(prompt):
        raise BadInput("question, or prefix, must be given")
    return fill_prompt(prompt, lang=lang)


def _text_under(row: Mapping, key: str) -> str:
    """Returns the one text under `key`."""
    texts = _texts_under(row, key)
    if len(texts) != 1:
        raise BadInput(f"{key} must be one text, got {len(texts)}: {row[key]!r}"[:120])
    return texts[0]


def _texts_under(row: Mapping, key: str) -> tuple[str, ...]:
    """Returns the text, or the texts, under `key`."""
    value = row[key]
    values = value if isinstance(value, list | tuple) else [value]
    values = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in values]
    if not values or any(not isinstance(text, str) for text in values):
        raise BadInput(f"{key} must be a text or a list of texts, got {value!r}"[:120])
    return tuple(text_of(text, key) for text in values)


def _json_lines(path: Path) -> Numbered:
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, lambda line=line: parse_row(line)


def _table_rows(path: Path) -> Numbered:
    # Invalid UTF-8 is kept for now; its row becomes a reject when the item is written
    # (`line_of_item`).
    try:
        for number, cells in csv_cells(path):
            yield number, lambda cells=cells: _parse_cells(cells())
    except BadInput as error:
        raise ValueError(f"{path} {error}.") from error


def _parse_cells(filled_cells: dict[str, str]) -> dict[str, Any]:
    # A row with the columns question, answers and meta.kind:
    #
    #     how many?,"[""2"", ""two""]",human
    #     {"question": "how many?", "answers": ["2", "two"], "meta": {"kind": "human"}}
    fields: dict[str, Any] = {k: v for k, v in filled_cells.items() if not k.startswith(_META)}
    for name in _JSON & fields.keys():
        fields[name] = parse_cell(name, fields[name])
    meta_cells = {k.removeprefix(_META): v for k, v in filled_cells.items() if k.startswith(_META)}
    meta = fields.get("meta", {})
    if meta_cells and not isinstance(meta, dict):
        raise BadInput(f"meta must be an object, got {meta!r:.60}")
    return {**fields, "meta": {**meta, **meta_cells}} if meta_cells else fields


def _jsonl_files(split: str) -> tuple[tuple[str, ...], ...]:
    return (_possible_names(split, "jsonl", "ndjson", "JSONL"),)


def _csv_files(split: str) -> tuple[tuple[str, ...], ...]:
    return (_possible_names(split, "csv", "CSV"),)


def _possible_names(split: str, form: str, *other_names: str) -> tuple[str, ...]:
    return (*(f"{split}.{form}{p}" for p in PACKINGS), *(f"{split}.{n}" for n in other_names))


def _row_omissions(corpus: Corpus, split: str, *, form: str) -> Iterator[Omission]:
    """Yields the files that are named like the split and look like data, but the one read."""
    names = _FORMATS[form][1](split)[0]
    # "train.zip" is of the split in another form; "train-00001.jsonl", "train_part2.jsonl" and
    # "Train.jsonl" may be of it, or splits of their own.
    alike = re.compile(rf"{re.escape(split)}[._-]", re.IGNORECASE)
    read = find_file(corpus.folder, *names)
    for path in sorted(corpus.folder.iterdir()):
        is_other = path.name not in names and alike.match(path.name) and path.is_file()
        if not is_other or (corpus.is_local and read and os.path.samefile(path, read)):
            continue
        if path.name.startswith(f"{split}."):
            yield from data_files(corpus, form, [path.name])
        elif looks_like_data(path.name):
            reason = f"its name is like that of split {split}, which {names[0]} alone holds"
            yield Omission(source=corpus.relative(path), reason=reason)
    names = (path.relative_to(corpus.folder).as_posix() for path in corpus.files())
    yield from unlisted_media(corpus, names, _media_names(corpus))
    yield from unfollowed(corpus, lambda name: alike.match(name) is not None)


def _media_names(corpus: Corpus) -> Iterator[str]:
    """Yields the files below the data root that rows name, of any split, of rejects as well."""
    for path in sorted(corpus.folder.iterdir()):
        for ending, rows_of in _ROWS.items():
            is_form = path.name.lower().endswith(tuple(ending + packing for packing in PACKINGS))
            # What is damaged is a reject where its split is read.
            with contextlib.suppress(ValueError):
                for _, parse in rows_of(path) if is_form and path.is_file() else ():
                    with contextlib.suppress(ValueError, RecursionError):
                        yield from _media_paths_of_row(corpus, parse())


def _media_paths_of_row(corpus: Corpus, values: Any) -> Iterator[str]:
    row = without_absent(values) if isinstance(values, Mapping) else {}
    for key in row.keys() & {"image", "video"}:
        for path in _texts_under(row, key):
            yield corpus.relative(corpus.folder / path)


_ROWS = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _table_rows}
"""Extension of a split's file -> function that yields its rows."""
_FORMATS = {"jsonl": (read_jsonl, _jsonl_files), "csv": (read_csv, _csv_files)}


def row_source(source: OwnSource) -> SourceSpec:
    """Returns the source of examples in one of the formats; each file in its folder is a split."""
    read, files = _FORMATS[source.reader]
    return SourceSpec(
        name=source.name,
        folder=source.name,
        splits=(),
        read=functools.partial(read, source=source),
        antialias=True,
        antialias_eval=True,
        files=files,
        omissions=functools.partial(_row_omissions, form=source.reader),
        anywhere=True,
    )


SOURCES = tuple(row_source(OwnSource(reader=form, name=form)) for form in _FORMATS)
