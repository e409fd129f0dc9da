"""Writes a CSV with one line per score and how it was made, to keep outside the store."""

from collections.abc import Callable, Mapping

from flows.report.cells import Plan, Report, Score
from flows.report.interval import ScoreInterval, estimate_interval
from flows.report.items import Items, is_percentage, num_items
from flows.report.items_table import ScoreArtifacts, scores_of
from flows.report.paired_scores import PairedScores
from flows.report.render import to_csv_lines
from infra.store.store import Artifact

_VALUES: Mapping[str, Callable[[Score, ScoreInterval, ScoreArtifacts], object]] = {
    "benchmark": lambda score, _, made: score.benchmark,
    "method": lambda score, _, made: score.method,
    "connector": lambda _, __, made: made.checkpoint.config["model"]["connector"]["kind"],
    "drawn": lambda _, __, made: (
        " ".join(map(str, made.checkpoint.config["train"]["budgets"] or ())) or "all"
    ),
    "steps": lambda _, __, made: made.checkpoint.counts["steps"],
    "pretraining": lambda _, __, made: made.pretraining,
    "seed": lambda score, _, made: score.seed,
    "budget": lambda score, _, made: score.budget,
    "score": lambda score, _, made: score.score,
    "low": lambda _, interval, made: interval.low,
    "high": lambda _, interval, made: interval.high,
    "items": lambda score, _, made: num_items(score.items),
    "metric": lambda score, _, made: score.metric,
    "predictions": lambda _, __, made: made.predictions.key,
    "checkpoint": lambda _, __, made: made.checkpoint.key,
    "commit": lambda _, __, made: made.checkpoint.environment["git"]["commit"],
    "cpu": lambda _, __, made: made.checkpoint.environment["hardware"]["cpu"],
    "cores": lambda _, __, made: made.checkpoint.environment["hardware"]["cpus"],
    "accelerator": lambda _, __, made: made.checkpoint.environment["hardware"]["accelerator"],
    "seconds": lambda _, __, made: f"{made.checkpoint.seconds:.0f}",
}
"""Column -> function from a score, its interval and its artifacts to the value."""


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
    scores = (s for section in report.sections for cell in section.cells for s in cell.scores)
    lines = []
    for score, made in zip(scores, scores_of(report, plan, recall), strict=True):
        interval = training_interval(score.score, score.items, score.metric)
        lines.append({name: value(score, interval, made) for name, value in _VALUES.items()})
    return to_csv_lines(tuple(_VALUES), lines)


def training_interval(score: float, items: Items, metric: str) -> ScoreInterval:
    """Returns the interval of one training's score, which is over its items alone."""
    paired = PairedScores.of([score], [items], is_percentage=is_percentage(metric))
    return estimate_interval([paired], [0])
