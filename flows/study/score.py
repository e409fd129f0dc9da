"""`parcel score`: finds the metric that a person names, and scores a file of predictions by it."""

from pathlib import Path

from flows.config.references import metric_reference
from infra.errors import ConfigError
from model.eval import score_file
from model.eval.score_file import ScoredFile


def score_predictions(metric: str, path: Path, mask_codec: Path | None = None) -> ScoredFile:
    """Scores a file of predictions; see `model.eval.score_file`.

    Args:
      metric: a metric of the registry, or one of the user's own as a config names it.
      path: the file of predictions [path].
      mask_codec: codec for metrics that read masks, or a checkpoint that has one [path].

    Raises:
      ConfigError: if there is no such metric, or the file is wrong.
    """
    try:
        name = metric_reference("METRIC", metric)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return score_file.score_file(name, path, mask_codec)
