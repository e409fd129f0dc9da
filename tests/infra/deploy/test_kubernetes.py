"""The Kubernetes files: valid as they are and as a site makes them, and of one mind."""

import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.infra.deploy.files import (
    DEPLOY,
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
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "parcel"
    words = str(found)
    assert "BUCKET" not in words
    assert "DEPLOYER" not in words
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


def test_a_pod_that_lost_its_node_is_replaced_and_one_that_failed_is_not():
    """A new pod executes the same flow run, whose steps go on from the store and from Ray."""
    spec = job_of({"image": "lab/parcel:1"})["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    # The condition of a pod that is evicted, preempted or drained, or whose node is gone.
    assert rule == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    # A failure of the study itself, whatever its exit code, is reported and not repeated.
    assert spec["backoffLimit"] == 0
    # Kubernetes takes such a policy only for pods whose containers it does not restart.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert "PREFECT__FLOW_RUN_ID" in {entry["name"] for entry in container["env"]}


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


def test_nothing_is_more_than_it_needs_to_be():
    for name, template in pods().items():
        spec = template["spec"]
        context = spec["securityContext"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        # The TPU's device files belong to root.
        assert context.get("runAsNonRoot", False) == (name != "ray-tpu")
        speaks = {"prefect-worker", "ray-head"}
        own = of_kind("ServiceAccount").get(spec.get("serviceAccountName"), {})
        token = spec.get("automountServiceAccountToken", own.get("automountServiceAccountToken"))
        assert token is (None if name in speaks else False)
    for _, container in containers():
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert container["resources"]["limits"]["memory"]


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


def test_pods_with_a_store_take_its_credentials_from_one_secret_if_there_is_one():
    jobset = [c for spec in jobs().values() for c in spec["template"]["spec"]["containers"]]
    every = [container for _, container in containers()] + jobset
    settings, secret = {"name": "parcel"}, {"name": "parcel-store", "optional": True}
    with_store = 0
    for container in every:
        sources = container.get("envFrom", [])
        own = container.get("env", [])
        names = {entry["name"] for entry in own} if isinstance(own, list) else set()
        assert not any(name.startswith(("AWS_", "AZURE_")) for name in names)
        if {"configMapRef": settings} in sources or "PARCEL_STORE" in names:
            with_store += 1
            assert {"secretRef": secret} in sources
        else:
            assert not any("secretRef" in source for source in sources)
    assert with_store == 7  # Workers of three kinds, a study, the watch, and the JobSet's two.
    line = "kubectl -n parcel create secret generic parcel-store"
    assert line in (ROOT / "docs/howto/store.md").read_text()


ALLOWED = {
    ("study", "ray-head", 8265),
    ("study", "prefect-server", 4200),
    ("prefect-worker", "prefect-server", 4200),
    ("prefect-watch", "prefect-server", 4200),
    ("prefect-server", "prefect-database", 5432),
}
"""(from, to, port) beside Ray among itself."""


def test_a_tpu_host_has_the_chips_that_a_step_takes_before_there_is_one():
    from infra.ray.jobs import _HOST_CHIPS

    (container,) = pods()["ray-tpu"]["spec"]["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == str(_HOST_CHIPS)


def test_only_these_may_reach_each_other():
    everybody = {name: t["metadata"].get("labels", {}) for name, t in pods().items()}
    everybody["stranger"] = {"app": "stranger"}
    ray = {name for name in everybody if name.startswith("ray-")}
    for source, have in everybody.items():
        for target, are in everybody.items():
            for port in (22, 4200, 5432, 6379, 8080, 8265, 10001, 52365):
                among_ray = {source, target} <= ray
                wanted = among_ray or (source, target, port) in ALLOWED
                assert may(have, are, port) == wanted, (source, target, port)


def test_a_pod_that_is_alone_in_its_cluster_lets_only_its_own_pods_in():
    """The policy that comes with a JobSet, of which nothing else of these files need be there."""
    _, policy = yaml.safe_load_all((DEPLOY / "jobset" / "study.yaml").read_text())
    own = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "NAME"}}
    assert policy["spec"] == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }
    kubernetes_validate.validate(policy, NEWEST, strict=True)


def may(source: dict[str, str], target: dict[str, str], port: int) -> bool:
    """Returns whether the NetworkPolicies let a pod reach another pod's port in the namespace."""

    def chosen(selector: dict[str, Any], labels: dict[str, str]) -> bool:
        assert selector.keys() <= {"matchLabels"}
        return selector.get("matchLabels", {}).items() <= labels.items()

    policies = [
        policy["spec"]
        for policy in of_kind("NetworkPolicy").values()
        if chosen(policy["spec"]["podSelector"], target)
    ]
    assert all("Ingress" in policy["policyTypes"] for policy in policies)
    rules = [rule for policy in policies for rule in policy.get("ingress", [])]
    return not policies or any(
        any(chosen(peer["podSelector"], source) for peer in rule["from"])
        and ("ports" not in rule or any(p["port"] == port for p in rule["ports"]))
        for rule in rules
    )


def test_roles_of_kubernetes():
    roles = of_kind("Role")
    assert not of_kind("ClusterRole")
    for role in roles.values():
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert "secrets" not in rule["resources"]
    granted = {
        (resource, verb)
        for rule in roles["parcel-deployer"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    for kind in ("roles", "rolebindings", "serviceaccounts", "namespaces"):
        assert {verb for resource, verb in granted if resource == kind} <= {"get", "list"}
    # It can apply every kind there is here.
    plural = {
        "NetworkPolicy": "networkpolicies",
        "ConfigMap": "configmaps",
        "RayCluster": "rayclusters",
    }
    for manifest in manifests():
        kind = manifest["kind"]
        assert (plural.get(kind, f"{kind.lower()}s"), "get") in granted, kind
