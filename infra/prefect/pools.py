"""Work pools, in which a server's deployments run. The type decides what a worker makes for a run.

process       a process on the worker's own machine
docker        a container beside the worker
kubernetes    a Job; the template gets GPUs, a choice of nodes and shared memory
"""

import copy
from typing import Any, Literal, get_args

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import WorkPool
from prefect.exceptions import ObjectNotFound
from prefect.utilities.schema_tools import validate

from infra.errors import ConfigError

PoolType = Literal["process", "docker", "kubernetes"]

_PACKAGES = {
    "process": "prefect",
    "docker": "prefect-docker",
    "kubernetes": "prefect-kubernetes",
}
"""Pool type -> package with its worker; the server knows the job templates of all of them."""


def find_pool(client: SyncPrefectClient, name: str, kind: PoolType | None) -> WorkPool | None:
    """Returns the work pool with a name; None if there is none.

    Args:
      client: client of the server.
      name: name of the pool.
      kind: required type of the pool; None accepts any of ours.

    Raises:
      ConfigError: if its type is another.
    """
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        return None
    if kind is not None and pool.type != kind:
        raise ConfigError(
            f"--type must be {pool.type}, which the work pool {name} has, got {kind}; name another "
            f"pool, or delete this one: prefect work-pool delete {name}."
        )
    if pool.type not in get_args(PoolType):
        raise ConfigError(
            f"--pool must be of type {', '.join(get_args(PoolType))}, got {name}: {pool.type}."
        )
    return pool


def make_pool(client: SyncPrefectClient, name: str, kind: PoolType) -> WorkPool:
    """Makes a work pool with our `job_template`."""
    made = WorkPoolCreate(name=name, type=kind, base_job_template=job_template(client, kind))
    return client.create_work_pool(made)


def job_template(client: SyncPrefectClient, kind: PoolType) -> dict[str, Any]:
    """Returns the job template of a new pool: a run's job, with variables that deployments set.

    It is the worker's own template, as the server knows it, with additions for our runs.
    """
    known = client.read_worker_metadata()
    template = copy.deepcopy(known[_PACKAGES[kind]][kind]["default_base_job_configuration"])
    variables = template["variables"]["properties"]
    # A container that stays costs disk for ever; a job that stays a day can still be looked at.
    if kind == "docker":
        variables["auto_remove"]["default"] = True
    if kind == "kubernetes":
        variables["finished_job_ttl"]["default"] = 86_400
        variables |= {
            "gpus": {
                "title": "GPUs",
                "description": "NVIDIA GPUs that a run gets. If not set, none.",
                "type": "integer",
            },
            "node_selector": {
                "title": "Node Selector",
                "description": "Labels of the nodes that a run may get.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "shared_memory": {
                "title": "Shared Memory",
                "description": "Size of /dev/shm, where Ray keeps objects; it counts as memory.",
                "default": "4Gi",
                "type": "string",
            },
        }
        # A pod has 64 MiB of /dev/shm, too little for Ray: so it is a volume of memory.
        pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        pod["nodeSelector"] = "{{ node_selector }}"
        memory = {"medium": "Memory", "sizeLimit": "{{ shared_memory }}"}
        pod["volumes"] = [{"name": "shared-memory", "emptyDir": memory}]
        container["volumeMounts"] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
        container["resources"]["limits"]["nvidia.com/gpu"] = "{{ gpus }}"
    return template


def check_variables(pool: WorkPool, variables: dict[str, Any]) -> None:
    """Checks that a pool's template has the job variables that a deployment sets, and their types.

    Prefect itself ignores unknown variables.

    Raises:
      ConfigError: if the template lacks a variable, or does not accept its value.
    """
    schema = pool.base_job_template.get("variables", {})
    accepted = schema.get("properties", {})
    for name, value in variables.items():
        if name not in accepted:
            raise ConfigError(
                f"--job-variable must be one of the work pool {pool.name}, got {name}={value!r}; "
                f"accepted: {', '.join(sorted(accepted))}."
            )
        for error in validate({name: value}, schema, raise_on_error=False):
            raise ConfigError(f"--job-variable {name}: {error.message}, for the pool {pool.name}.")
