"""`parcel deploy`: registers a study with a work pool of a server."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

import pydantic
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.schedules import CronSchedule

from flows.config.references import CONNECTORS
from flows.config.server_limits import check_commands, limit_variables
from flows.study.study import StudyConfig
from flows.sweep.form import deployments_of
from flows.sweep.schedule import cron_schedule
from infra.errors import ConfigError
from infra.prefect.alerts import Alerts, register_alerts
from infra.prefect.api import named_server
from infra.prefect.deployed import register
from infra.prefect.pools import PoolType, check_variables, find_pool, make_pool
from infra.prefect.server import ui_of
from infra.references import entry_points, file_reference, module_reference
from infra.store.store import canonical_uri
from infra.store.stored_folder import BUCKET_SCHEME
from model.connector.registry import KINDS

_RUNS = {
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "reschedule",
}
"""Environment of every run: it waits for an absent server eight minutes, not one; and a run whose
container is told to end, as before a preemption, awaits the pool's worker again. Without this,
Prefect's supervisor would die of the signal and never pass it on to the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeploymentTarget:
    """Where and how the runs of a deployment are started.

    Attributes:
      store: store of every run, a folder or a bucket's prefix such as gs://bucket/prefix.
      pool: name of the work pool.
      kind: type of the pool; None takes an existing pool's, and makes a new pool a process pool.
      image: container image of every run; None in a process pool.
      variables: further job variables of the pool.
      environment: further environment variables of every run.
      cron: schedule on which the study runs; None leaves existing schedules as they are.
      timezone: time zone of `cron`.
      any_store: whether forms may name another store.
      any_runner: whether runs may name a Beam runner, a launcher, and functions by file or module.
    """

    store: str
    pool: str
    kind: PoolType | None = None
    image: str | None = None
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cron: str | None = None
    timezone: str = "UTC"
    any_store: bool = False
    any_runner: bool = False


def deploy_study(
    config: StudyConfig, target: DeploymentTarget, alerts: Alerts | None = None
) -> Iterator[str]:
    """Registers a study as deployments `study/NAME` and `sweep/NAME`; yields lines on what changed.

    Args:
      config: the study, which fills in the forms and is what the schedule runs.
      target: where and how its runs are started.
      alerts: alerts about the runs; None leaves existing alerts as they are.

    Raises:
      ConfigError: if no server answers, or it or the pool cannot take the deployment.
    """
    # What this machine alone can tell is checked before a server is asked.
    store = _pool_store(target.store)
    _check_paths(config)
    times = None if target.cron is None else cron_schedule(target.cron, target.timezone)
    with named_server() as client:
        yield from _register_deployments(client, config, target, store, times, alerts or Alerts())


def _register_deployments(
    client: SyncPrefectClient,
    config: StudyConfig,
    target: DeploymentTarget,
    store: str,
    times: CronSchedule | None,
    alerts: Alerts,
) -> Iterator[str]:
    existing_pool = find_pool(client, target.pool, target.kind)
    kind = cast(PoolType, existing_pool.type) if existing_pool else target.kind or "process"
    # What the runs may use is checked before anything changes on the server.
    _check_pool(kind, target, store)
    check_code(kind, config, target)
    if not target.any_runner:
        check_commands(config)
    pool = existing_pool or make_pool(client, target.pool, kind)
    yield f"work pool {pool.name}: {'there' if existing_pool else 'new'}, {kind}"
    # Forms are open to whoever reaches the server. The limits travel as variables of the run's
    # environment, and the run checks itself against them; a form has no field for these.
    allowed = limit_variables(store, any_store=target.any_store, any_runner=target.any_runner)
    variables = {**target.variables, "env": {**_RUNS, **allowed, **target.environment}}
    if target.image is not None:
        variables["image"] = target.image
    check_variables(pool, variables)
    values = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    # Two forms, for two ways to start a run; only the study runs by `--cron`, since a sweep's
    # schedule has a sweep to go with it (`schedule_sweep`).
    for deployment in deployments_of(
        config.name,
        store,
        name=config.name,
        any_store=target.any_store,
        deployed_studies={config.name: values},
        work_pool_name=pool.name,
        job_variables=variables,
    ):
        deployment_times = times if deployment.flow_name == "study" else None
        row, changed = register(client, deployment, deployment_times)
        yield f"deployment {deployment.full_name}: {', '.join(changed) or 'unchanged'}"
        for name, how in register_alerts(client, deployment.full_name, row, alerts).items():
            yield f"alert {name}: {how}"
        yield f"UI: {ui_of(str(client.api_url))}/deployments/deployment/{row}"
    yield f"start a worker: prefect worker start --pool {pool.name}"
    yield f"and beside the server: parcel serve --watch --store {store}"


