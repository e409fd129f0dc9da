"""Readers and metrics of the user's own, as a config names them."""

import inspect
from collections.abc import Iterable
from pathlib import Path

from flows.steps.own_code import named
from flows.study.served import check_function
from infra.references import entry_points, in_file, in_module, load
from model.eval.metrics.registry import METRICS, get_metric
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import SOURCES

READERS, METRIC_POINTS = "parcel.readers", "parcel.metrics"
"""Groups of entry points."""


def reader_named(field: str, reader: str, known: Iterable[str] = SOURCES) -> str:
    """Returns a reader as steps name it: a name of the registry, or "module:name".

    Args:
      field: key of the config.
      reader: its value.
      known: names of the registry that may stand there.

    Raises:
      ValueError: naming the field, its value and what is accepted.
    """
    if reader in known:
        return reader
    name = _function(field, reader, READERS, known)
    try:
        inspect.signature(load(name)).bind(Path(), "train")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{field}: {name} must be a function (folder, split) -> rows: {error}."
        ) from None
    return name


def corpus_named(field: str, reader: str) -> str | OwnSource:
    """Returns a corpus as steps name it: a name of the registry, or what a function reads.

    Raises:
      ValueError: as `reader_named`.
    """
    named = reader_named(field, reader)
    return named if named in SOURCES else OwnSource(reader=named, name=named.partition(":")[2])


def metric_named(field: str, metric: str) -> str:
    """Returns a metric as steps name it: a name of the registry, or "module:name".

    Raises:
      ValueError: naming the field, its value and what is accepted; or if it cannot be called as a
        metric.
    """
    if metric in METRICS:
        return metric
    name = _function(field, metric, METRIC_POINTS, METRICS)
    try:
        get_metric(name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    return name


def _function(field: str, reference: str, group: str, known: Iterable[str]) -> str:
    points = entry_points(group)
    if reference not in points and not in_file(reference) and not in_module(reference):
        raise ValueError(
            f"{field} must be one of {', '.join([*known, *points])}, or a function as "
            f"file.py:function or module:function, got {reference!r}."
        )
    if reference not in points:
        check_function(field, reference)
    try:
        return named(reference, group)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
