"""Predictions: a checkpoint's answers to one split at one budget, and their score.

Those of all budgets are made together: the images are decoded, and seen by the vision tower, once.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence

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
    yield from make_together([work])


def make_together(works: Sequence[Work]) -> Iterator[Progress]:
    """Evaluates several budgets of one checkpoint on one split."""
    from model.eval.run import evaluate

    first = works[0]
    yield from evaluate(
        first.places["checkpoint"],
        data=first.places["data"],
        config=first.config.decode,
        out={work.config.budget: str(work.out) for work in works},
    )
    for work in works:
        result = json.loads((work.out / files.SCORE).read_text())
        work.counts.update(score=result["score"], num=result["num"])


def _but_budget(spec: EvaluateSpec) -> EvaluateSpec:
    return dataclasses.replace(spec, budget=0)


PREDICTIONS = Kind(
    name="predictions",
    make=make,
    make_together=make_together,
    alike=_but_budget,
    libraries=("pillow", "sentencepiece"),
    functions=lambda spec: [spec["decode"]["metric"]],
)
