"""`parcel data check`: counts what data hold, and formats the counts as text or JSON."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from flows.config.own import corpus_named
from flows.lineage.runs import find_dataset
from flows.report.columns import listed
from infra.reason import ConfigError
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import Holdings, PartHoldings, holdings_of
from pipelines.sources.check import Checked, check_benchmarks, check_corpus
from pipelines.sources.corpus import parse_features

_HEAD = ("row", "folder", "split", "files", "examples", "published", "images")
_PART_HEAD = ("part", "records", "images", "suffixes", "languages")
_REJECT_HEAD = ("rejects", "stage", "reason", "such as")
_MAX_LANGS = 6


def check_what(
    what: str | None,
    *,
    source: str | None,
    split: str,
    path: str,
    features: Sequence[str] = (),
    store: str,
    as_json: bool,
) -> str:
    """Returns counts of what a dataset or a corpus holds, as text.

    Args:
      what: a dataset's folder or artifact; with `source`, a data root.
      source: the corpus' layout, or a reader function of the user's own; None for a dataset.
      split: the split of the corpus to read.
      path: the corpus' folder below the data root; "" takes the usual one.
      features: names of features in the corpus' records, as "image=image/encoded" each.
      store: the store that holds artifacts [URI].
      as_json: whether to return a JSON object rather than tables.

    Raises:
      ConfigError: if there is no such dataset or corpus, or it cannot be read.
    """
    if what is None:
        raise ConfigError(
            "data check needs what to check: a prepared dataset, a data root with --source, or "
            "--benchmarks."
        )
    try:
        if source is not None:
            reader = corpus_named("--source", source)
            named = parse_features(features)
            found = check_corpus(what, reader, split, path=path, features=named)
        else:
            found = holdings_of(Dataset(find_dataset(what, store)))
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    if as_json:
        return json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False) + "\n"
    return _holdings_text(found)


def check_rows(data_root: str | None, *, training: bool, as_json: bool) -> tuple[str, bool]:
    """Returns the benchmarks' rows as text, and whether every row with files could be read.

    Args:
      data_root: folder with a folder per benchmark, or gs://bucket/prefix; None only lists the
        files that the benchmarks need.
      training: whether training splits are checked, too.
      as_json: whether to return a JSON list rather than a table.

    Raises:
      ConfigError: if there is no such folder.
    """
    try:
        rows = list(check_benchmarks(data_root, training=training))
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None
    whole = not any(row.problem for row in rows)
    if not as_json:
        return _as_text(rows, looked=data_root is not None), whole
    found = [
        {**dataclasses.asdict(row), "found": row.found, "as_published": row.as_published}
        for row in rows
    ]
    return json.dumps(found, indent=1) + "\n", whole


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines, their cells in columns."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def _holdings_text(found: Holdings) -> str:
    total = found.num_records + found.num_rejected
    parts = [
        (
            name,
            f"{part.records:,}",
            _images(part),
            f"{part.suffixes:,}",
            _langs(part.langs),
        )
        for name, part in found.parts.items()
    ]
    kinds = [(f"{k.num:,}", k.stage, k.reason, k.example) for k in found.rejects]
    lines = [
        f"{found.name}: {total:,} inputs = {found.num_records:,} records + "
        f"{found.num_rejected:,} rejects",
        *_aligned([_PART_HEAD, *parts]),
        *(_aligned([_REJECT_HEAD, *kinds]) if kinds else []),
    ]
    return "\n".join(lines) + "\n"


def _images(part: PartHoldings) -> str:
    """Returns the images per record, as "1+2" where records differ, and windows if several."""
    images, windows = ("+".join(map(str, sorted(of))) for of in (part.images, part.windows))
    return images if windows in ("", "1") else f"{images} in {windows} windows"


def _langs(langs: Mapping[str, int]) -> str:
    """Returns the most frequent languages, each with its record count if there are several."""
    if len(langs) == 1:
        return next(iter(langs))
    ordered = sorted(langs.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{lang} {num:,}" for lang, num in ordered], _MAX_LANGS)


def _as_text(rows: Sequence[Checked], *, looked: bool) -> str:
    """Returns a table, what is missing or unreadable, and a summary.

    Args:
      rows: the rows to print.
      looked: whether a data root was searched; else the files are listed as needed.
    """
    lines = _aligned([_HEAD, *(_row_cells(row, looked) for row in rows)])
    lines += ["", *dict.fromkeys(note for row in rows for note in _notes(row, looked))]
    if looked:
        ready = sum(row.found and not row.problem for row in rows)
        same = sum(bool(row.as_published) for row in rows)
        lines.append(f"{ready} of {len(rows)} rows can be read, {same} hold the published number")
    return "\n".join(lines) + "\n"


def _row_cells(row: Checked, looked: bool) -> tuple[str, ...]:
    present = sum(bool(file.found) for file in row.files)
    files = f"{present} of {len(row.files)}" if looked else str(len(row.files))
    examples = "" if row.num is None else f"{row.num:,}"
    if row.as_published is False:
        examples += " (differs)"
    if row.num_rejected:
        examples += f", {row.num_rejected:,} malformed"
    return (
        row.title,
        row.benchmark,
        row.split,
        files if row.files else "no reader",
        "unreadable" if row.problem else examples,
        "not known" if row.published is None else f"{row.published:,}",
        "" if row.num is None else f"{row.num_present:,} of {row.num_images:,}",
    )


def _notes(row: Checked, looked: bool) -> list[str]:
    """Returns a line per file that is needed or missing, and one if the row is unreadable."""
    missing = [file.path for file in row.files if not file.found]
    word = "missing" if looked else "needs"
    notes = [f"{word} {path} (published at {row.publisher})" for path in missing]
    if row.problem:
        notes.append(f"unreadable {row.benchmark} {row.split}: {row.problem}")
    return notes
