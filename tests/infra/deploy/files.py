"""The files of `infra/deploy`, read as their tools read them."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml
from hcl2 import SerializationOptions

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "infra" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
TERRAFORM = DEPLOY / "terraform"

Manifest = dict[str, Any]

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
needs_terraform = pytest.mark.skipif(
    not shutil.which("terraform"), reason="terraform is not installed"
)

OPEN_VALUES = {
    "store": "gs://lab-studies/studies",
    "image": "europe-west4-docker.pkg.dev/lab/parcel/parcel",
    "postgres": "europe-west4-docker.pkg.dev/lab/docker-hub/library/postgres",
    "workloads": {
        "parcel-study": "parcel-study@lab.iam.gserviceaccount.com",
        "parcel-ray": "parcel-ray@lab.iam.gserviceaccount.com",
    },
    "deployer": "parcel-deployer@lab.iam.gserviceaccount.com",
}
"""Values that Terraform knows only after `apply`, as they could be in a project named `lab`."""

POSTGRES_DIGEST = f"sha256:{'5e' * 32}"

SITE = {
    "cpu": "{ max_nodes = 9 }",
    "gpu": "{ max_nodes = 3 }",
    "tpu": '{ max_slices = 2, topology = "2x4", hosts_per_slice = 2 }',
}
"""Terraform variables of the site that is rendered, where not at their default."""


@functools.cache
def manifests() -> tuple[Manifest, ...]:
    """Returns every manifest of the base, and the cluster with every group of workers."""
    found = []
    for path in sorted((KUBERNETES / "base").glob("*.yaml")):
        if path.name != "kustomization.yaml":
            found += yaml.safe_load_all(path.read_text())
    (ray,) = (m for m in found if m["kind"] == "RayCluster")
    for name in ("gpu", "tpu"):
        (patch,) = yaml.safe_load((KUBERNETES / name / "group.yaml").read_text())
        ray["spec"]["workerGroupSpecs"].append(patch["value"])
    return tuple(found)


def of_kind(kind: str, among: tuple[Manifest, ...] | None = None) -> dict[str, Manifest]:
    """Returns name -> manifest, of one kind."""
    every = manifests() if among is None else among
    return {m["metadata"]["name"]: m for m in every if m["kind"] == kind}


def study_pool() -> dict[str, Any]:
    """Returns the base job template of the studies' work pool."""
    return json.loads((KUBERNETES / "base" / "study-pool.json").read_text())


def jobs() -> dict[str, dict[str, Any]]:
    """Returns name -> spec of each Job of the JobSet of one study."""
    jobset, _ = yaml.safe_load_all((DEPLOY / "jobset" / "study.yaml").read_text())
    return {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}


def pods(among: tuple[Manifest, ...] | None = None) -> dict[str, dict[str, Any]]:
    """Returns name -> pod template of every workload, with the labels that its maker adds."""
    every = manifests() if among is None else among
    found = {}
    for kind in ("Deployment", "StatefulSet"):
        found |= {name: m["spec"]["template"] for name, m in of_kind(kind, every).items()}
    (ray,) = of_kind("RayCluster", every).values()
    own = {"ray.io/cluster": ray["metadata"]["name"]}
    groups = {f"ray-{group['groupName']}": group for group in ray["spec"]["workerGroupSpecs"]}
    for name, group in {"ray-head": ray["spec"]["headGroupSpec"], **groups}.items():
        sort = "head" if name == "ray-head" else "worker"
        found[name] = labelled(group["template"], {**own, "ray.io/node-type": sort})
    found["study"] = study_pool()["job_configuration"]["job_manifest"]["spec"]["template"]
    return found


def labelled(template: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Returns a pod template with more labels."""
    metadata = template.get("metadata", {})
    return {
        **template,
        "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}},
    }


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (pod, container) of every pod."""
    for name, template in pods().items():
        for container in template["spec"]["containers"]:
            yield name, container


def site(folder: Path, variables: Mapping[str, str]) -> str:
    """Returns the kustomization that Terraform writes for a project, rendered by Terraform itself.

    Args:
      folder: to work in.
      variables: Terraform variables in its own syntax, beside those without a default.

    Raises:
      subprocess.CalledProcessError: if Terraform refuses them; its words are in `stderr`.
    """
    for name in ("variables.tf", "kustomization.yaml.tftpl"):
        shutil.copy(TERRAFORM / name, folder)
    given = {name: json.dumps(value) for name, value in OPEN_VALUES.items()}
    given |= {name: f"var.{name}" for name in ("cpu", "gpu", "tpu", "postgres_digest")}
    values = "".join(f"    {name} = {value}\n" for name, value in given.items())
    template = "${path.module}/kustomization.yaml.tftpl"
    (folder / "main.tf").write_text(
        f'output "kustomization" {{\n  value = templatefile("{template}", {{\n{values}  }})\n}}\n'
    )
    named = {"project": "lab", "region": "europe-west4", "zone": "europe-west4-a", "bucket": "b"}
    named["postgres_digest"] = POSTGRES_DIGEST
    options = [f"-var={name}={value}" for name, value in {**named, **variables}.items()]
    terraform(folder, "init")
    terraform(folder, "apply", "-auto-approve", *options)
    return terraform(folder, "output", "-raw", "kustomization")


def terraform(folder: Path, command: str, *words: str) -> str:
    """Runs Terraform in a folder, with no settings of this machine's, and returns what it says."""
    settings = folder / "none.tfrc"
    settings.touch()
    options = ["-no-color", *(["-input=false"] * (command in ("init", "apply")))]
    return subprocess.run(
        ["terraform", command, *options, *words],
        cwd=folder,
        env={**os.environ, "TF_CLI_CONFIG_FILE": str(settings)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def kustomized(folder: Path) -> tuple[Manifest, ...]:
    """Returns the manifests that `kubectl apply -k` would send."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return tuple(yaml.safe_load_all(done.stdout))


@functools.cache
def blocks() -> dict[str, list[tuple[tuple[str, ...], dict[str, Any]]]]:
    """Returns Terraform's blocks by type: (labels, body), such as (("google_…", "store"), {…})."""
    options = SerializationOptions(strip_string_quotes=True, with_comments=False)
    found: dict[str, list[tuple[tuple[str, ...], dict[str, Any]]]] = {}
    for path in sorted(TERRAFORM.glob("*.tf")):
        with path.open() as file:
            for sort, bodies in hcl2.load(file, serialization_options=options).items():
                if not sort.startswith("__"):
                    found.setdefault(sort, []).extend(map(_labels_off, bodies))
    return found


def _labels_off(body: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    labels: list[str] = []
    while "__is_block__" not in body:
        ((label, body),) = body.items()
        labels.append(label)
    return tuple(labels), body


def resources(sort: str) -> dict[str, dict[str, Any]]:
    """Returns name -> body of Terraform's resources of one type."""
    return {labels[1]: body for labels, body in blocks()["resource"] if labels[0] == sort}
