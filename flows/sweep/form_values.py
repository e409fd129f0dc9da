"""Studies and sweeps from the parameters of a form: a study's name, with overrides."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from flows.config.server_limits import (
    check_served,
    check_served_cluster,
    check_served_path,
    check_served_store,
    is_limited,
    limited,
    limits_of,
    served_path,
)
from flows.config.validation import first_problem
from flows.graph.graph import Phase
from flows.lookup.runs import ended_run_records
from flows.run.limits import SweepLimits
from flows.run.retry_policy import failed_nodes_of_last_run
from flows.study.input_files import check_served_files
from flows.study.load import DEMO, apply_overrides, read_study_file
from flows.study.study import StudyConfig
from flows.sweep.sweep import Sweep, SweepRun
from infra.errors import ConfigError, did_you_mean, one_line_message
from infra.store.redact import REDACTED
from infra.store.store import Store
from infra.store.stored_folder import BUCKET_SCHEME
from infra.strict_adapter import strict_adapter

DeployedStudies = Mapping[str, Mapping[str, Any]]
"""Name -> values of the studies that a deployment carries with it."""


_FORM_TYPES: Mapping[str, Any] = {
    "study": str,
    "store": str,
    "data_root": str,
    "overrides": tuple[str, ...],
    "given": dict[str, dict[str, Any]],
    "steps": tuple[dict[str, Any], ...],
    "until": Phase,
    "rebuild": tuple[str, ...],
    "approve": bool,
    "failed": bool,
}
"""Field of a form -> its type; the others are checked where their values are made."""


def study_values(
    study: str, store: Store, deployed_studies: DeployedStudies | None = None
) -> Mapping[str, Any]:
    """Returns the values of a study, not checked yet.

    Args:
      study: "demo", a YAML file, a study of `deployed_studies`, or the name of one that ran in the
        store, for its newest run, or the full name of a run.
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
        return read_study_file(DEMO)
    if Path(study).suffix in (".yaml", ".yml"):
        return read_study_file(served_path(study))
    # Of several runs with one name the newest: its record has the config as it ran.
    records = ended_run_records(store).values()
    runs = [record for record in records if study in (record["name"], record["run"])]
    if not runs:
        names = sorted({*(deployed_studies or ()), *(record["name"] for record in records)})
        raise ConfigError(
            f"study must be demo, a YAML file, or the name of one that ran in {store.uri}, got "
            f"{study!r}{did_you_mean(study, ['demo', *names]) or '.'} Known: "
            f"{', '.join(names) or 'none yet'}."
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


def open_form_store(store: str, *, make: bool = True) -> Store:
    """Opens the store that a form asks for.

    Args:
      store: the store [URI].
      make: whether it is made where there is none; else it reads as an empty one.

    Raises:
      ConfigError: if this process may not use it, before anything of it is touched.
    """
    check_served_store(store)
    return Store(store, make=make)


def served_form_problem(deployment: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """Returns the problem of a form, see `form_problem`, within the limits of a deployment's runs.

    Args:
      deployment: the deployment as Prefect's API gives it.
      parameters: all parameters of a run.
    """
    with limited(limits_of(deployment)):
        stated = {name: value for name, value in parameters.items() if value is not None}
        try:
            check_form_types(stated)
            check_served_store(stated.get("store", ".parcel"))
            # The runs of a work pool may use a folder of other machines, and check the rest there.
            is_elsewhere = deployment.get("work_pool_name") and not store_here(
                stated.get("store", ".parcel")
            )
        except (ConfigError, ValueError, OSError) as error:
            return one_line_message(error)
        return None if is_elsewhere else form_problem(parameters)


def store_here(uri: str) -> Store | None:
    """Returns the store at a URI; None where this machine has no such folder or bucket."""
    # A store that is opened is made where it is missing, so a folder must be there already.
    if not uri.startswith(BUCKET_SCHEME) and not Path(uri).is_dir():
        return None
    try:
        return Store(uri, make=False)
    except (ValueError, OSError):
        return None


def form_problem(parameters: Mapping[str, Any]) -> str | None:
    """Returns the first fault in a form's parameters, in one line; None if there is none.

    A Prefect server checks only their types; our server also calls this before it creates a run.
    """
    stated = {name: value for name, value in parameters.items() if value is not None}
    # Checks that the run makes as well, without starting one: the form shows their message.
    try:
        check_form_types(stated)
        store = open_form_store(stated.get("store", ".parcel"), make=False)
        arguments = stated.get("study", "demo"), store, stated.get("overrides", ())
        if "add" not in stated:
            config = study_of_form(
                *arguments,
                stated.get("data_root", ""),
                stated.get("given"),
                stated.get("steps", ()),
            )
            if stated.get("failed"):
                failed_nodes_of_last_run(store, config.name)
            return None
        sweep_of_form(*arguments, check_values(Sweep, stated["add"], "add"), stated.get("given"))
        check_values(SweepLimits, stated.get("when", {}), "when")
    except (ConfigError, ValueError, OSError) as error:
        study = stated.get("study", "demo")
        problem = one_line_message(error)
        return _without_contents(study, problem) if isinstance(study, str) else problem
    return None


def check_form_types(parameters: Mapping[str, Any]) -> None:
    """Raises a `ConfigError` for the first of a form's parameters that is of a wrong type."""
    for name, kind in _FORM_TYPES.items():
        if name in parameters:
            check_values(kind, parameters[name], name)


def _without_contents(study: str, problem: str) -> str:
    """Returns a problem of a form's study without what a file holds that is no study.

    Whoever fills in the form could otherwise read any YAML file below the roots, by its errors.
    """
    if not is_limited() or Path(study).suffix not in (".yaml", ".yml"):
        return problem
    try:
        check_served_path("config", study)
        if not served_path(study).is_file():
            return problem
    except ConfigError:  # The problem is this one: the file was not read.
        return problem
    try:
        apply_overrides(read_study_file(served_path(study)), (), source=study)
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
        return strict_adapter(kind).validate_python(values)
    except pydantic.ValidationError as error:
        message = first_problem(error, kind).removeprefix("the config: ")
        raise ConfigError(f"{source}: {message}") from None
