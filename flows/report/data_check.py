"""Tables of what a dataset or a corpus holds, and of the benchmarks that can be read."""

from collections.abc import Mapping, Sequence

from flows.report.text_lists import abbreviate_list
from pipelines.records.holdings import Holdings, PartHoldings, omission_lines
from pipelines.sources.check import RawFileCheck

_HEAD = ("row", "folder", "split", "files", "examples", "published", "images")
_PART_HEAD = ("part", "records", "images", "suffixes", "languages")
_REJECT_HEAD = ("rejects", "stage", "reason", "such as")
_MAX_LANGS = 6


def align_table(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines, their cells in columns."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def holdings_text(holdings: Holdings) -> str:
    """Returns tables of a dataset or a corpus: its parts, its rejects, and what was not read."""
    # The lines of a small dataset:
    #
    #   train: 1,210 inputs = 1,200 records + 10 rejects
    #   part   records  images  suffixes  languages
    #   train  1,200    1       1,200     en
    #   rejects  stage  reason            such as
    #   10       image  not a picture     web/17
    total = holdings.num_records + holdings.num_rejected
    parts = [
        (
            name,
            f"{part.records:,}",
            _image_counts(part),
            f"{part.suffixes:,}",
            _language_counts(part.langs),
        )
        for name, part in holdings.parts.items()
    ]
    kinds = [(f"{k.num:,}", k.stage, k.reason, k.example) for k in holdings.rejects]
    lines = [
        f"{holdings.name}: {total:,} inputs = {holdings.num_records:,} records + "
        f"{holdings.num_rejected:,} rejects",
        *([f"{holdings.num_composed:,} over a background"] if holdings.num_composed else []),
        *align_table([_PART_HEAD, *parts]),
        *(align_table([_REJECT_HEAD, *kinds]) if kinds else []),
        *omission_lines(holdings.omissions),
    ]
    return "\n".join(lines) + "\n"


def _image_counts(part: PartHoldings) -> str:
    """Returns the images per record, as "1+2" where records differ, and windows if several."""
    images, windows = ("+".join(map(str, sorted(of))) for of in (part.images, part.windows))
    return images if windows in ("", "1") else f"{images} in {windows} windows"


def _language_counts(langs: Mapping[str, int]) -> str:
    """Returns the most frequent languages, each with its record count if there are several."""
    if len(langs) == 1:
        return next(iter(langs))
    ordered = sorted(langs.items(), key=lambda item: (-item[1], item[0]))
    return abbreviate_list([f"{lang} {num:,}" for lang, num in ordered], _MAX_LANGS)


def benchmark_rows_text(rows: Sequence[RawFileCheck], *, looked: bool) -> str:
    """Returns a table of benchmarks' rows, what is missing or unreadable, and a summary.

    Args:
      rows: the rows to print.
      looked: whether a data root was searched; else the files are listed as needed.
    """
    lines = align_table([_HEAD, *(_row_cells(row, looked) for row in rows)])
    lines += ["", *dict.fromkeys(note for row in rows for note in _row_notes(row, looked))]
    if looked:
        ready = sum(row.all_present and not row.problem for row in rows)
        same = sum(bool(row.as_published) for row in rows)
        lines.append(f"{ready} of {len(rows)} rows can be read, {same} hold the published number")
    return "\n".join(lines) + "\n"


def _row_cells(row: RawFileCheck, looked: bool) -> tuple[str, ...]:
    # A cell says what was found, and stays empty where nothing was looked for: 0 would be a claim.
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


def _row_notes(row: RawFileCheck, looked: bool) -> list[str]:
    """Returns a line per file that is needed or missing, and one if the row is unreadable."""
    # One list under two words: what is missing, or, where nothing was looked for, what is needed.
    missing = [file.path for file in row.files if not file.found]
    word = "missing" if looked else "needs"
    notes = [f"{word} {path} (published at {row.publisher})" for path in missing]
    if row.problem:
        notes.append(f"unreadable {row.benchmark} {row.split}: {row.problem}")
    return notes
