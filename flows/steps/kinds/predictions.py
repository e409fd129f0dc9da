"""Predictions: a checkpoint's answers to one split at one budget, and their score."""

import dataclasses
import json
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from model import files
from model.eval.config import EvalConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """One evaluation of one checkpoint."""

    benchmark: str
    budget: int
    decode: EvalConfig


def make(work: Work) -> Iterator[Progress]:
    """Evaluates the input `checkpoint` on the input `data`."""
    from model.eval.run import evaluate

    spec: EvaluateSpec = work.config
    yield from evaluate(
        work.places["checkpoint"],
        data=work.places["data"],
        budget=spec.budget,
        config=spec.decode,
        out=str(work.out),
    )
    result = json.loads((work.out / files.SCORE).read_text())
    work.counts.update(score=result["score"], num=result["num"])


PREDICTIONS = Kind(
    name="predictions",
    make=make,
    libraries=("pillow", "sentencepiece"),
    functions=lambda spec: [spec["decode"]["metric"]],
)
