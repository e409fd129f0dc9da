"""Resolves the readers, metrics, connectors and steps that a config names, users' own included."""

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from flows.config.server_limits import check_served_function
from flows.steps.kinds.user_step import step_class
from flows.steps.user_code import canonical_reference
from infra.errors import did_you_mean
from infra.references import entry_points, file_reference, load_reference, module_reference
from model.connector.registry import KINDS, connector_class
from model.eval.metrics.registry import METRICS, get_metric
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import SOURCES

READERS, METRIC_POINTS, CONNECTORS = "parcel.readers", "parcel.metrics", "parcel.connectors"
STEP_POINTS = "parcel.steps"
"""Groups of entry points in which packages offer them."""


def reader_reference(field: str, reader: str, registered: Iterable[str] = SOURCES) -> str:
    """Returns a reader's name as steps use it: a name of the registry, or "module:name".

    Args:
      field: config key, for errors.
      reader: value of the key.
      registered: names of the registry that are accepted.

    Raises:
      ValueError: naming the field, its value and what is accepted.
    """
    if reader in registered:
        return reader
    name = _function_reference(field, reader, READERS, registered)
    try:
        inspect.signature(load_reference(name)).bind(Path(), "train")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{field}: {name} must be a function (folder, split) -> rows: {error}."
        ) from None
    return name


def corpus_reference(field: str, reader: str) -> str | OwnSource:
    """Returns a corpus as steps use it: a name of the registry, or the source of a user's reader.

    Raises:
      ValueError: as `reader_reference`.
    """
    name = reader_reference(field, reader)
    return name if name in SOURCES else OwnSource(reader=name, name=name.partition(":")[2])


def metric_reference(field: str, metric: str) -> str:
    """Returns a metric's name as steps use it: a name of the registry, or "module:name".

    Raises:
      ValueError: naming the field, its value and what is accepted; or if it cannot be called as a
        metric.
    """
    if metric in METRICS:
        return metric
    name = _function_reference(field, metric, METRIC_POINTS, METRICS)
    try:
        get_metric(name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    return name


def connector_reference(field: str, connector: str) -> str:
    """Returns a connector's name as steps use it: a name of the registry, or "module:Class".

    Raises:
      ValueError: naming the field, its value and what is accepted; or if the class does not have
        what `model.connector.base` asks of it.
    """
    if connector in KINDS:
        return connector
    if "jax" not in sys.modules:
        # Importing the class imports JAX. This process only plans, and must not occupy accelerators
        # that the training processes need.
        import jax

        jax.config.update("jax_platforms", "cpu")
    name = _function_reference(field, connector, CONNECTORS, KINDS, "Class")
    try:
        connector_class(name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}{_source_line_of_reference(name)}") from None
    return name


def step_reference(field: str, step: str) -> str:
    """Returns the class of a user's step as steps name it, "module:Class".

    Raises:
      ValueError: naming the field, its value and what is accepted; or if the class is no step.
    """
    name = _function_reference(field, step, STEP_POINTS, (), "Class")
    try:
        step_class(name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    return name


def offered_connectors() -> list[str]:
    """Returns the connectors that a form offers: those of the registry and entry points."""
    return [*KINDS, *entry_points(CONNECTORS)]


def _source_line_of_reference(reference: str) -> str:
    """Returns where a class begins, as " (/home/me/mine.py:12)"; "" if it cannot be told."""
    try:
        found = load_reference(reference)
        return f" ({inspect.getsourcefile(found)}:{inspect.getsourcelines(found)[1]})"
    except (OSError, TypeError, ValueError):
        return ""


def _function_reference(
    field: str, reference: str, group: str, registered: Iterable[str], what: str = "function"
) -> str:
    # Three ways to name code; what is none of them is most likely a misspelt name of the registry.
    points = entry_points(group)
    if (
        reference not in points
        and not file_reference(reference)
        and not module_reference(reference)
    ):
        names = [*registered, *points]
        one_of = f"one of {', '.join(names)}, or " if names else ""
        raise ValueError(
            f"{field} must be {one_of}a {what.lower()} as file.py:{what} or module:{what}, got "
            f"{reference!r}{did_you_mean(reference, names) or '.'}"
        )
    # An entry point was installed by whoever runs this process, so a form may name it.
    if reference not in points and reference not in points.values():
        check_served_function(field, reference)
    try:
        return canonical_reference(reference, group)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
