"""Chance: the score of the best guess that never sees pixels."""

import json
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from model import files


def make(work: Work) -> Iterator[Progress]:
    """Guesses the answers of the input `eval` from the texts of the input `train`."""
    from model.eval.chance import blind_baseline

    blind = blind_baseline(work.places["train"], work.places["eval"], work.config)
    (work.out / files.CHANCE).write_text(json.dumps({"score": blind.score}) + "\n")
    rows = [{"id": key, "source_sha256": sha, "score": value} for key, sha, value in blind.items]
    (work.out / files.PREDICTIONS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    work.counts["score"] = round(blind.score, 4)
    yield Progress(done=1, total=1)


CHANCE = Kind(name="chance", make=make, functions=lambda metric: [metric])