def _pool_store(store: str) -> str:
    try:
        return canonical_uri(store)
    except ValueError as error:
        raise ConfigError(f"--store: {error}") from None


def _check_paths(config: StudyConfig) -> None:
    """Checks that every path is absolute, since runs start in another folder."""
    paths = {"data_root": config.data_root, **config.input_paths}
    for key, path in paths.items():
        if path is not None and "://" not in path and not PurePosixPath(path).is_absolute():
            raise ConfigError(
                f"{key} must be an absolute path in a deployment, whose runs start in another "
                f"folder, got {path!r}."
            )


def _check_pool(kind: str, target: DeploymentTarget, store: str) -> None:
    # A process runs on the worker's machine, with its packages and its folders. A container has
    # neither, so it needs an image and a store that it can reach.
    if kind == "process":
        if target.image is not None:
            raise ConfigError(
                f"--image is of docker and kubernetes pools, got {target.image!r} for {target.pool}"
                f", a process pool; its runs use what the worker has installed."
            )
        return
    if target.image is None:
        raise ConfigError(
            f"--image must be given for {target.pool}, a {kind} pool: the container image of a run."
        )
    if not store.startswith(BUCKET_SCHEME):
        raise ConfigError(
            f"--store must be gs://bucket/prefix (s3:// and az:// alike) for {target.pool}, a "
            f"{kind} pool, whose runs see no folder of this machine, got {store!r}."
        )


def check_code(kind: str, config: StudyConfig, target: DeploymentTarget) -> None:
    """Checks that runs can find users' readers, metrics, connectors and steps, and may use them.

    Args:
      kind: type of the pool.
      config: the study.
      target: where and how its runs are started.

    Raises:
      ConfigError: naming the field and the cure.
    """
    # Every function or class that the config names, with the key that names it:
    #
    #   methods                        /home/…/mine.py:Ripple
    #   sources.0.reader               my_package.readers:web
    #   transfers.soft_vqa.metric      soft_f1                    an entry point: always allowed
    installed = {*KINDS, *entry_points(CONNECTORS).values()}
    connectors = dict.fromkeys(map(config.connector_of, config.methods))
    refs = [("methods", config.reference_of(m)) for m in connectors if m not in installed]
    refs += [(f"steps.{i}.step", entry.step) for i, entry in enumerate(config.steps)]
    for view in config.views:
        refs += [(f"sources.{i}.reader", source.reader) for i, source in enumerate(view.sources)]
        watched = view.watch.sources if view.watch else ()
        refs += [(f"watch.sources.{i}.reader", source.reader) for i, source in enumerate(watched)]
        for name, entry in view.transfers.items():
            refs += [(f"transfers.{name}.{k}", getattr(entry, k)) for k in ("reader", "metric")]
    # Two questions: may this run bring code, and could a container find it?
    for field, reference in refs:
        if not target.any_runner and (file_reference(reference) or module_reference(reference)):
            raise ConfigError(
                f"--any-runner must be given for {field}: {reference} is code that a run brings; "
                f"an entry point of an installed package is not."
            )
        if kind != "process" and file_reference(reference):
            raise ConfigError(
                f"{field} must be module:function in a {kind} pool, whose runs see no file of this "
                f"machine, got {reference!r}; install its package in the image."
            )
