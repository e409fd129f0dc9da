"""Reads the tables of scored answers that VLMEvalKit writes.

    MODEL/MODEL_DATASET.xlsx                   answers, without scores: not read
    MODEL/MODEL_DATASET_JUDGE_result.xlsx      scored answers of multiple choice: column hit
    MODEL/MODEL_DATASET_results.xlsx           of open questions: columns eval_score, eval_match
    MODEL/MODEL_DATASET_auxmatch.xlsx          of yes and no: column score
    MODEL/MODEL_DATASET_acc.csv, _score.csv    means

A table is .xlsx, .tsv, .json or .csv, as PRED_FORMAT and EVAL_FORMAT say there. Files may lie in a
folder of a run, MODEL/T20261127_G1a2b3c4d, to the newest of which MODEL/ has links.

Source: VLMEvalKit, vlmeval/smp/file.py, vlmeval/dataset/image_mcq.py, image_vqa.py, image_yorn.py.
"""

import contextlib
import csv
import itertools
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.report.foreign.item_log import ItemLog, ItemLogError, LoggedItem
from flows.report.foreign.log_checks import (
    MAX_BYTES,
    damage_errors,
    is_number,
    metric_of_means,
    parse_list,
    parse_log,
    picture_of,
    sorted_items,
)

FILES = "MODEL/MODEL_DATASET*_result.xlsx, _results.xlsx or _auxmatch.xlsx beside _acc.csv"
"""What is read, for a message."""

MAX_ROWS = 2_000_000
"""Most rows of a table that are held at once."""

_TABLES = ("result", "results", "auxmatch")
_MEANS = ("acc", "score")
_FORMS = (".xlsx", ".tsv", ".json", ".csv")
_OF_MATCHES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "anls of eval_match": lambda distances: 1 - min(distances) if min(distances) <= 0.5 else 0.0,
    "best of eval_match": max,
}
"""Scores that are computed from the column eval_match, which has a number for each answer.

Source: vlmeval/dataset/utils/vqa_eval.py (`hit_calculate`).
"""

_SCORES = ("hit", "eval_score", "score", *_OF_MATCHES)
"""Scores, the first of which is read that agrees with the means: columns, or of `_OF_MATCHES`."""

_DAMAGED = "is no table, or damaged"

_RUN = re.compile(r"T\d{8}(-\d{6}|_G[0-9a-fA-F]*)")
"""Name of the folder of a run."""

_OVERALL = "Overall"
_CHOICES = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

_Row = Mapping[str, Any]


def find_logs(folder: Path) -> list[Path]:
    """Returns the tables of scored answers below a folder, in order of path.

    Of the runs of a model, only those are taken that the model's folder has no table of.
    """
    paths = []
    for path in sorted(folder.rglob("*")):
        stem, _, kind = path.stem.rpartition("_")
        if kind not in _TABLES or path.suffix not in _FORMS or not path.is_file():
            continue
        has_link = _RUN.fullmatch(path.parent.name) and (path.parents[1] / path.name).is_file()
        if stem.startswith(f"{_model(path)}_") and not has_link:
            paths.append(path)
    return paths


def read_log(path: Path) -> ItemLog:
    """Returns the items of one model on one dataset.

    The metric is the first of `_SCORES` that has a number in 0-1 for every question, whose mean
    over them is in the file of means; the judge's name stands beside it.

    Raises:
      ItemLogError: if a file lacks what is read, is damaged or too large, or no column agrees with
        the means.
    """
    model = _model(path)
    dataset, judge = _dataset_and_judge(path)
    rows = _read_table(path)
    if not rows:
        raise ItemLogError(f"{path}: has no question.")
    means_file = _means_file(path, f"{model}_{dataset}")
    means = list(_means(_read_table(means_file), rows))
    column = metric_of_means(
        # The means are in 0-1, or in 0-100.
        [(name, mean / unit) for name in _SCORES for mean in means for unit in (1, 100)],
        lambda name: [_score(row, name) for row in rows],
        path,
    )
    splits = {_text(row["split"]) for row in rows if _text(row.get("split"))}
    return ItemLog(
        file=str(path),
        model=model,
        task=dataset,
        metric=f"{column} by {judge}" if judge else column,
        split=", ".join(sorted(splits - {"none"})),
        items=sorted_items(
            (
                (f"{path} row {number}", _logged_item(row, column, f"{path} row {number}"))
                for number, row in enumerate(rows, start=1)
            ),
            "index",
        ),
    )


def _logged_item(row: _Row, column: str, place: str) -> LoggedItem:
    if not _text(row.get("index")):
        raise ItemLogError(f"{place}: index is missing.")
    # What a model is asked: VLMEvalKit logs no prompts.
    choices = (f"{name}. {text}" for name in _CHOICES if (text := _text(row.get(name))))
    question = _text(row.get("question"))
    parts = (_text(row.get("hint")), question, *choices)
    score = _score(row, column)
    assert score is not None  # Of the column that was chosen, every row has one.
    return LoggedItem(
        id=_text(row["index"]),
        source=picture_of({name: _text(value) for name, value in row.items() if _text(value)}),
        question="\n".join(part for part in parts if part),
        prompt="",
        target=_text(row.get("answer", row.get("answers"))),
        answer=_text(row.get("prediction")),
        score=score,
        text=question,
    )


def _model(path: Path) -> str:
    is_run = _RUN.fullmatch(path.parent.name) is not None
    return (path.parents[1] if is_run else path.parent).name


