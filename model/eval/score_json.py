"""Reads the file of a score, which scoring and guessing write."""

from pathlib import Path
from typing import Any

from infra.typed_json import parse_typed


def read_score(path: Path) -> dict[str, Any]:
    """Returns the values of a `score.json` or `chance.json`; `score` is in 0-100.

    Raises:
      ValueError: if its score is no number, or its metric no text.
    """
    values: dict[str, Any] = parse_typed(dict[str, Any], path.read_bytes(), str(path))
    score, metric = values.get("score"), values.get("metric", "")  # A guess states no metric.
    if type(score) not in (int, float) or not isinstance(metric, str):
        raise ValueError(
            f"{path} must have a score, and the name of its metric, got {score!r:.60} and "
            f"{metric!r:.60}; make it again."
        )
    return values
