"""The study as the UI offers it: a deployment whose form is typed, filled and checked."""

from collections.abc import Mapping
from typing import Any, cast

import pydantic
from prefect import Flow
from prefect.deployments.runner import RunnerDeployment
from prefect.types.entrypoint import EntrypointType

from flows.study.config import StudyConfig
from flows.study.flow import study


def deployment_of(
    config: StudyConfig, store: str, *, name: str, any_store: bool, **options: Any
) -> RunnerDeployment:
    """Returns the deployment of a study; it is registered nowhere yet.

    Args:
      config: what the form is filled with.
      store: the store of its runs [URI].
      name: of the deployment, after `study/`.
      any_store: let the form name another store.
      **options: more of Prefect's `Flow.to_deployment`.
    """
    values = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    deployment: Any = cast(Flow[..., Any], study).to_deployment(
        name=name,
        description=f"Raw data to results table. The form is filled with the study {config.name}.",
        parameters={"config": values, "store": store, "until": "report"},
        tags=["parcel"],
        entrypoint_type=EntrypointType.MODULE_PATH,
        **options,
    )
    # Schedules set in the UI stay; an empty list would delete them.
    deployment.model_fields_set.discard("schedules")
    if not any_store:  # The server refuses another at once; the run checks it again.
        schema: Mapping[str, Any] = deployment._parameter_openapi_schema.properties
        schema["store"]["enum"] = [store]
    return deployment
