"""What `parcel data check` prints."""

import dataclasses
import json
from collections.abc import Sequence

from pipelines.sources.check import Checked

_HEAD = ("row", "folder", "split", "files", "examples", "published", "images")


def as_json(rows: Sequence[Checked]) -> str:
    """Returns the rows as a JSON list."""
    found = [
        {**dataclasses.asdict(row), "found": row.found, "as_published": row.as_published}
        for row in rows
    ]
    return json.dumps(found, indent=1) + "\n"


def as_text(rows: Sequence[Checked], *, looked: bool) -> str:
    """Returns a table, what is missing or unreadable, and a summary.

    Args:
      rows: what was found.
      looked: whether a data root was looked at; else the files are listed as what is needed.
    """
    table = [_HEAD, *(_cells(row, looked) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(_HEAD))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table]
    lines += ["", *dict.fromkeys(note for row in rows for note in _notes(row, looked))]
    if looked:
        ready = sum(row.found and not row.problem for row in rows)
        same = sum(bool(row.as_published) for row in rows)
        lines.append(f"{ready} of {len(rows)} rows can be read, {same} hold the published number")
    return "\n".join(lines) + "\n"


def _cells(row: Checked, looked: bool) -> tuple[str, ...]:
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
    """Returns a line per file that is needed or missing, and one for what cannot be read."""
    missing = [file.path for file in row.files if not file.found]
    word = "missing" if looked else "needs"
    notes = [f"{word} {path} (published at {row.publisher})" for path in missing]
    if row.problem:
        notes.append(f"unreadable {row.benchmark} {row.split}: {row.problem}")
    return notes
