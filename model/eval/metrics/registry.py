"""The table of metrics by name.

This module is no part of a step's code, which goes on with the metric that the step's config names:
its modules, and the values of its entry.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Protocol

from infra.errors import did_you_mean, raised_at
from infra.references import load_reference, module_reference
from model.eval.metrics.anls import anls, anls_big_vision
from model.eval.metrics.bleu import bleu, summarize_bleu
from model.eval.metrics.choice import mmbench, mmmu, summarize_mmbench
from model.eval.metrics.cider import Documents, cider
from model.eval.metrics.gqa import gqa_llava
from model.eval.metrics.miou import miou
from model.eval.metrics.mme import mme, summarize_mme
from model.eval.metrics.nlvr import nlvr
from model.eval.metrics.pope import pope, pope_big_vision
from model.eval.metrics.relaxed_accuracy import relaxed_accuracy
from model.eval.metrics.rouge import rouge_l
from model.eval.metrics.rsvqa import rsvqa
from model.eval.metrics.science_qa import science_qa
from model.eval.metrics.scores import Fields, ItemScore, PartScore, Sums, summarize
from model.eval.metrics.tallyqa import tallyqa
from model.eval.metrics.vqa import vqa, vqa_lower
from model.eval.metrics.vqav2 import vqav2


class CorpusStatistics(Protocol):
    """Facts about all records that a metric needs before it scores one; they merge over parts."""

    def add(self, fields: Fields) -> None:
        """Counts one record."""

    def merge(self, other: Any) -> None:
        """Counts the records of another part of the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
      score: (prediction, fields of the record) -> its score, as a number or an `ItemScore`.
      by: fields that divide the data into parts, which are also scored separately.
      mean_over: one of these fields: the score is then the unweighted mean over its parts.
      summarize: sums of items -> "score" and further measures, by name.
      corpus: makes the statistics that `score` reads from the field "corpus"; None needs none.
      reads_masks: whether fields must hold "decode_mask", the mask codec's decoder.
    """

    score: Callable[[str, Fields], float | ItemScore]
    by: tuple[str, ...] = ()
    mean_over: str = ""
    summarize: Callable[[Sums], dict[str, PartScore]] = summarize
    corpus: Callable[[], CorpusStatistics] | None = None
    reads_masks: bool = False


METRICS: dict[str, Metric] = {
    "exact_match": Metric(score=vqa),
    "vqa": Metric(score=vqa, by=("lang", "question_type"), mean_over="lang"),
    "vqa_lower": Metric(score=vqa_lower, by=("lang", "question_type"), mean_over="lang"),
    "gqa_llava": Metric(score=gqa_llava, by=("lang", "question_type"), mean_over="lang"),
    "vqav2": Metric(score=vqav2, by=("answer_type", "question_type")),
    "anls": Metric(score=anls),
    "anls_big_vision": Metric(score=anls_big_vision),
    "relaxed_accuracy": Metric(score=relaxed_accuracy, by=("kind",)),
    "tallyqa": Metric(score=tallyqa, by=("kind",)),
    "cider": Metric(score=cider, by=("lang",), mean_over="lang", corpus=Documents),
    "bleu": Metric(score=bleu, by=("lang",), mean_over="lang", summarize=summarize_bleu),
    "rouge_l": Metric(score=rouge_l, by=("lang",), mean_over="lang"),
    "science_qa": Metric(score=science_qa),
    "rsvqa": Metric(score=rsvqa, by=("question_type",), mean_over="question_type"),
    "nlvr": Metric(score=nlvr, by=("lang",), mean_over="lang"),
    "pope": Metric(score=pope, by=("kind",), mean_over="kind"),
    "pope_big_vision": Metric(score=pope_big_vision, by=("kind",), mean_over="kind"),
    "mme": Metric(score=mme, by=("task",), mean_over="task", summarize=summarize_mme),
    "mmbench": Metric(score=mmbench, by=("category",), summarize=summarize_mmbench),
    "mmmu": Metric(score=mmmu, by=("subject",)),
    "miou": Metric(score=miou, reads_masks=True),
}


def metric_modules(name: str) -> tuple[str, ...]:
    """Returns the modules of a metric of this registry; none for a user's own."""
    functions = filter(callable, vars(METRICS[name]).values()) if name in METRICS else ()
    return tuple(sorted({function.__module__ for function in functions}))


def metric_values(name: str) -> dict[str, Any]:
    """Returns a metric's entry in plain values, functions by name; {} for a user's own."""
    fields = vars(METRICS[name]).items() if name in METRICS else ()
    return {
        key: f"{value.__module__}:{value.__qualname__}" if callable(value) else value
        for key, value in fields
    }


def get_metric(name: str) -> Metric:
    """Returns a metric of this registry, or a user's own metric, given as "module:name".

    A user's own metric is a function (prediction, fields of the record) -> score, or a `Metric`.

    Raises:
      ValueError: if no metric has that name, with a list of the names; or if the user's function
        does not take these arguments.
    """
    if name in METRICS:
        return METRICS[name]
    if module_reference(name) is None:
        raise ValueError(
            f"metric must be one of {', '.join(METRICS)}, or a function of your own as "
            f"module:function, got {name!r}{did_you_mean(name, METRICS) or '.'}"
        )
    return _user_metric(name)


@functools.cache
def _user_metric(name: str) -> Metric:
    function = load_reference(name)
    metric = function if isinstance(function, Metric) else Metric(score=function)
    # Bound as it will be called: a wrong signature shows here, before anything is decoded.
    try:
        inspect.signature(metric.score).bind("prediction", {})
    except (TypeError, ValueError) as error:  # ValueError: a C function may have no signature.
        raise ValueError(
            f"metric {name} must be a function (prediction, fields) -> score in 0..1: {error}."
        ) from None
    return dataclasses.replace(
        metric, score=functools.partial(_call_user_metric, name, metric.score)
    )


def _call_user_metric(
    name: str, score: Callable[[str, Fields], float | ItemScore], prediction: str, fields: Fields
) -> float | ItemScore:
    """Returns a score of the user's own metric.

    Raises:
      ValueError: if the function fails or returns something else; it names the record.
    """
    # The user's function may raise anything. The error names the record and its fields: most often
    # one that the function reads is not among them.
    try:
        item = score(prediction, fields)
    except Exception as error:
        message = f"lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        # Where their code raised, or called what raised: the innermost line of the metric's file.
        own = score.__code__.co_filename if inspect.isfunction(score) else ""
        raise ValueError(
            f"your metric {name} fails at {raised_at(error, own)} for {fields.get('id')!r}: "
            f"{type(error).__name__}: {message}; the record has {', '.join(sorted(fields))}."
        ) from error
    # Sums of scores are exact fractions, and neither NaN nor infinity is one: refused at its
    # record.
    value = item.score if isinstance(item, ItemScore) else item
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(
            f"your metric {name} must return a finite number, got {value!r:.60} for "
            f"{fields.get('id')!r}."
        )
    return item if isinstance(item, ItemScore) else float(value)
