"""The hosts of TPU VMs, as `gcloud` describes them."""

import dataclasses
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

_STATE_INTERVAL = 5.0
"""Interval between two looks at a TPU VM that is not ready yet [s]."""
_COMING = ("CREATING", "STARTING", "RESTARTING", "REPAIRING")
"""States of a TPU VM that becomes ready by itself. Source: the Cloud TPU API, v2, `Node.State`."""


class LaunchError(ValueError):
    """The members cannot be started; starting them again would not help."""


@dataclasses.dataclass(frozen=True)
class Host:
    """A host of a TPU VM.

    Attributes:
      address: its internal address, at which the other members reach it.
      ssh_address: the address at which ssh reaches it from here.
      alias: its name in the list of known hosts; another TPU VM may get its addresses later.
      slice: number of its TPU VM.
    """

    address: str
    ssh_address: str
    alias: str
    slice: int


def ready_node(name: str, zone: str, project: str | None, wait: float) -> Mapping[str, Any]:
    """Returns a TPU VM as `gcloud` describes it, once it is ready.

    Args:
      name: its name.
      zone: its zone.
      project: its project; None for gcloud's own.
      wait: longest wait, if it is in a state that becomes ready by itself [s].

    Raises:
      LaunchError: if there is none, or it does not become ready.
    """
    command = ["gcloud", "compute", "tpus", "tpu-vm", "describe", name, f"--zone={zone}"]
    command += [f"--project={project}"] if project else []
    deadline = time.monotonic() + wait
    while True:
        try:
            done = subprocess.run(
                [*command, "--format=json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError:
            raise LaunchError(
                "launcher tpu-vm needs gcloud where the run is started; install the Google Cloud "
                "CLI."
            ) from None
        if done.returncode:
            raise LaunchError(f"TPU VM {name}: {' '.join(done.stderr.split())}")
        node: Mapping[str, Any] = json.loads(done.stdout)
        state = node.get("state", "in no state")
        if state == "READY":
            return node
        # One that is being made or repaired becomes ready by itself; a preempted one never does.
        if state not in _COMING or time.monotonic() > deadline:
            raise LaunchError(f"TPU VM {name} must be READY, but is {state}.")
        time.sleep(_STATE_INTERVAL)


def hosts_of(nodes: Sequence[Mapping[str, Any]], internal: bool) -> list[Host]:
    """Returns the hosts of some TPU VMs, each by its number.

    Args:
      nodes: the TPU VMs. Source: the Cloud TPU API, v2, `Node`.
      internal: whether ssh is to use internal addresses, also where there are others.

    Raises:
      LaunchError: if they have not equally many hosts.
    """
    hosts, sizes = [], []
    for index, node in enumerate(nodes):
        # With several networks a host has as many endpoints, of which the first is the one to use.
        endpoints = node["networkEndpoints"][:: max(1, len(node.get("networkConfigs", [])))]
        sizes.append(len(endpoints))
        for worker, endpoint in enumerate(endpoints):
            address = endpoint["ipAddress"]
            external = endpoint.get("accessConfig", {}).get("externalIp")
            hosts.append(
                Host(
                    address=address,
                    ssh_address=address if internal or not external else external,
                    alias=f"tpu.{node['id']}-{worker}",
                    slice=index,
                )
            )
    if len({*sizes}) > 1:
        raise LaunchError(
            f"TPU VMs that train together must have equally many hosts, got "
            f"{', '.join(map(str, sizes))}."
        )
    return hosts
