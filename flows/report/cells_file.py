"""Writes a CSV with one line per score and how it was made, to keep outside the store."""

import dataclasses
from collections.abc import Callable, Mapping

from flows.report.cells import Plan, Report, Score
from flows.report.gather import trained_checkpoint
from flows.report.interval import ScoreInterval, estimate_interval
from flows.report.items import Items, is_percentage
from flows.report.paired_scores import PairedScores
from flows.report.render import to_csv_lines
from infra.store.manifest import Manifest
from infra.store.store import Artifact


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """A score with what its line says of it.

    Attributes:
      pretraining: number of the pretraining that its training started from.
      interval: 95 % interval over the items, for this training alone.
      predictions: key of the predictions that were scored.
      checkpoint: manifest of the checkpoint that made them, or whose cast did.
    """

    score: Score
    pretraining: int
    interval: ScoreInterval
    predictions: str
    checkpoint: Manifest


_VALUES: Mapping[str, Callable[[ScoreRow], object]] = {
    "benchmark": lambda row: row.score.benchmark,
    "method": lambda row: row.score.method,
    "connector": lambda row: row.checkpoint.config["model"]["connector"]["kind"],
    "drawn": lambda row: (
        " ".join(map(str, row.checkpoint.config["train"]["budgets"] or ())) or "all"
    ),
    "steps": lambda row: row.checkpoint.counts["steps"],
    "pretraining": lambda row: row.pretraining,
    "seed": lambda row: row.score.seed,
    "budget": lambda row: row.score.budget,
    "score": lambda row: row.score.score,
    "low": lambda row: row.interval.low,
    "high": lambda row: row.interval.high,
    "items": lambda row: sum(map(len, row.score.items.values())),
    "metric": lambda row: row.score.metric,
    "predictions": lambda row: row.predictions,
    "checkpoint": lambda row: row.checkpoint.key,
    "commit": lambda row: row.checkpoint.environment["git"]["commit"],
    "cpu": lambda row: row.checkpoint.environment["hardware"]["cpu"],
    "cores": lambda row: row.checkpoint.environment["hardware"]["cpus"],
    "accelerator": lambda row: row.checkpoint.environment["hardware"]["accelerator"],
    "seconds": lambda row: f"{row.checkpoint.seconds:.0f}",
}

SCORE_COLUMNS = tuple(_VALUES)


def cells_to_csv(report: Report, plan: Plan, recall: Callable[[str], Artifact]) -> str:
    """Returns one line per benchmark, method, budget and seed that has a score.

    Columns `drawn` and `steps` are the budgets and updates of its fine-tuning; "all" means every
    budget that the connector serves. `low` and `high` are the 95 % interval over items, for this
    training alone. `predictions` and `checkpoint` are keys of artifacts. `commit` to `seconds` are
    the commit, the machine and the time of the checkpoint's training.

    Args:
      report: the report whose scores are written.
      plan: the report's plan.
      recall: function from a key to its artifact.
    """
    numbers = plan.pretraining_in_any_view
    rows = [
        _score_row(score, numbers[score.seed], recall)
        for section in report.sections
        for cell in section.cells
        for score in cell.scores
    ]
    lines = [{name: value_of(row) for name, value_of in _VALUES.items()} for row in rows]
    return to_csv_lines(SCORE_COLUMNS, lines)


def _score_row(score: Score, pretraining: int, recall: Callable[[str], Artifact]) -> ScoreRow:
    predictions = recall(recall(score.artifact).manifest.inputs["predictions"].key).manifest
    return ScoreRow(
        score=score,
        pretraining=pretraining,
        interval=training_interval(score.score, score.items, score.metric),
        predictions=predictions.key,
        checkpoint=trained_checkpoint(predictions, recall),
    )


def training_interval(score: float, items: Items, metric: str) -> ScoreInterval:
    """Returns the interval of one training's score, which is over its items alone."""
    paired = PairedScores.of([score], [items], is_percentage=is_percentage(metric))
    return estimate_interval([paired], [0])
