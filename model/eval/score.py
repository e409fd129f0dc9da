"""Scores the answers to a split; decodes nothing, neither images nor text."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from infra.progress import Progress
from model.data.parts import open_parts, records_by_id
from model.eval.items_file import write_items
from model.eval.metrics.registry import get_metric
from model.eval.predictions_file import read_predictions
from model.eval.scorer import Scorer, fields_of
from model.files import SCORE

DecodeMask = Callable[[list[int]], Float[np.ndarray, "64 64"]]
"""Function from the 16 codes of a mask to the mask; see `MaskCodec.decode`."""

_REPORTED_EVERY = 1000
"""Number of records between two reports of progress."""


def score(
    folders: Mapping[Path, Path],
    *,
    data: str,
    metric: str,
    decode_mask: DecodeMask | None = None,
    limit: int | None = None,
    with_items: bool = True,
) -> Iterator[Progress]:
    """Scores files of answers to one split; when exhausted, each has its score beside its items.

    `score.json` has the metric, its score (0-100), the number of records, the sum of their scores
    and, where there is a breakdown, its parts.

    Args:
      folders: folder with `predictions.jsonl` -> existing folder for score and items.
      data: prepared dataset with the records that were answered; as in `StagePaths`.
      metric: a metric's name in the registry.
      decode_mask: decoder of the mask codec, for metrics that read masks.
      limit: number of records that were answered, the first by id; None if all were.
      with_items: whether to write the file of items, which needs PyArrow.

    Raises:
      ValueError: if the answers are not those to these records, or the metric reads masks and there
        is no codec.
    """
    if get_metric(metric).reads_masks and decode_mask is None:
        raise ValueError(f"metric {metric!r} needs a mask codec; the study has none.")
    given = {"decode_mask": decode_mask} if decode_mask else {}
    parts = open_parts([data])
    total = sum(map(len, parts.values()))
    total = total if limit is None else min(limit, total)
    # The split is read once for all files: records and answers are both sorted by id, so they are
    # read side by side.
    #
    #   records            a1            a2            b1
    #   answers at 16      a1 "red"      a2 "2"        b1 "no"
    #   answers at 64      a1 "red"      a2 "3"        b1 "yes"
    splits = [_Answers(source, out, metric) for source, out in folders.items()]
    records = itertools.islice(records_by_id(parts), limit)
    for number, record in enumerate(records, start=1):
        fields = {**fields_of(record), **given}
        for answers in splits:
            answers.add(record.id, fields)
        if number % _REPORTED_EVERY == 0 or number == total:
            yield Progress(done=number, total=total)
    # Last, as some metrics have no score before they have seen all records (CIDEr's weights are
    # counts over the whole split).
    for answers in splits:
        answers.write(with_items=with_items)


class _Answers:
    """One file of answers, and where its score goes."""

    def __init__(self, source: Path, out: Path, metric: str) -> None:
        self._source, self._out = source, out
        self._unread, self._rows = read_predictions(source), list[dict[str, Any]]()
        self._scorer = Scorer(metric)

    def add(self, item: str, fields: Mapping[str, Any]) -> None:
        """Scores the next answer, which must be to record `item`."""
        row = next(self._unread, None)
        if row is None or row["id"] != item:
            raise ValueError(
                f"predictions must have a row for each record of the split, sorted by id, got "
                f"{row and row['id']!r} for {item!r} in {self._source}."
            )
        self._scorer.add(row["prediction"], fields)
        self._rows.append(row)

    def write(self, *, with_items: bool) -> None:
        """Writes the score, and the items if asked."""
        if (row := next(self._unread, None)) is not None:
            raise ValueError(
                f"predictions must be of records of the split, got {row['id']!r} in {self._source}."
            )
        scored = self._scorer.finish()
        if with_items:
            rows = zip(self._rows, scored.rows(), strict=True)
            write_items(self._out, [row | item for row, item in rows])
        result = scored.result.as_json(self._scorer.name)
        (self._out / SCORE).write_text(json.dumps(result, sort_keys=True) + "\n")
