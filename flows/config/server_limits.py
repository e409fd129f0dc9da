"""Limits on runs started from a form: which store, files and cluster they may use, which code."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from infra.errors import ConfigError
from infra.store.store import canonical_uri
from infra.store.stored_folder import BUCKET_SCHEME
from pipelines.prepare.config import PrepareConfig

_STORE, _RUNNER = "PARCEL_SERVED_STORE", "PARCEL_SERVED_RUNNER"
_ROOTS = "PARCEL_SERVED_ROOTS"


def limit_variables(
    store: str, *, any_store: bool, any_runner: bool, roots: Sequence[str | Path] = ()
) -> dict[str, str]:
    """Returns the environment variables that limit the studies of a process.

    Args:
      store: the store that they may use [URI].
      any_store: whether they may use other stores, too.
      any_runner: whether they may name a Beam runner and its options, a launcher's command, and
        functions by file or module.
      roots: folders, and addresses in buckets, below which what they may name lies; none allows
        all.
    """
    variables = {
        _STORE: "" if any_store else canonical_uri(store),
        _RUNNER: "any" if any_runner else "own",
    }
    if roots:
        variables[_ROOTS] = json.dumps([_whole(str(root)) for root in roots])
    return variables


def is_limited() -> bool:
    """Returns whether this process runs studies for a form, within limits."""
    return bool(os.environ.get(_RUNNER))


def check_carried_studies(studies: object) -> None:
    """Checks that the studies which a run's parameters carry are a deployment's.

    Raises:
      ConfigError: if they cannot be: those of `parcel serve` carry none.
    """
    if studies and os.environ.get(_ROOTS):
        raise ConfigError("given must be left out where a run is started from the UI.")


def check_served(config: Any, store: str) -> None:
    """Checks that a study keeps to the limits of this process; `parcel run` has no limits.

    Args:
      config: the study.
      store: the study's store [URI].

    Raises:
      ConfigError: if it breaks a limit.
    """
    check_served_store(store)
    if os.environ.get(_RUNNER) == "own":
        check_commands(config)


def check_commands(config: Any) -> None:
    """Checks that a study starts nothing but this project's own code.

    Raises:
      ConfigError: if it names a Beam runner, or the command of a launcher.
    """
    # Whoever may fill in a form could otherwise run any program here: through a launcher's command,
    # or through the options of a Beam runner, which may name one, too.
    launcher = config.compute.launcher
    if launcher is not None and launcher.partition(" ")[0] != "ray":
        raise ConfigError(
            f"compute.launcher must be ray or left out where a run is started from the UI, got "
            f"{launcher!r}; `--any-runner` of `parcel serve` and `parcel deploy` takes any command."
        )
    default = PrepareConfig()
    # Compared with the defaults, wherever a config holds these settings, so no place is missed.
    for where, prepare in _prepare_configs(config):
        for name in ("runner", "runner_options"):
            value, default_value = getattr(prepare, name), getattr(default, name)
            if value != default_value:
                raise ConfigError(
                    f"{where}.{name} must be {default_value!r} where a run is started from the UI, "
                    f"got {value!r}; `--any-runner` of `parcel serve` and `parcel deploy` takes "
                    f"any."
                )


def check_served_store(store: str) -> None:
    """Checks that this process may use a store.

    Raises:
      ConfigError: if it may not.
    """
    served_uri = os.environ.get(_STORE)
    if served_uri and canonical_uri(store) != served_uri:
        raise ConfigError(
            f"store must be the one served, {served_uri}, got {store!r}; `--any-store` of "
            f"`parcel serve` and `parcel deploy` takes any."
        )


def check_served_path(field: str, path: str | Path) -> None:
    """Checks that this process may read a file or a folder that its study names.

    Raises:
      ConfigError: if it lies below none of the roots.
    """
    roots: list[str] = json.loads(os.environ.get(_ROOTS, "[]"))
    if not roots:
        return
    if "\0" in str(path):
        raise ConfigError(f"{field} must be a path, got {str(path)!r}.")
    place = PurePosixPath(_whole(str(path)))
    if not any(place.is_relative_to(root) for root in roots):
        raise ConfigError(
            f"{field} must lie below {' or '.join(roots)} where a run is started from the UI, got "
            f"{str(path)!r}; `--root DIR` of `parcel serve` adds a folder, here or in a bucket."
        )


def _whole(path: str) -> str:
    """Returns a path, or an address in a bucket, out of which neither `..` nor a link leads."""
    if path.startswith(BUCKET_SCHEME):
        scheme, separator, place = path.partition("://")
        return scheme + separator + os.path.normpath(f"/{place}").lstrip("/")
    return os.path.realpath(path)  # `resolve` raises where a link leads to itself.


def check_served_cluster(address: str | None, stated: str | None) -> None:
    """Checks that this process may send its work to a cluster.

    Args:
      address: `compute.ray_address` of the study that is to run.
      stated: that of the study as its file states it, before the form's changes.

    Raises:
      ConfigError: if the form names another one: code, inputs and results would go there.
    """
    if os.environ.get(_RUNNER) == "own" and address not in (None, stated):
        raise ConfigError(
            f"compute.ray_address must be {stated or 'left out'}, as in the study, where a run is "
            f"started from the UI, got {address!r}; `--any-runner` of `parcel serve` and `parcel "
            f"deploy` takes any."
        )


def check_served_function(field: str, reference: str) -> None:
    """Checks that this process may run a function that its study names.

    Raises:
      ConfigError: if it may not.
    """
    if os.environ.get(_RUNNER) == "own":
        raise ConfigError(
            f"{field} must be in the registry, or an entry point, where a run is started from the "
            f"UI, got {reference!r}; `--any-runner` of `parcel serve` and `parcel deploy` takes "
            f"any."
        )


def _prepare_configs(value: Any, where: str = "config") -> Iterator[tuple[str, PrepareConfig]]:
    """Yields (key path, value) of every `PrepareConfig` in a config."""
    if isinstance(value, PrepareConfig):
        yield where, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _prepare_configs(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _prepare_configs(inner, f"{where}.{key}")
    elif isinstance(value, tuple):
        for i, inner in enumerate(value):
            yield from _prepare_configs(inner, f"{where}.{i}")
