"""Resolves the readers, metrics and connectors that a config names, users' own ones included."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.config.server_limits import check_function
from flows.steps.own_code import named
from infra.references import entry_points, file_reference, load_reference, module_reference
from model.connector.registry import KINDS, connector_class
from model.eval.metrics.registry import METRICS, get_metric
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import SOURCES

READERS, METRIC_POINTS, CONNECTORS = "parcel.readers", "parcel.metrics", "parcel.connectors"
"""Groups of entry points in which packages offer them."""

_BY_METHOD = ("connectors", "train_budgets", "start")
"""Keys of a study, and of its `stage2`, whose values are mappings by method."""


def reader_named(field: str, reader: str, known: Iterable[str] = SOURCES) -> str:
    """Returns a reader's name as steps use it: a name of the registry, or "module:name".

    Args:
      field: config key, for errors.
      reader: value of the key.
      known: names of the registry that are accepted.

    Raises:
      ValueError: naming the field, its value and what is accepted.
    """
    if reader in known:
        return reader
    name = _function(field, reader, READERS, known)
    try:
        inspect.signature(load_reference(name)).bind(Path(), "train")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{field}: {name} must be a function (folder, split) -> rows: {error}."
        ) from None
    return name


def corpus_named(field: str, reader: str) -> str | OwnSource:
    """Returns a corpus as steps use it: a name of the registry, or the source of a user's reader.

    Raises:
      ValueError: as `reader_named`.
    """
    named = reader_named(field, reader)
    return named if named in SOURCES else OwnSource(reader=named, name=named.partition(":")[2])


def metric_named(field: str, metric: str) -> str:
    """Returns a metric's name as steps use it: a name of the registry, or "module:name".

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


def connector_named(field: str, connector: str) -> str:
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
    name = _function(field, connector, CONNECTORS, KINDS, "Class")
    try:
        connector_class(name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    return name


def offered_connectors() -> list[str]:
    """Returns the connectors that a form offers: those of the registry and entry points."""
    return [*KINDS, *entry_points(CONNECTORS)]


def with_connectors_named(values: Any) -> Any:
    """Returns a study's plain values, with methods named as steps name connectors.

    The file of each user's class is recorded in `connector_files`, so that another process can
    import it. A class may be named as a method but not as a connector's `kind`: reading a config
    with such a `kind` would import it.

    Raises:
      ValueError: as `connector_named`.
    """
    if not isinstance(values, Mapping):
        return values
    variants = values.get("variants")
    variants = variants if isinstance(variants, Mapping) else {}
    files = values.get("connector_files") or {}
    files = dict(files) if isinstance(files, Mapping) else {}
    own: dict[str, str] = {}

    def renamed(field: str, method: Any) -> Any:
        if not isinstance(method, str) or method in KINDS or method in variants:
            return method
        if method not in own:
            where = f"{files[method]}:{method.partition(':')[2]}" if method in files else method
            own[method] = connector_named(field, where)
            if file := file_reference(where):
                files[own[method]] = str(file[0])
        return own[method]

    def check_kind(field: str, connector: Any) -> None:
        kind = connector.get("kind") if isinstance(connector, Mapping) else None
        if isinstance(kind, str) and kind not in KINDS:
            raise ValueError(
                f"{field}.kind must be left out, got {kind!r}; a class of your own is named in "
                f"`methods`."
            )

    def at(part: Mapping[str, Any], field: str) -> dict[str, Any]:
        changed = dict(part)
        for key, settings in (part.get("connectors") or {}).items():
            check_kind(f"{field}connectors.{key}", settings)
        if isinstance(methods := part.get("methods"), list | tuple):
            named = [renamed(f"{field}methods.{i}", method) for i, method in enumerate(methods)]
            changed["methods"] = named
        for key in _BY_METHOD:
            if isinstance(entries := part.get(key), Mapping):
                changed[key] = {renamed(f"{field}{key}", m): v for m, v in entries.items()}
        return changed

    if isinstance(model := values.get("model"), Mapping):
        check_kind("model.connector", model.get("connector"))
    changed = at(values, "")
    if variants:
        changed["variants"] = {
            name: {**entry, "of": renamed(f"variants.{name}.of", entry["of"])}
            if isinstance(entry, Mapping) and "of" in entry
            else entry
            for name, entry in variants.items()
        }
    if isinstance(stage2 := values.get("stage2"), Mapping):
        changed["stage2"] = at(stage2, "stage2.")
    return {**changed, "connector_files": files} if files else changed


def _function(
    field: str, reference: str, group: str, known: Iterable[str], what: str = "function"
) -> str:
    points = entry_points(group)
    if (
        reference not in points
        and not file_reference(reference)
        and not module_reference(reference)
    ):
        raise ValueError(
            f"{field} must be one of {', '.join([*known, *points])}, or a {what.lower()} as "
            f"file.py:{what} or module:{what}, got {reference!r}."
        )
    if reference not in points and reference not in points.values():
        check_function(field, reference)
    try:
        return named(reference, group)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
