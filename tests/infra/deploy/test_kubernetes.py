"""The Kubernetes files: valid, as they are and as a site makes them, and they find each other."""

import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.infra.deploy.files import (
    KUBERNETES,
    OPEN_VALUES,
    POSTGRES_DIGEST,
    ROOT,
    SITE,
    Manifest,
    containers,
    jobs,
    kustomized,
    manifests,
    needs_kubectl,
    needs_terraform,
    of_kind,
    pods,
    resources,
    site,
    study_pool,
)

VERSION = "1.33"
"""Oldest Kubernetes of GKE's regular channel that the files are checked for."""

NEWEST = kubernetes_validate.latest_version()

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
PARAMETERS = {"type": "object", "additionalProperties": TEXT}
POD = {"type": "object"}  # Checked as a PodTemplate.


def fields(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": [*required],
        "additionalProperties": False,
    }


RAY_CLUSTER = fields(
    {
        "headGroupSpec": fields(
            {"rayStartParams": PARAMETERS, "template": POD},
            {"serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}},
        ),
        "workerGroupSpecs": {
            "type": "array",
            "items": fields(
                {
                    "groupName": TEXT,
                    "replicas": COUNT,
                    "minReplicas": COUNT,
                    "maxReplicas": COUNT,
                    "rayStartParams": PARAMETERS,
                    "template": POD,
                },
                {"numOfHosts": {"type": "integer", "minimum": 1}},
            ),
        },
        "rayVersion": TEXT,
    },
    {
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": fields(
            {},
            {
                "idleTimeoutSeconds": COUNT,
                "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
                "resources": {"type": "object"},
                "securityContext": {"type": "object"},
            },
        ),
    },
)
"""The fields of a RayCluster's spec that the files use. Source: KubeRay, apis/ray/v1."""


