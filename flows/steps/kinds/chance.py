"""Chance: the score of the best guess from texts alone, and of the best one without the question.

Files:
  chance.json: the score without pixels, and the one without the question
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
    from model.eval.question_blind import question_blind_score

    blind = blind_baseline(work.places["train"], work.places["eval"], work.config)
    scores = {"score": blind.score}
    without_question = question_blind_score(work.places["eval"], work.config)
    if without_question is not None:
        scores["without_question"] = without_question
    (work.out / files.CHANCE).write_text(json.dumps(scores) + "\n")
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
