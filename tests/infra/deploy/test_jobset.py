"""The JobSet of a study: valid, and a study by the very commands of its pods."""

import re
import shlex
import signal
import time
from pathlib import Path

import jsonschema
import kubernetes_validate
import psutil
import pytest
import yaml

from infra.chips.topology import Topology
from tests.infra.deploy.files import DEPLOY, ROOT, jobs
from tests.infra.deploy.test_kubernetes import NEWEST, TEXT, VERSION, fields
from tests.nodes.machines import HEAD, Machines, skip_without_namespaces
from tests.nodes.test_gang import members
from tests.nodes.test_nodes import Stored

STUDY, POLICY = yaml.safe_load_all((DEPLOY / "jobset" / "study.yaml").read_text())
JOBS = jobs()

STAGE1 = "{batch_size: 4, total_steps: 120, save_steps: 5, log_steps: 5}"

NAMES = {"type": "array", "items": {"enum": [*JOBS]}}
SPEC = fields(
    {
        "network": fields({"enableDNSHostnames": {"const": True}}, {}),
        "successPolicy": fields({"operator": {"const": "All"}}, {"targetReplicatedJobs": NAMES}),
        "failurePolicy": fields(
            {"maxRestarts": {"type": "integer"}},
            {"rules": {"type": "array", "items": fields(
                {"action": {"enum": ["FailJobSet", "RestartJobSet"]}},
                {"onJobFailureReasons": {"items": {"enum": ["PodFailurePolicy"]}},
                 "targetReplicatedJobs": NAMES},
            )}},
        ),
        "replicatedJobs": {"type": "array", "items": fields(
            {"name": TEXT, "replicas": {"type": "integer"}, "template": {"type": "object"}}, {}
        )},
    },
    {},
)  # fmt: skip
"""The fields of a JobSet's spec that the file uses. Source: kubernetes-sigs/jobset, v1alpha2."""


@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_the_jobset_has_known_fields_and_valid_jobs(version: str):
    assert (STUDY["apiVersion"], STUDY["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    jsonschema.validate(STUDY["spec"], SPEC)
    for name, spec in JOBS.items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        kubernetes_validate.validate(job, version, strict=True)
    kubernetes_validate.validate(POLICY, version, strict=True)
    label = {"jobset.sigs.k8s.io/jobset-name": STUDY["metadata"]["name"]}
    assert POLICY["spec"]["podSelector"]["matchLabels"] == label


def test_the_hosts_are_those_of_the_topology():
    run, spec = variables("run"), JOBS["hosts"]["template"]["spec"]
    topology = Topology.parse(run["TOPOLOGY"])
    assert topology.num_hosts == JOBS["hosts"]["completions"] == JOBS["hosts"]["parallelism"]
    chips = spec["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert run["CHIPS"] == chips == str(topology.chips_per_host)
    assert run["TOPOLOGY"] == f"v4:{spec['nodeSelector']['cloud.google.com/gke-tpu-topology']}"
    assert variables("hosts")["HEAD"] == "{0}-run-0-0.{0}".format(STUDY["metadata"]["name"])


def variables(job: str) -> dict[str, str]:
    (container,) = JOBS[job]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def command(job: str, **own: str) -> str:
    """Returns a pod's command with its container's environment, in which `own` replaces values."""
    (container,) = JOBS[job]["template"]["spec"]["containers"]
    given = {**variables(job), **own}
    del given["PARCEL_STORE"], given["POD_IP"]
    words = ["env", *(f"{name}={value}" for name, value in given.items())]
    return (
        f"""POD_IP="$ADDRESS" {shlex.join([*words, *container["command"], *container["args"]])}"""
    )


@pytest.mark.e2e
@pytest.mark.night
def test_the_pods_commands_train_and_a_host_that_must_go_has_it_saved(tmp_path: Path):
    skip_without_namespaces()
    smallest = (ROOT / "tests/e2e/smallest.yaml").read_text()
    longer = re.sub(r"stage1: .*", f"stage1: {STAGE1}", smallest)
    longer = re.sub(r"intermediary: .*", "intermediary: null", longer)
    assert longer != smallest
    study = {"CONFIG": "/tmp/longer.yaml", "TOPOLOGY": "v4:2x2x2", "CHIPS": "0"}
    run = command("run", **study, CORES="1", PYTHONPATH=str(ROOT))
    commands = {"head": f"echo {shlex.quote(longer)} > /tmp/longer.yaml; {run}"}
    for number in (1, 2, 3):
        commands[f"node{number}"] = command("hosts", HEAD=HEAD, CORES="1")
    with Machines(3, tmp_path, commands=commands) as machines:
        log = tmp_path / "head.log"
        stored = Stored(machines.gcs.store.bucket("testing"))
        deadline = time.monotonic() + 300
        while not (going := host_to_go(machines, stored)):
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            assert machines.head.init.is_running(), log.read_text()[-4000:]
            time.sleep(0.2)
        going.send_signal(signal.SIGTERM)
        ended = machines.head.wait(400)
        told = log.read_text()
        assert ended == 0, told[-4000:]
    assert "its machine is taken away; the state was saved" in told
    (made,) = stored.manifests("checkpoint").values()
    assert made["environment"]["processes"] == 2
    assert made["environment"]["launcher"].startswith("ray --cpus 1")


def host_to_go(machines: Machines, stored: Stored) -> psutil.Process | None:
    """The shell of a pod with a member, once the training has saved a point to go on from."""
    if not any(name.endswith("/1.json") for name in stored.names("scratch/")):
        return None
    holders = set(stored.leases().values())
    for name, machine in machines.nodes.items():
        if name not in holders and members(machine):
            return machine.init.children()[0]
    return None
