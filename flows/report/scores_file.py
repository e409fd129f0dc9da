"""Reads a file of published scores into a report, which is shown like a study's own."""

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.report.average import group_means
from flows.report.cells import Aggregate, Cell, Report, Section
from flows.report.spread import t_interval
from pipelines.benchmarks.row import ResultRow

COLUMNS = (
    "group",
    "benchmark",
    "resolution",
    "budget",
    "method",
    "score_mean",
    "score_std",
    "pg2_score",
)
SEEDS = "seeds"
"""Column that a file may have, too: the number of runs behind each mean and deviation."""
REFERENCE_METHOD = "vanilla"


HIGH_RESOLUTION = 448
"""Image side of the paper's second table; at every other one the groups are those at 224 px."""


class ScoreFileError(ValueError):
    """A score file cannot be read; the message is one line: file, line, column, cure."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ScoreRow:
    group: str
    benchmark: str
    resolution: int
    budget: int
    method: str
    mean: float | None
    std: float | None
    reference: float
    seeds: int | None
    line: int


def read_scores(path: str | Path) -> Report:
    """Returns the report of a CSV file with the header `COLUMNS`, and maybe `SEEDS`.

    One line is one method on one benchmark at one resolution and budget. At each resolution every
    benchmark is expected with every method and budget; a cell without a line, or with an empty
    `score_mean`, is missing. An empty `score_std` is an unknown spread; without `seeds`, or where
    it is empty, the number of seeds is unknown, and a deviation gives no interval. `pg2_score` is
    the reference, vanilla at the largest budget of that resolution; it has no spread and an unknown
    number of seeds. Means at each
    resolution: over the paper's groups, by the titles of its tables, over the file's own, and over
    all its benchmarks.

    Args:
      path: a local CSV file.

    Raises:
      ScoreFileError: if the file is not as described.
    """
    rows = _read_rows(Path(path))
    _check_agreement(rows, path)
    sections, aggregates = [], []
    for resolution in dict.fromkeys(r.resolution for r in rows):
        of_resolution = _published_sections([r for r in rows if r.resolution == resolution])
        sections += of_resolution
        aggregates += _published_aggregates(of_resolution, resolution)
    return Report(sections=tuple(sections), aggregates=tuple(aggregates), num_pretrainings=0)


def _read_rows(path: Path) -> list[_ScoreRow]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ScoreFileError(f"{path}: cannot be read, {reason}; give a CSV file.") from None
    # Columns are found by name, in any order. `utf-8-sig` drops the mark that spreadsheets put
    # first.
    reader = csv.reader(text.splitlines())
    header = [name.strip() for name in next(reader, [])]
    if sorted(header) not in (sorted(COLUMNS), sorted((*COLUMNS, SEEDS))):
        raise ScoreFileError(
            f"{path}:1: header must hold the columns {','.join(COLUMNS)}, and may hold {SEEDS}, "
            f"got {','.join(header) or 'nothing'}."
        )
    rows = [
        _parse_row(path, reader.line_num, header, fields)
        for fields in reader
        if any(map(str.strip, fields))
    ]
    if not rows:
        raise ScoreFileError(f"{path}:2: must hold at least one line of scores below the header.")
    return rows


def _parse_row(path: Path, line: int, header: list[str], fields: list[str]) -> _ScoreRow:
    # A line of the file, with its columns as in `COLUMNS`:
    #
    #   documents,DocVQA (val),224,64,parcel,41.2,0.3,43.7
    #
    # A comma in a name shifts all that follows, so the number of fields is checked first.
    if len(fields) != len(header):
        raise ScoreFileError(
            f"{path}:{line}: must have {len(header)} fields, got {len(fields)}; quote commas."
        )
    row = {name: field.strip() for name, field in zip(header, fields, strict=True)}
    at = f"{path}:{line}"
    for name in ("group", "benchmark", "method"):
        if not row[name]:
            raise ScoreFileError(f"{at}: {name} must be a name, got nothing.")
    if row["method"] == REFERENCE_METHOD:
        raise ScoreFileError(
            f"{at}: method must not be {REFERENCE_METHOD}: its score is pg2_score."
        )
    seeds = _parse_count(at, SEEDS, row[SEEDS]) if row.get(SEEDS) else None
    if seeds == 1 and row["score_std"]:
        raise ScoreFileError(
            f"{at}: score_std must be empty with one seed, got {row['score_std']!r}."
        )
    return _ScoreRow(
        group=row["group"],
        benchmark=row["benchmark"],
        resolution=_parse_count(at, "resolution", row["resolution"]),
        budget=_parse_count(at, "budget", row["budget"]),
        method=row["method"],
        mean=_parse_number(at, "score_mean", row["score_mean"]) if row["score_mean"] else None,
        std=_parse_number(at, "score_std", row["score_std"]) if row["score_std"] else None,
        reference=_parse_number(at, "pg2_score", row["pg2_score"], above=True),
        seeds=seeds,
        line=line,
    )


def _parse_count(at: str, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise ScoreFileError(f"{at}: {column} must be a whole number >= 1, got {text!r}.")
    return int(text)


def _parse_number(at: str, column: str, text: str, *, above: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        bound = "> 0" if above else ">= 0"
        empty = "" if above else ", or empty if missing"
        raise ScoreFileError(f"{at}: {column} must be a number {bound}{empty}, got {text!r}.")
    return value


def _check_agreement(rows: Sequence[_ScoreRow], path: str | Path) -> None:
    """Checks that no cell is given twice, and that a benchmark has one group and reference."""
    # Every line repeats its benchmark's group and reference. The first line of a benchmark decides;
    # one that disagrees is an error, since nobody could say which of them the table should show.
    cells: dict[tuple[Any, ...], int] = {}
    firsts: dict[tuple[str, int], _ScoreRow] = {}
    for row in rows:
        name = f"{row.benchmark} at {row.resolution} px"
        first = firsts.setdefault((row.benchmark, row.resolution), row)
        for column in ("group", "reference"):
            value, expected = getattr(row, column), getattr(first, column)
            if value != expected:
                label = "pg2_score" if column == "reference" else column
                raise ScoreFileError(
                    f"{path}:{row.line}: {label} must be {expected} for {name} as in line "
                    f"{first.line}, got {value}."
                )
        key = (row.benchmark, row.resolution, row.budget, row.method)
        line = cells.setdefault(key, row.line)
        if line != row.line:
            raise ScoreFileError(
                f"{path}:{row.line}: budget and method must be given once for {name}, got "
                f"{row.budget},{row.method} again after line {line}; drop one of the lines."
            )


def _published_sections(rows: list[_ScoreRow]) -> list[Section]:
    """Returns one section per benchmark; all rows share a resolution."""
    # A file has no line for the reference: each of its lines repeats the reference's score. So
    # every benchmark gets a first method, with a score at the largest budget alone.
    budgets = tuple(sorted({r.budget for r in rows}, reverse=True))
    methods = tuple(dict.fromkeys(r.method for r in rows))
    by_place = {(r.benchmark, r.method, r.budget): r for r in rows}
    # Every benchmark with every method and budget; what the file lacks is a missing cell.
    sections = []
    for name in dict.fromkeys(r.benchmark for r in rows):
        first = next(r for r in rows if r.benchmark == name)
        cells = [_reference_cell(first, b, max(budgets)) for b in budgets]
        for method in methods:
            for budget in budgets:
                # None: the file has no such line, and the table shows it as missing.
                row = by_place.get((first.benchmark, method, budget))
                cells.append(_row_cell(row, first, method, budget))
        section = Section(
            benchmark=first.benchmark,
            methods=(REFERENCE_METHOD, *methods),
            budgets=budgets,
            reference=REFERENCE_METHOD,
            full_budget=max(budgets),
            metric="",
            chance=None,
            cells=tuple(cells),
            group=first.group,
            resolution=first.resolution,
        )
        sections.append(section)
    return sections


def _reference_cell(row: _ScoreRow, budget: int, full: int) -> Cell:
    is_full = budget == full
    return Cell(
        benchmark=row.benchmark,
        method=REFERENCE_METHOD,
        budget=budget,
        mean=row.reference if is_full else None,
        std=None,
        n=int(is_full),
        expected=int(is_full),
        retention=100.0 if is_full else None,
        low=None,
        high=None,
        chance=None,
        seeds_known=False,
    )


def _row_cell(row: _ScoreRow | None, first: _ScoreRow, method: str, budget: int) -> Cell:
    # Means, deviations and maybe numbers of seeds are all that the file has: the interval is over
    # seeds, and there is no chance, and no score of a single seed. Where the number is not known,
    # the mean counts as one of one.
    mean = row.mean if row else None
    std = row.std if row and mean is not None else None
    seeds = (row and row.seeds) or 1
    low, high = (t_interval(mean, std, seeds) if mean is not None else None) or (None, None)
    return Cell(
        benchmark=first.benchmark,
        method=method,
        budget=budget,
        mean=mean,
        std=std,
        n=0 if mean is None else seeds,
        expected=seeds,
        retention=None if mean is None else 100 * mean / first.reference,
        low=low,
        high=high,
        chance=None,
        seeds_known=bool(row and row.seeds),
    )


def _published_aggregates(sections: list[Section], resolution: int) -> list[Aggregate]:
    # Imported here: the groups are of the registry's rows, whose readers import NumPy.
    from pipelines.sources.paper_groups import group_sizes, rows_by_group
    from pipelines.sources.registry import row_of_title

    def paper_row(title: str) -> ResultRow | None:
        try:
            return row_of_title(title)[1]
        except ValueError:
            return None

    # The paper's groups first, by the titles of its tables; then those that the file names. One of
    # the same benchmarks as a group before it does not come twice.
    is_high = resolution == HIGH_RESOLUTION
    rows = {section.benchmark: paper_row(section.benchmark) for section in sections}
    groups = rows_by_group(rows, is_high=is_high)
    for section in sections:
        members = tuple(other.benchmark for other in sections if other.group == section.group)
        groups.setdefault(section.group, members)
    return group_means(sections, groups, group_sizes(is_high=is_high))
