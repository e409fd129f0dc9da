"""Limits on what forms ask for: which store, files and cluster it may use, and which code.

They hold wherever parameters that came through a server are read, be it to run, check or show them.
The limits of `parcel serve` are its runs' variables, and lie beside the server's database for all
others who read it; those of `parcel deploy` are in the deployment.

    a run of the form                           variables of its environment
    a form, a schedule: serve's deployment      <store>/prefect/limits.json
    a form, a schedule: deploy's deployment     its job variables
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from infra.errors import ConfigError
from infra.prefect.private import open_private
from infra.store.store import canonical_uri
from infra.store.stored_folder import BUCKET_SCHEME
from pipelines.prepare.config import PrepareConfig

_STORE, _RUNNER = "PARCEL_SERVED_STORE", "PARCEL_SERVED_RUNNER"
_ROOTS, _FOLDER = "PARCEL_SERVED_ROOTS", "PARCEL_SERVED_FOLDER"
_FILE = "limits.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What studies that a form asks for may use.

    Attributes:
      store: the store that they may use [URI]; "" allows any.
      any_runner: whether they may name a Beam runner and its options, a launcher's command, and
        functions by file or module.
      roots: folders, and addresses in buckets, below which what they may name lies; none allows
        all.
      folder: folder in which their runs start, where relative paths begin; "" is this process's.
    """

    store: str
    any_runner: bool
    roots: tuple[str, ...] = ()
    folder: str = ""

    @classmethod
    def of_variables(
        cls, variables: Mapping[str, str], narrowest: "Limits | None" = None
    ) -> "Limits | None":
        """Returns the limits that variables of an environment state; None if they state none.

        Args:
          variables: name -> value of the variables.
          narrowest: limits that hold where they state only some; None allows all there.

        Raises:
          ValueError: if they are not those of `limit_variables`.
        """
        if not variables.get(_RUNNER):
            return None
        store = variables.get(_STORE, narrowest.store if narrowest else "")
        folder = variables.get(_FOLDER, "")
        roots = narrowest.roots if narrowest else ()
        if _ROOTS in variables:
            roots = json.loads(variables[_ROOTS])
            if not isinstance(roots, list) or not roots:
                raise ValueError(f"{_ROOTS} must be a list of folders, got {roots!r:.80}.")
        if not all(isinstance(text, str) for text in (store, folder, *roots)):
            raise ValueError(f"{_STORE}, {_FOLDER} and {_ROOTS} must be texts.")
        return cls(
            store=store,
            any_runner=variables[_RUNNER] == "any",
            roots=tuple(roots),
            folder=folder,
        )


_LIMITS: ContextVar[Limits | None] = ContextVar("limits", default=None)


def limit_variables(
    store: str, *, any_store: bool, any_runner: bool, roots: Sequence[str | Path] = ()
) -> dict[str, str]:
    """Returns the environment variables that limit the studies of a process.

    Args:
      store: the store that they may use [URI].
      any_store: whether they may use other stores, too.
      any_runner: as in `Limits`.
      roots: as in `Limits`.
    """
    variables = {
        _STORE: "" if any_store else canonical_uri(store),
        _RUNNER: "any" if any_runner else "own",
    }
    if roots:
        variables[_ROOTS] = json.dumps([_resolve_served_path(str(root)) for root in roots])
    return variables


@contextlib.contextmanager
def limited(limits: Limits | None) -> Iterator[None]:
    """Has what is read of studies within keep to limits; None leaves those that hold already."""
    token = _LIMITS.set(limits or _LIMITS.get())
    try:
        yield
    finally:
        _LIMITS.reset(token)


def current_limits() -> Limits | None:
    """Returns the limits that hold here; None where the reader's own studies are read."""
    return _LIMITS.get() or Limits.of_variables(os.environ)


def is_limited() -> bool:
    """Returns whether studies are read for a form, within limits."""
    return current_limits() is not None


def save_limits(store: Path, variables: Mapping[str, str]) -> None:
    """Writes the limits of `parcel serve` down, for all who read the server's database.

    Args:
      store: the store's folder on this machine.
      variables: what `limit_variables` returned.
    """
    path = store / "prefect" / _FILE
    partial = path.with_suffix(".partial")
    with open_private(partial, "w") as file:
        json.dump({**variables, _FOLDER: str(Path.cwd())}, file)
    partial.replace(path)


