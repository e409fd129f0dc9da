"""The metrics by name. Each scores one record, so that sums and counts can be merged anywhere."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from model.eval.exact_match import exact_match
from model.eval.miou import miou
from model.eval.relaxed_accuracy import relaxed_accuracy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
      score: (prediction, fields of the record) -> score in [0, 1]; fields are "answers", "masks"
        and those of the record's meta.
      reads_masks: whether fields must hold "decode_mask", the mask codec's decoder.
    """

    score: Callable[[str, Mapping[str, Any]], float]
    reads_masks: bool = False


METRICS: dict[str, Metric] = {
    "exact_match": Metric(score=exact_match),
    "miou": Metric(score=miou, reads_masks=True),
    "relaxed_accuracy": Metric(score=relaxed_accuracy),
}


def get_metric(name: str) -> Metric:
    """Returns a metric.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if name not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {name!r}.")
    return METRICS[name]
