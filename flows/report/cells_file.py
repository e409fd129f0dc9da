"""Writes a CSV with one line per score and how it was made, to keep outside the store."""

from collections.abc import Callable

from flows.report.cells import Plan, Report, Score
from flows.report.interval import Paired, estimate
from flows.report.render import to_csv_lines
from infra.store.store import Artifact

CELL_COLUMNS = (
    "benchmark",
    "method",
    "connector",
    "drawn",
    "steps",
    "pretraining",
    "seed",
    "budget",
    "score",
    "low",
    "high",
    "items",
    "metric",
    "predictions",
    "checkpoint",
    "commit",
    "cpu",
    "cores",
    "accelerator",
    "seconds",
)


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
    numbers = plan.pretraining_at_any_resolution
    rows = [
        _row(score, numbers[score.seed], recall)
        for section in report.sections
        for cell in section.cells
        for score in cell.scores
    ]
    return to_csv_lines(CELL_COLUMNS, rows)


def _row(score: Score, pretraining: int, recall: Callable[[str], Artifact]) -> dict[str, object]:
    checkpoint = recall(recall(score.artifact).manifest.inputs["checkpoint"].key).manifest
    hardware, train = checkpoint.environment["hardware"], checkpoint.config["train"]
    interval = estimate([Paired.of([score.score], [score.items])], [pretraining])
    return {
        **vars(score),
        "connector": checkpoint.config["model"]["connector"]["kind"],
        "drawn": " ".join(map(str, train["budgets"] or ())) or "all",
        "steps": checkpoint.counts["steps"],
        "pretraining": pretraining,
        "low": interval.low,
        "high": interval.high,
        "items": sum(map(len, score.items.values())),
        "predictions": score.artifact,
        "checkpoint": checkpoint.key,
        "commit": checkpoint.environment["git"]["commit"],
        "cpu": hardware["cpu"],
        "cores": hardware["cpus"],
        "accelerator": hardware["accelerator"],
        "seconds": f"{checkpoint.seconds:.0f}",
    }