def limits_of(deployment: Mapping[str, Any]) -> Limits:
    """Returns the limits of the runs of a deployment; the narrowest ones if none are stated.

    Args:
      deployment: a deployment as Prefect's API gives it, of the server whose folder is
        `PREFECT_HOME`.
    """
    store = str((deployment.get("parameters") or {}).get("store", ".parcel"))
    narrowest = Limits(
        store=_canonical_store_uri(store), any_runner=False, roots=(_resolve_served_path(store),)
    )
    served = _saved_limits(narrowest)
    if not deployment.get("work_pool_name"):
        return served or narrowest
    # The run is told its own by variables. Its files may lie on another machine, so it states no
    # roots; but on this one the server's hold.
    stated = (deployment.get("job_variables") or {}).get("env") or {}
    narrowest = dataclasses.replace(narrowest, roots=())
    own = _limits_in(stated, narrowest) or narrowest
    return dataclasses.replace(own, roots=own.roots or (served.roots if served else ()))


def _saved_limits(narrowest: Limits) -> Limits | None:
    home = os.environ.get("PREFECT_HOME")
    try:
        stated = json.loads(Path(home or "", _FILE).read_text()) if home else None
    except (OSError, ValueError):
        return None  # No `parcel serve` so far, or not since this file is written.
    return _limits_in(stated, narrowest)


def _limits_in(stated: Any, narrowest: Limits) -> Limits | None:
    """Returns the limits that somebody's variables state; None if they are none, or broken."""
    try:
        return Limits.of_variables(stated, narrowest)
    except (ValueError, TypeError, AttributeError):
        return None


def _canonical_store_uri(store: str) -> str:
    try:
        return canonical_uri(store)
    except ValueError:
        return store


def check_carried_studies(studies: object) -> None:
    """Checks that the studies which a run's parameters carry are a deployment's.

    Raises:
      ConfigError: if they cannot be: those of `parcel serve` carry none.
    """
    limits = current_limits()
    if studies and limits and limits.roots:
        raise ConfigError("given must be left out where a run is started from the UI.")


def check_served(config: Any, store: str) -> None:
    """Checks that a study keeps to the limits that hold here; those of `parcel run` have none.

    Args:
      config: the study.
      store: the study's store [URI].

    Raises:
      ConfigError: if it breaks a limit.
    """
    check_served_store(store)
    if _is_own_code():
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
    """Checks that a form may use a store.

    Raises:
      ConfigError: if it may not.
    """
    limits = current_limits()
    served_uri = limits.store if limits else ""
    if served_uri and canonical_uri(store) != served_uri:
        raise ConfigError(
            f"store must be the one served, {served_uri}, got {store!r}; `--any-store` of "
            f"`parcel serve` and `parcel deploy` takes any."
        )


def check_served_path(field: str, path: str | Path) -> None:
    """Checks that a form may read a file or a folder that its study names.

    Raises:
      ConfigError: if it lies below none of the roots.
    """
    limits = current_limits()
    if limits is None or not limits.roots:
        return
    if "\0" in str(path):
        raise ConfigError(f"{field} must be a path, got {str(path)!r}.")
    place = PurePosixPath(_resolve_served_path(str(path)))
    if not any(place.is_relative_to(root) for root in limits.roots):
        raise ConfigError(
            f"{field} must lie below {' or '.join(limits.roots)} where a run is started from the "
            f"UI, got {str(path)!r}; `--root DIR` of `parcel serve` adds a folder, here or in a "
            f"bucket."
        )


def _resolve_served_path(path: str) -> str:
    """Returns a path, or an address in a bucket, out of which neither `..` nor a link leads."""
    if path.startswith(BUCKET_SCHEME):
        scheme, separator, place = path.partition("://")
        return scheme + separator + os.path.normpath(f"/{place}").lstrip("/")
    # `resolve` raises where a link leads to itself.
    return os.path.realpath(served_path(path))


def served_path(path: str | Path) -> Path:
    """Returns a path as a run finds it, which may start in another folder than this process."""
    limits = current_limits()
    return Path(limits.folder if limits else "", path)


def _is_own_code() -> bool:
    limits = current_limits()
    return limits is not None and not limits.any_runner


def check_served_cluster(address: str | None, stated: str | None) -> None:
    """Checks that a form may send its work to a cluster.

    Args:
      address: `compute.ray_address` of the study that is to run.
      stated: that of the study as its file states it, before the form's changes.

    Raises:
      ConfigError: if the form names another one: code, inputs and results would go there.
    """
    if _is_own_code() and address not in (None, stated):
        raise ConfigError(
            f"compute.ray_address must be {stated or 'left out'}, as in the study, where a run is "
            f"started from the UI, got {address!r}; `--any-runner` of `parcel serve` and `parcel "
            f"deploy` takes any."
        )


def check_served_function(field: str, reference: str) -> None:
    """Checks that a form may run a function that its study names.

    Raises:
      ConfigError: if it may not.
    """
    if _is_own_code():
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