def check(manifest: Manifest, version: str) -> None:
    """Checks a manifest strictly: a field that Kubernetes does not know is an error."""
    if manifest["kind"] != "RayCluster":
        kubernetes_validate.validate(manifest, version, strict=True)
        return
    assert manifest["apiVersion"] == "ray.io/v1"
    jsonschema.validate(manifest["spec"], RAY_CLUSTER)
    spec = manifest["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        check_pod(group["template"], version)
    options = {key: spec["autoscalerOptions"][key] for key in ("resources", "securityContext")}
    container = {"name": "autoscaler", "image": "any", **options}
    check_pod({"spec": {"containers": [container]}}, version)


def check_pod(template: dict[str, Any], version: str) -> None:
    wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
    kubernetes_validate.validate(wrapped, version, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_every_manifest_is_valid(version: str):
    assert {m["kind"] for m in manifests()} >= {"RayCluster", "Deployment", "NetworkPolicy"}
    for manifest in manifests():
        check(manifest, version)


def test_a_field_that_nobody_knows_is_found():
    (ray,) = of_kind("RayCluster").values()
    (server,) = (
        m
        for m in manifests()
        if m["metadata"]["name"] == "prefect-server" and m["kind"] == "Deployment"
    )
    wrong = {**ray, "spec": {**ray["spec"], "rayVersions": "2"}}
    with pytest.raises(jsonschema.ValidationError, match="rayVersions"):
        check(wrong, NEWEST)
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        check({**server, "spec": {**server["spec"], "replica": 1}}, NEWEST)


def manifests_of_site(folder: Path) -> tuple[Manifest, ...]:
    """Returns the manifests that `kubectl apply -k` sends for a site that Terraform renders."""
    shutil.copytree(KUBERNETES, folder / "kubernetes", ignore=shutil.ignore_patterns("site"))
    (folder / "terraform").mkdir()
    (folder / "kubernetes" / "site").mkdir()
    text = site(folder / "terraform", SITE)
    (folder / "kubernetes" / "site" / "kustomization.yaml").write_text(text)
    return kustomized(folder / "kubernetes" / "site")


@pytest.mark.slow
@needs_kubectl
@needs_terraform
def test_a_site_is_valid_and_names_what_terraform_made(tmp_path: Path):
    found = manifests_of_site(tmp_path)
    for manifest in found:
        check(manifest, NEWEST)
    images = {c["image"] for pod in pods(found).values() for c in pod["spec"]["containers"]}
    assert images == {
        f"{OPEN_VALUES['image']}:IMAGE_TAG",
        f"{OPEN_VALUES['postgres']}@{POSTGRES_DIGEST}",
        "{{ image }}",  # A study's: `parcel deploy --image` says which.
    }
    assert of_kind("ConfigMap", found)["parcel"]["data"]["PARCEL_STORE"] == OPEN_VALUES["store"]
    accounts = of_kind("ServiceAccount", found)
    annotated = {
        name: account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
        for name, account in accounts.items()
        if "annotations" in account["metadata"]
    }
    assert annotated == OPEN_VALUES["workloads"]
    binding = of_kind("RoleBinding", found)["parcel-deployer"]
    assert [subject["name"] for subject in binding["subjects"]] == [OPEN_VALUES["deployer"]]

    groups = of_kind("RayCluster", found)["parcel-ray"]["spec"]["workerGroupSpecs"]
    most = {group["groupName"]: group["maxReplicas"] for group in groups}
    assert most == {"cpu": 9, "gpu": 3, "tpu": 2}
    tpu = groups[2]
    assert tpu["numOfHosts"] == 2
    chosen = tpu["template"]["spec"]["nodeSelector"]
    assert chosen["cloud.google.com/gke-tpu-topology"] == "2x4"


@pytest.mark.slow
def test_a_run_of_the_pool_is_a_valid_job():
    job = job_of({"image": "lab/parcel:1", "env": {"PREFECT_API_URL": "http://x/api"}})
    kubernetes_validate.validate(job, VERSION, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "lab/parcel:1"
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert {"name": "PREFECT_API_URL", "value": "http://x/api"} in container["env"]
    assert job["metadata"]["namespace"] == "parcel"
    larger = job_of({"image": "lab/parcel:1", "memory_limit": "48Gi", "cpu_request": "7"})
    sizes = larger["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert sizes["requests"]["memory"] == sizes["limits"]["memory"] == "48Gi"


def job_of(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the Job that Prefect's worker makes of the pool's template."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.utilities.templating import apply_values
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    template = study_pool()
    known = template["variables"]["properties"]
    defaults = {name: known[name]["default"] for name in known if "default" in known[name]}
    assert values.keys() <= known.keys()
    filled = apply_values(template["job_configuration"], {**defaults, **values})
    made = KubernetesWorkerJobConfiguration(**filled)
    made.prepare_for_flow_run(FlowRun(name="one", flow_id=uuid.uuid4()))
    return made.job_manifest


def test_secrets_stay_out_of_the_files():
    assert not of_kind("Secret")
    secret = ("PASSWORD", "AUTH_STRING", "ENCRYPTION_KEY")
    asked = set()
    for _, container in containers():
        entries = container.get("env", [])
        for entry in entries if isinstance(entries, list) else []:
            if entry["name"].endswith(secret):
                asked.add(tuple(entry["valueFrom"]["secretKeyRef"].values()))
    assert asked == {
        ("prefect-database", "password"),
        ("prefect-auth", "auth"),
        ("prefect-key", "key"),
    }
    made = re.findall(
        r"secret generic ([\w-]+) --from-literal=(\w+)=", (ROOT / "docs/howto/cloud.md").read_text()
    )
    assert {*made} == asked


def test_no_pod_may_do_more_than_the_others():
    for template in [*pods().values(), *(job["template"] for job in jobs().values())]:
        spec = template["spec"]
        chips = [c for c in spec["containers"] if "google.com/tpu" in c["resources"]["limits"]]
        # The TPU's device files belong to root.
        assert chips or spec["securityContext"]["runAsNonRoot"]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert not context["allowPrivilegeEscalation"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_selectors_find_pods_and_pods_find_nodes():
    labels = [template["metadata"].get("labels", {}) for template in pods().values()]
    chosen = [service["spec"]["selector"] for service in of_kind("Service").values()]
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        chosen += match_labels([*of_kind(kind).values()])
    for selector in chosen:
        assert any(selector.items() <= have.items() for have in labels), selector
    pools = resources("google_container_node_pool").values()
    nodes = {pool["node_config"][0]["labels"]["parcel-pool"] for pool in pools}
    assert {t["spec"]["nodeSelector"]["parcel-pool"] for t in pods().values()} == nodes


def match_labels(found: Any) -> Iterator[dict[str, str]]:
    """Yields what every selector inside of manifests asks for."""
    for name, value in found.items() if isinstance(found, dict) else enumerate(found):
        if name == "matchLabels":
            yield value
        elif isinstance(value, dict | list):
            yield from match_labels(value)


def test_the_deployer_may_apply_every_kind():
    rules = of_kind("Role")["parcel-deployer"]["rules"]
    granted = {name for rule in rules if "get" in rule["verbs"] for name in rule["resources"]}
    kinds = {manifest["kind"].lower() for manifest in manifests()}
    assert {re.sub("y$", "ie", kind) + "s" for kind in kinds} <= granted


def test_who_has_a_store_takes_the_secret_of_the_page():
    line = "kubectl -n parcel create secret generic parcel-store"
    assert line in (ROOT / "docs/howto/store.md").read_text()
    jobset = [c for job in jobs().values() for c in job["template"]["spec"]["containers"]]
    for container in [*(c for _, c in containers()), *jobset]:
        sources, env = container.get("envFrom", []), str(container.get("env"))
        has_store = {"configMapRef": {"name": "parcel"}} in sources or "PARCEL_STORE" in env
        secret = {"secretRef": {"name": "parcel-store", "optional": True}}
        assert [s for s in sources if "secretRef" in s] == [secret] * has_store


def test_a_tpu_host_has_the_chips_that_a_step_takes_before_there_is_one():
    from infra.ray.jobs import _HOST_CHIPS

    (container,) = pods()["ray-tpu"]["spec"]["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == str(_HOST_CHIPS)