def _dataset_and_judge(path: Path) -> tuple[str, str]:
    """Returns the dataset's name and the judge's, "" if the file names none.

    ```
    MODEL_MMBench_DEV_EN_V11_exact_matching_result.xlsx beside MODEL_MMBench_DEV_EN_V11.xlsx,
    MODEL_MMBench_DEV_EN.xlsx
    ─▶ MMBench_DEV_EN_V11, exact_matching
    ```
    """
    scored, model = path.stem.rpartition("_")[0], _model(path)
    stems = [file.stem for file in path.parent.iterdir() if file.suffix in _FORMS]
    answers = [stem for stem in stems if stem.rpartition("_")[2] not in (*_TABLES, *_MEANS)]
    means = [stem.rpartition("_")[0] for stem in stems if stem.rpartition("_")[2] in _MEANS]
    # Names of datasets begin with each other: the longest that the table's begins with is its own.
    for names in (answers, means):
        known = [name for name in names if f"{scored}_".startswith(f"{name}_")]
        if name := max(
            (name for name in known if name.startswith(f"{model}_")), key=len, default=""
        ):
            return name.removeprefix(f"{model}_"), scored.removeprefix(name).removeprefix("_")
    return scored.removeprefix(f"{model}_"), ""


def _means_file(path: Path, name: str) -> Path:
    names = (path.stem.rpartition("_")[0], name)
    for name, kind, form in itertools.product(names, _MEANS, _FORMS):
        if (file := path.with_name(f"{name}_{kind}{form}")).is_file():
            return file
    raise ItemLogError(
        f"{path}: needs {name}_acc.csv or {name}_score.csv beside it, which has the means."
    )


def _means(means: Sequence[_Row], rows: Sequence[_Row]) -> Iterator[float]:
    """Yields every number of the file of means that is over all rows of the table.

    ```
    split  Overall                 split    Overall   acc         Overall
    dev    0.61                    Overall  88.1      87.0        81.3
    test   0.70
    ─▶ their mean over all rows    ─▶ 88.1, 87.0                  ─▶ 81.3
    ```
    """
    if len(means) > 1:
        overall = [row for row in means if _text(row.get("split")) == _OVERALL]
        if not overall:
            yield from _over_splits(means, rows)
            return
        means = overall
    for row in means:
        yield from (number for value in row.values() if (number := _number(value)) is not None)


def _over_splits(means: Sequence[_Row], rows: Sequence[_Row]) -> Iterator[float]:
    counts = Counter(_text(row.get("split")) for row in rows)
    mean_of = {_text(row.get("split")): _number(row.get(_OVERALL)) for row in means}
    numbers = [(mean_of.get(split), count) for split, count in counts.items()]
    if all(mean is not None for mean, _ in numbers):
        yield sum((mean or 0) * count for mean, count in numbers) / len(rows)


def _score(row: _Row, name: str) -> float | None:
    """Returns a row's score of one of `_SCORES`; None if it has none."""
    if name not in _OF_MATCHES:
        return _number(row.get(name))
    matches = parse_list(row.get("eval_match"))
    numbers = [number for value in matches if (number := _number(value)) is not None]
    return _OF_MATCHES[name](numbers) if len(numbers) == len(matches) > 0 else None


def _number(value: Any) -> float | None:
    if isinstance(value, str):  # Of a text file, every value is one.
        try:
            return float({"True": 1, "False": 0}.get(value, value))
        except ValueError:
            return None
    return float(value) if is_number(value) else None


def _text(value: Any) -> str:
    """Returns a field as text: 3 for 3.0, "" for a field that is empty."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)


def _read_table(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a table, by column.

    Raises:
      ItemLogError: if it is damaged, or too large.
    """
    size = _unpacked_size(path)
    if size > MAX_BYTES:
        raise ItemLogError(f"{path}: must be at most {MAX_BYTES} bytes, got {size}.")
    if path.suffix == ".json":
        rows = parse_log(path.read_bytes(), str(path))
        # Means are one object, or one per split.
        rows = [rows] if isinstance(rows, dict) else rows
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ItemLogError(f"{path}: must be a list of objects, got {rows!r:.60}.")
        return rows
    lines = _workbook_lines(path) if path.suffix == ".xlsx" else _text_lines(path)
    if len(lines) > MAX_ROWS:
        raise ItemLogError(f"{path}: must have at most {MAX_ROWS - 1} rows, got more.")
    head, *table = lines or [()]
    columns = [_text(name) for name in head]
    return [
        dict(zip(columns, line, strict=False))
        for line in table
        if any(value is not None for value in line)
    ]


def _unpacked_size(path: Path) -> int:
    if path.suffix != ".xlsx":
        return path.stat().st_size
    with damage_errors(f"{path}: {_DAMAGED}"), zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist())


def _workbook_lines(path: Path) -> list[tuple[Any, ...]]:
    import openpyxl  # Here: few read such tables.

    # Of files that are no workbooks, openpyxl raises errors of many classes.
    also = (SyntaxError, LookupError, TypeError, AttributeError)
    with damage_errors(f"{path}: {_DAMAGED}", *also), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of styles, which do not matter here.
        with contextlib.closing(
            openpyxl.load_workbook(path, read_only=True, data_only=True)
        ) as book:
            sheet = book.worksheets[0]
            # The stated size of a sheet need not be true: rows are read as they come.
            sheet.reset_dimensions()
            return list(itertools.islice(sheet.iter_rows(values_only=True), MAX_ROWS + 1))


def _text_lines(path: Path) -> list[list[str]]:
    separator = "\t" if path.suffix == ".tsv" else ","
    limit = csv.field_size_limit(MAX_BYTES)  # Answers may be longer than what is usual.
    try:
        with (
            damage_errors(f"{path}: {_DAMAGED}", csv.Error),
            path.open(encoding="utf-8-sig", newline="") as file,
        ):
            lines = csv.reader(file, delimiter=separator, strict=True)
            return list(itertools.islice(lines, MAX_ROWS + 1))
    finally:
        csv.field_size_limit(limit)
