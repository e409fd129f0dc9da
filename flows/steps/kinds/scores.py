"""Scores: the score of a checkpoint's answers to one split at one budget, and of every item.

Nothing is decoded, so that an edited metric, or another one, scores the same answers in seconds.

Files:
  score.json: the score and its parts
  items.parquet: a row per record: score, prediction, answers, digest of the source
"""

import dataclasses
from collections.abc import Iterator, Sequence

from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from model import files
from model.eval.metrics.registry import get_metric, metric_modules, metric_values
from model.eval.score_json import read_score


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """The score of one checkpoint's answers.

    Attributes:
      benchmark: the benchmark that was answered.
      budget: soft tokens per frame with which it was answered.
      metric: a metric's name in the registry.
    """

    benchmark: str
    budget: int
    metric: str

    def __post_init__(self) -> None:
        get_metric(self.metric)


def make(work: StepContext) -> Iterator[Progress]:
    """Scores the input `predictions`, which are answers to the input `data`."""
    yield from make_together([work])


def make_together(works: Sequence[StepContext]) -> Iterator[Progress]:
    """Scores the answers to one split at several budgets; the split is read once."""
    from model.eval.score import score

    first = works[0]
    decode_mask = None
    if "mask_codec" in first.inputs:
        from model.masks.codec import MaskCodec  # Which imports JAX; few metrics read masks.

        decode_mask = MaskCodec.load(first.inputs["mask_codec"] / files.MASK_CODEC).decode
    yield from score(
        {work.inputs["predictions"]: work.out for work in works},
        data=first.places["data"],
        metric=first.config.metric,
        decode_mask=decode_mask,
    )
    for work in works:
        result = read_score(work.out / files.SCORE)
        work.counts.update(score=result["score"], num=result["num"])


def _benchmark_and_metric(spec: ScoreSpec) -> tuple[str, str]:
    # Plain values: a spec looks its metric up, and a worker groups steps before it has users' code.
    return spec.benchmark, spec.metric


_METRICS = get_metric.__module__

SCORES = Kind(
    name="scores",
    make=make,
    spec=ScoreSpec,
    make_together=make_together,
    group_value=_benchmark_and_metric,
    separate_inputs=("predictions",),
    libraries=("pyarrow",),
    stop=(_METRICS,),
    also=lambda spec: metric_modules(spec["metric"]),
    entries=lambda spec: {_METRICS: metric_values(spec["metric"])},
    functions=lambda spec: [spec["metric"]],
    holds="scores",
    items="data",
    headline=lambda config, counts: f"@{config.budget} {counts['score']:.1f}",
    sample="scored on it",
)
