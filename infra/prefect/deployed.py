"""Registers deployments on a server, and reports what that changed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.context import FlowRunContext
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from infra.errors import ConfigError

_SLUG = "parcel-deploy"
"""Slug of the schedule that is set here, which those set in the UI do not have."""
_FIELDS = {
    "parameters": "parameters",
    "job_variables": "job variables",
    "work_pool_name": "work pool",
    "entrypoint": "entrypoint",
    "parameter_openapi_schema": "form",
    "description": "description",
    "tags": "tags",
}
"""Field that registering sets -> its name for people."""


def register(
    client: SyncPrefectClient, deployment: RunnerDeployment, schedule: CronSchedule | None
) -> tuple[str, list[str]]:
    """Registers a deployment and returns its id and what changed; ["new"] if there was none.

    Schedules set in the UI stay, and so does ours if none is given.

    Args:
      client: client of the server.
      deployment: the deployment.
      schedule: schedule on which it runs by itself.

    Raises:
      ConfigError: if the server refuses it.
    """
    before = _read_server_deployment(client, deployment)
    try:
        deployment.apply()
    except DeploymentApplyError as error:
        raise ConfigError(str(error)) from None
    except PrefectHTTPStatusError as error:  # Prefect does not wrap the errors of an update.
        raise ConfigError(str(error.response.json().get("detail", error))) from None
    after = _read_server_deployment(client, deployment)
    assert after is not None
    rescheduled = schedule is not None and set_schedule(client, after, schedule)
    if before is None:
        return str(after.id), ["new"]
    changed = [
        name for field, name in _FIELDS.items() if getattr(before, field) != getattr(after, field)
    ]
    return str(after.id), changed + ["schedule"] * rescheduled


def _read_server_deployment(
    client: SyncPrefectClient, deployment: RunnerDeployment
) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(deployment.full_name)
    except ObjectNotFound:
        return None


def set_schedule(
    client: SyncPrefectClient,
    deployment: DeploymentResponse,
    schedule: CronSchedule,
    slug: str = _SLUG,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Sets a schedule of a deployment; returns whether that changed anything.

    Args:
      client: client of the server.
      deployment: the deployment as the server has it.
      schedule: schedule on which it runs by itself.
      slug: slug of the schedule; one with the same slug is replaced.
      parameters: parameters of each of its runs, on top of the deployment's.
    """
    values = dict(parameters)
    for there in deployment.schedules:
        if there.slug == slug:
            if (there.schedule, there.active, dict(there.parameters)) == (schedule, True, values):
                return False
            client.update_deployment_schedule(
                deployment.id, there.id, active=True, schedule=schedule, parameters=values
            )
            return True
    created = DeploymentScheduleCreate(schedule=schedule, active=True, parameters=values, slug=slug)
    client.create_deployment_schedules(deployment.id, [created])
    return True


def describe(deployment_id: UUID, text: str) -> None:
    """Gives a deployment its description, in Markdown."""
    with get_client(sync_client=True) as client:
        client.update_deployment(deployment_id, DeploymentUpdate(description=text))


def name_run(name: str) -> None:
    """Names the flow run of this process."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(context.flow_run.id, name=name)
