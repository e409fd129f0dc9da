"""Studies and sweeps from the parameters of a form: a study's name, with overrides."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from flows.config.input_files import check_served_files
from flows.config.load import DEMO, apply_overrides, read_config
from flows.config.server_limits import (
    check_served,
    check_served_cluster,
    check_served_path,
    check_served_store,
    is_limited,
)
from flows.config.study import StudyConfig
from flows.config.validation import first_problem
from flows.lineage.runs import ended_run_records
from flows.study.retry_policy import failed_steps_of_last_run
from flows.study.sweep import Sweep, SweepRun
from flows.study.sweep_limits import SweepLimits
from infra.errors import ConfigError
from infra.store.redact import REDACTED
from infra.store.store import Store

DeployedStudies = Mapping[str, Mapping[str, Any]]
"""Name -> values of the studies that a deployment carries with it."""


_FORM_TYPES: Mapping[str, Any] = {
    "study": str,
    "store": str,
    "data_root": str,
    "overrides": tuple[str, ...],
    "given": dict[str, dict[str, Any]],
}
"""Field of a form -> its type; the others are checked where their values are made."""


def study_values(
    study: str, store: Store, deployed_studies: DeployedStudies | None = None
) -> Mapping[str, Any]:
    """Returns the values of a study, not checked yet.

    Args:
      study: "demo", a YAML file, a study of `deployed_studies`, or the name of one that ran in the
        store.
      store: the store with the records of earlier runs.
      deployed_studies: studies that the deployment carries, by name.

    Raises:
      ConfigError: if there is no such study, listing the known ones; or if the record of its run
        leaves credentials out.
    """
    # From the nearest to the farthest: what the deployment carries, the demo, a file, the store.
    if deployed_studies and study in deployed_studies:
        return deployed_studies[study]
    if study == "demo":
        return read_config(DEMO)
    if Path(study).suffix in (".yaml", ".yml"):
        return read_config(Path(study))
    # Of several runs with one name the newest: its record has the config as it ran.
    runs = [record for record in ended_run_records(store).values() if record["name"] == study]
    if not runs:
        names = sorted(
            {
                *(deployed_studies or ()),
                *(record["name"] for record in ended_run_records(store).values()),
            }
        )
        raise ConfigError(
            f"study must be demo, a YAML file, or the name of one that ran in {store.uri}, got "
            f"{study!r}. Known: {', '.join(names) or 'none yet'}."
        )
    config = max(runs, key=lambda record: record["finished"])["config"]
    if REDACTED in json.dumps(config):
        raise ConfigError(
            f"study must be the YAML file of {study}: the record of its run leaves credentials out."
        )
    return config


def study_of_form(
    study: str,
    store: Store,
    overrides: Sequence[str],
    data_root: str = "",
    deployed_studies: DeployedStudies | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
) -> StudyConfig:
    """Returns the study that a form asks for.

    Args:
      study: as in `study_values`.
      store: as in `study_values`.
      overrides: changes as "key.path=value" texts.
      data_root: folder with the raw data; "" leaves the study's.
      deployed_studies: as in `study_values`.
      steps: steps of the user's own, as plain values of `UserStep`; none leaves the study's.

    Raises:
      ConfigError: if there is no such study, or this process may not run it.
    """
    stated = {"data_root": data_root, "steps": list(steps)}
    words = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in stated.items() if value)]
    values = study_values(study, store, deployed_studies)
    config = apply_overrides(values, words, source=study)
    _check_limits(config, values, study, store)
    return config


def sweep_of_form(
    study: str,
    store: Store,
    overrides: Sequence[str],
    sweep: Sweep,
    deployed_studies: DeployedStudies | None = None,
) -> SweepRun:
    """Returns the sweep that a form asks for; arguments as in `study_of_form`.

    Raises:
      ConfigError: as `study_of_form`.
    """
    values = study_values(study, store, deployed_studies)
    sweep_run = SweepRun(
        values=values,
        source=study,
        overrides=tuple(overrides),
        sweep=sweep,
        store=store,
    )
    _check_limits(sweep_run.config, values, study, store)
    sweep_run.check()
    return sweep_run


def _check_limits(config: StudyConfig, values: Mapping[str, Any], study: str, store: Store) -> None:
    """Checks that this process may run a study, which a form changed from its stated `values`."""
    check_served(config, store.uri)
    if not is_limited():
        return
    try:
        stated = apply_overrides(values, (), source=study)
    except ConfigError:  # A study that only the form makes whole.
        stated = None
    check_served_files(config, stated)
    check_served_cluster(config.compute.ray_address, stated and stated.compute.ray_address)


def open_form_store(store: str) -> Store:
    """Opens the store that a form asks for.

    Raises:
      ConfigError: if this process may not use it, before anything of it is touched.
    """
    check_served_store(store)
    return Store(store)


def served_form_problem(parameters: Mapping[str, Any]) -> str | None:
    """Returns what `form_problem` does, on the server of `parcel serve`; elsewhere None.

    A server that `parcel run` started knows no limits, and its folder is the run's: there the run
    that the form starts says itself what is wrong.
    """
    return form_problem(parameters) if is_limited() else None


def form_problem(parameters: Mapping[str, Any]) -> str | None:
    """Returns the first fault in a form's parameters, in one line; None if there is none.

    A Prefect server checks only their types; our server also calls this before it creates a run.
    """
    stated = {name: value for name, value in parameters.items() if value is not None}
    # Checks that the run makes as well, without starting one: the form shows their message.
    try:
        for name, kind in _FORM_TYPES.items():
            if name in stated:
                check_values(kind, stated[name], name)
        store = open_form_store(stated.get("store", ".parcel"))
        arguments = stated.get("study", "demo"), store, stated.get("overrides", ())
        if "add" not in stated:
            config = study_of_form(
                *arguments,
                stated.get("data_root", ""),
                stated.get("given"),
                stated.get("steps", ()),
            )
            if stated.get("failed"):
                failed_steps_of_last_run(store, config.name)
            return None
        sweep_of_form(*arguments, check_values(Sweep, stated["add"], "add"), stated.get("given"))
        check_values(SweepLimits, stated.get("when", {}), "when")
    except (ConfigError, ValueError, OSError) as error:
        study = stated.get("study", "demo")
        return _without_contents(study, str(error)) if isinstance(study, str) else str(error)
    return None


def _without_contents(study: str, problem: str) -> str:
    """Returns a problem of a form's study without what a file holds that is no study.

    Whoever fills in the form could otherwise read any YAML file below the roots, by its errors.
    """
    if not is_limited() or Path(study).suffix not in (".yaml", ".yml"):
        return problem
    try:
        check_served_path("config", study)
        if not Path(study).is_file():
            return problem
    except ConfigError:  # The problem is this one: the file was not read.
        return problem
    try:
        apply_overrides(read_config(Path(study)), (), source=study)
    except (ConfigError, ValueError, OSError):
        return (
            f"{study} is no study by itself; `parcel run {study} --explain` says in a terminal "
            f"what is wrong with it."
        )
    return problem


def check_values(kind: type[Any], values: Any, source: str) -> Any:
    """Returns an instance of the dataclass `kind`, made from plain values.

    Raises:
      ConfigError: naming the field, the value and what is accepted.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_python(values)
    except pydantic.ValidationError as error:
        message = first_problem(error, kind).removeprefix("the config: ")
        raise ConfigError(f"{source}: {message}") from None
