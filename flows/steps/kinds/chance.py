"""Chance: the score of the best guess that never sees pixels."""

import json
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from model import files


def make(work: Work) -> Iterator[Progress]:
    """Guesses the answers of the input `eval` from the texts of the input `train`."""
    from model.eval.chance import blind_baseline

    score = blind_baseline(str(work.inputs["train"]), str(work.inputs["eval"]), work.config)
    (work.out / files.CHANCE).write_text(json.dumps({"score": score}) + "\n")
    work.counts["score"] = round(score, 4)
    yield Progress(done=1, total=1)


CHANCE = Kind(name="chance", make=make)
