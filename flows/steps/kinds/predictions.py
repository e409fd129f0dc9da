"""Predictions: a checkpoint's answers to one split at one budget, and their score.

All budgets are evaluated together, so that images are decoded and pass the vision tower once.
"""

import dataclasses
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from model import files
from model.connector.registry import class_and_routing, connector_modules
from model.eval.config import EvalConfig
from model.eval.metrics.registry import metric_modules, metric_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """One evaluation of one checkpoint.

    Attributes:
      benchmark: the benchmark that it is scored on.
      budget: soft tokens per frame.
      decode: settings of decoding and scoring.
      connector: kind of the checkpoint's connector, since its code answers; "" in manifests of
        earlier versions, unless it is the user's own.
    """

    benchmark: str
    budget: int
    decode: EvalConfig
    connector: str = ""


def make(work: StepContext) -> Iterator[Progress]:
    """Evaluates the input `checkpoint` on the input `data`."""
    yield from make_together([work])


def make_together(works: Sequence[StepContext]) -> Iterator[Progress]:
    """Evaluates several budgets of one checkpoint on one split."""
    from model.eval.run import Answered, evaluate

    # All works have one checkpoint and one split; only the budget differs, and where answers go.
    first = works[0]
    seconds = yield from evaluate(
        first.places["checkpoint"],
        data=first.places["data"],
        config=first.config.decode,
        out={work.config.budget: str(work.out) for work in works},
        known=[Answered.from_json(piece) for piece in first.pieces],
    )
    # The time of an answer stands in the manifest alone, and in no file: it is never twice the
    # same.
    for work in works:
        result = json.loads((work.out / files.SCORE).read_text())
        work.counts.update(score=result["score"], num=result["num"])
        if work.config.budget in seconds:
            work.counts["answer_ms"] = round(1e3 * seconds[work.config.budget], 3)


def make_piece(
    works: Sequence[StepContext], piece: int, num_pieces: int
) -> Generator[Progress, None, bytes]:
    """Answers a piece of one split, at several budgets of one checkpoint."""
    from model.eval.run import answer

    # As `make_together`, but for some of the items: a piece has the answers, and no score yet.
    first = works[0]
    answered = yield from answer(
        first.places["checkpoint"],
        data=first.places["data"],
        config=first.config.decode,
        budgets=[work.config.budget for work in works],
        piece=piece,
        num_pieces=num_pieces,
    )
    return answered.to_json().encode()


def _config_without_budget(spec: EvaluateSpec) -> EvaluateSpec:
    return dataclasses.replace(spec, budget=0)


def _connector(spec: Mapping[str, Any]) -> str:
    return spec.get("connector", "")


def _metric(spec: Mapping[str, Any]) -> str:
    return spec["decode"]["metric"]


_CONNECTORS, _METRICS = connector_modules.__module__, metric_modules.__module__

PREDICTIONS = Kind(
    name="predictions",
    make=make,
    spec=EvaluateSpec,
    make_together=make_together,
    make_piece=make_piece,
    group_value=_config_without_budget,
    libraries=("pillow", "sentencepiece"),
    stop=(_CONNECTORS, _METRICS),
    also=lambda spec: (*connector_modules(_connector(spec)), *metric_modules(_metric(spec))),
    entries=lambda spec: {
        _CONNECTORS: class_and_routing(_connector(spec)),
        _METRICS: metric_values(_metric(spec)),
    },
    functions=lambda spec: [_metric(spec), _connector(spec)],
)
