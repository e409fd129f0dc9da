"""Chance: the score of the best guess from texts alone, without pixels.

Files:
  chance.json: the score
  predictions.jsonl: a row per record: the score of its guess, digest of the source
"""

import json
from collections.abc import Iterator

from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from model import files
from model.eval.metrics.registry import metric_modules, metric_values


def make(work: StepContext) -> Iterator[Progress]:
    """Guesses the answers of the input `eval` from the texts of the input `train`."""
    from model.eval.chance import blind_baseline

    blind = blind_baseline(work.places["train"], work.places["eval"], work.config)
    (work.out / files.CHANCE).write_text(json.dumps({"score": blind.score}) + "\n")
    lines = "".join(f"{json.dumps(row)}\n" for row in blind.rows)
    (work.out / files.PREDICTIONS).write_text(lines)
    work.counts["score"] = round(blind.score, 4)
    yield Progress(done=1, total=1)


_METRICS = metric_modules.__module__

CHANCE = Kind(
    name="chance",
    make=make,
    spec=str,
    stop=(_METRICS,),
    also=metric_modules,
    entries=lambda metric: {_METRICS: metric_values(metric)},
    functions=lambda metric: [metric],
    holds="guesses",
    items="eval",
    sample="guessed from its text, or scored on it",
)
