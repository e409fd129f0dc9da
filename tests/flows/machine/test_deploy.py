"""A study registered with a server's work pool: process, Docker, Kubernetes."""

import asyncio
import dataclasses
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.study.load import load
from infra.errors import ConfigError
from tests.commands import run_commands

pytestmark = pytest.mark.slow

PARCEL = str(Path(sys.executable).with_name("parcel"))


def deployed(name: str, **values: Any) -> list[str]:
    """Deploys the demo under a name of its own; returns what was said."""
    from flows.machine.deploy import DeploymentTarget, deploy_study

    config = dataclasses.replace(load(), name=name)
    return list(
        deploy_study(
            config, DeploymentTarget(**{"store": "/lab/studies", "pool": f"{name}-pool", **values})
        )
    )


def ask(method: str, path: str, body: Any = None) -> Any:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        answer = client.request(method, path, json=body)
    return answer.json() if answer.content else None


@pytest.mark.usefixtures("served_store")
def test_registered_again_it_tells_what_changed():
    first, again = deployed("again"), deployed("again")
    assert first[0] == "work pool again-pool: new, process"
    assert first[1] == "deployment study/again: new"
    server = os.environ["PREFECT_API_URL"].removesuffix("/api")  # With the port it listens on.
    assert first[2].startswith(f"UI: {server}/v2/deployments/deployment/")
    assert first[3] == "deployment sweep/again: new"
    assert first[5].endswith(": prefect worker start --pool again-pool")
    assert first[6].endswith(": parcel serve --watch --store /lab/studies")
    assert again[0] == "work pool again-pool: there, process"
    assert again[1:] == [line.replace(": new", ": unchanged") for line in first[1:]]
    changed = deployed("again", environment={"JAX_PLATFORMS": "cpu"}, any_store=True)
    assert changed[1] == "deployment study/again: job variables, form"
    found = ask("GET", "/deployments/name/study/again")
    assert found["job_variables"]["env"] == {
        "JAX_PLATFORMS": "cpu",
        "PARCEL_SERVED_RUNNER": "own",
        "PARCEL_SERVED_STORE": "",
        "PREFECT_CLIENT_MAX_RETRIES": "8",
        "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "reschedule",
    }
    assert found["entrypoint"] == "flows.sweep.form.study_form"
    assert found["work_pool_name"] == "again-pool"


@pytest.mark.usefixtures("served_store")
def test_its_form_is_checked_by_the_server():
    from prefect.exceptions import PrefectHTTPStatusError

    deployed("typed")
    found = ask("GET", "/deployments/name/study/typed")
    path = f"/deployments/{found['id']}/create_flow_run"
    assert "given" not in found["parameter_openapi_schema"]["properties"]
    wrong_steps = ["dedup.py:Dedup"], [{"settings": {}}], [{"step": "a:B", "setting": {}}]
    wrongs = [{"store": "/elsewhere"}, {"until": "lunch"}, {"overrides": [1]}]
    for wrong in wrongs + [{"steps": steps} for steps in wrong_steps]:
        with pytest.raises(PrefectHTTPStatusError, match="409"):
            ask("POST", path, {"parameters": {**found["parameters"], **wrong}})
    steps = [{"step": "a:B", "settings": {"share": 0.5}}]
    assert ask("POST", path, {"parameters": {"steps": steps}})["parameters"]["steps"] == steps
    run = ask("POST", path, {"parameters": {"study": "typed"}})
    assert run["state_type"] == "SCHEDULED"
    assert run["parameters"]["given"]["typed"]["name"] == "typed"


@pytest.mark.usefixtures("served_store")
def test_a_sweeps_form_has_choices_and_a_line_of_help_each():
    from prefect.exceptions import PrefectHTTPStatusError

    deployed("wide")
    found = ask("GET", "/deployments/name/sweep/wide")
    form = found["parameter_openapi_schema"]
    add = form["definitions"]["Sweep"]["properties"]
    assert {"chartqa", "gqa"} <= set(add["benchmarks"]["items"]["enum"])
    assert {"parcel", "mqt_sa"} <= set(add["methods"]["items"]["enum"])
    fields = [*form["properties"].values(), *add.values()]
    assert all(0 < len(field["description"]) <= 80 for field in fields), fields
    assert "Attributes:" not in str(form)
    path = f"/deployments/{found['id']}/create_flow_run"
    for wrong in ({"methods": ["parcl"]}, {"budgets": [16, 16]}, {"seeds": 101}):
        with pytest.raises(PrefectHTTPStatusError, match="409"):
            ask("POST", path, {"parameters": {"add": wrong}})


@pytest.mark.usefixtures("served_store")
def test_a_sweep_is_scheduled_with_what_it_adds(tmp_path: Path):
    deployed("nightly")
    words = [
        PARCEL, "sweep", "demo", "name=nightly", "--store", str(tmp_path / "store"),
        "--add-seeds", "1", "--max-seeds", "10", "--from", "20:00", "--to", "08:00",
        "--cron", "0 20 * * *", "--timezone", "Europe/Berlin",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "deployment sweep/nightly: fires at '0 20 * * *' Europe/Berlin"
    assert second.startswith("sweep nightly: 4 methods × 2 rows × 3 seeds")
    found = ask("GET", "/deployments/name/sweep/nightly")
    (schedule,) = found["schedules"]
    assert schedule["schedule"]["cron"] == "0 20 * * *"
    assert schedule["parameters"] == {
        "study": "nightly",
        "add": {"add_seeds": 1, "max_seeds": 10},
        "when": {"start": "20:00", "end": "08:00", "timezone": "Europe/Berlin"},
        "overrides": ["name=nightly"],
    }
    assert "**The next firing of nightly**" in found["description"]
    assert second in found["description"]


@pytest.mark.usefixtures("served_store")
def test_schedules_set_elsewhere_stay():
    said = deployed("daily", cron="0 6 * * *", timezone="Europe/Berlin")
    assert said[1] == "deployment study/daily: new"
    found = ask("GET", "/deployments/name/study/daily")
    weekly = {"schedule": {"cron": "0 3 * * 1", "timezone": "UTC"}, "active": True}
    ask("POST", f"/deployments/{found['id']}/schedules", [weekly])

    def crons() -> set[tuple[str, str]]:
        schedules = ask("GET", "/deployments/name/study/daily")["schedules"]
        return {(s["schedule"]["cron"], s["schedule"]["timezone"]) for s in schedules}

    both = {("0 6 * * *", "Europe/Berlin"), ("0 3 * * 1", "UTC")}
    assert crons() == both
    assert deployed("daily")[1].endswith(": unchanged")
    assert deployed("daily", cron="0 6 * * *", timezone="Europe/Berlin")[1].endswith("unchanged")
    assert crons() == both
    assert deployed("daily", cron="30 7 * * *")[1].endswith(": schedule")
    assert crons() == {("30 7 * * *", "UTC"), ("0 3 * * 1", "UTC")}


def configuration(name: str, kind: Any) -> Any:
    """Returns the job configuration that a pool's template and a deployment's variables make."""
    found = ask("GET", f"/deployments/name/study/{name}")
    pool = ask("GET", f"/work_pools/{name}-pool")
    return asyncio.run(
        kind.from_template_and_values(pool["base_job_template"], found["job_variables"])
    )


@pytest.mark.usefixtures("served_store")
def test_a_kubernetes_worker_makes_a_job_with_image_gpus_and_shared_memory():
    if importlib.util.find_spec("prefect_kubernetes") is None:
        pytest.skip("no prefect-kubernetes: install the extra `kubernetes`")
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    bucket = "gs://lab/studies"
    values: dict[str, Any] = {"kind": "kubernetes", "image": "lab/parcel:1", "store": bucket}
    deployed(
        "pods",
        **values,
        variables={
            "gpus": 8,
            "memory_limit": "64Gi",
            "service_account_name": "studies",
            "node_selector": {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"},
        },
    )
    manifest = configuration("pods", KubernetesWorkerJobConfiguration).job_manifest
    assert manifest["spec"]["backoffLimit"] == 0
    assert manifest["spec"]["ttlSecondsAfterFinished"] == 86_400
    pod = manifest["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}
    assert pod["serviceAccountName"] == "studies"
    assert pod["volumes"] == [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}
    ]
    (container,) = pod["containers"]
    assert container["image"] == "lab/parcel:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "64Gi"}
    assert container["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    environment = container["env"]
    if isinstance(environment, list):
        environment = {entry["name"]: entry["value"] for entry in environment}
    assert environment["PARCEL_SERVED_STORE"] == bucket
    deployed("bare", **values)
    pod = configuration("bare", KubernetesWorkerJobConfiguration).job_manifest["spec"]["template"]
    assert "nodeSelector" not in pod["spec"]
    assert "nvidia.com/gpu" not in str(pod)


@pytest.mark.usefixtures("served_store")
def test_a_docker_worker_makes_a_container_with_image_and_store():
    if importlib.util.find_spec("prefect_docker") is None:
        pytest.skip("no prefect-docker: install the extra `docker`")
    from prefect_docker.worker import DockerWorkerJobConfiguration

    deployed(
        "boxes",
        kind="docker",
        image="lab/parcel:1",
        store="gs://lab/studies",
        variables={"volumes": ["/data:/data"]},
    )
    made = configuration("boxes", DockerWorkerJobConfiguration)
    assert (made.image, made.volumes, made.auto_remove) == ("lab/parcel:1", ["/data:/data"], True)
    assert made.env["PARCEL_SERVED_STORE"] == "gs://lab/studies"


@pytest.mark.usefixtures("served_store")
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kind": "docker"}, "--image must be given for wrong-pool, a docker pool"),
        ({"kind": "kubernetes", "image": "i"}, "--store must be gs://bucket/prefix"),
        ({"image": "i"}, "--image is of docker and kubernetes pools, got 'i'"),
        ({"variables": {"gpu": 1}}, r"--job-variable must be one of .* got gpu=1; accepted: "),
        ({"variables": {"stream_output": "maybe"}}, "--job-variable stream_output: 'maybe' is not"),
        ({"cron": "daily"}, "--cron must be five fields: .* got 'daily'"),
        (
            {"cron": "0 0 31 4 *"},
            r"got '0 0 31 4 \*': no calendar has it: day of month 31, month 4",
        ),
        (
            {"cron": "* * * * * *"},
            "--cron must be five fields: .*: it has 6; seconds and years are",
        ),
        ({"cron": "0 6 * * *", "timezone": "Berlin"}, "--timezone must be .* got 'Berlin'"),
        ({"store": "gcs://lab"}, "--store: store must be a folder or gs://bucket/prefix"),
    ],
)
def test_what_cannot_be_deployed_is_told_in_a_line(values: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        deployed("wrong", **values)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("served_store")
def test_a_pool_of_another_type_is_left_alone():
    deployed("mixed")
    with pytest.raises(ConfigError, match=r"--type .*process, .*mixed-pool"):
        deployed("mixed", kind="kubernetes", image="i", store="gs://lab")


def test_a_path_must_not_depend_on_where_a_run_starts():
    from flows.machine.deploy import DeploymentTarget, deploy_study

    config = dataclasses.replace(load(), data_root="raw")
    with pytest.raises(ConfigError, match=r"data_root .* got 'raw'"):
        list(deploy_study(config, DeploymentTarget(store="/s", pool="p")))


@pytest.mark.usefixtures("served_store")
def test_the_command_takes_a_config_variables_a_schedule_and_secret_addresses(tmp_path: Path):
    addresses = tmp_path / "alerts.txt"
    addresses.write_text("https://lab.test/verysecret\n\nmailto://me:verysecret@lab.test\n")
    addresses.chmod(0o600)
    words = [
        PARCEL, "deploy", "name=cli", "num_seeds=5", "--pool", "cli-pool",
        "--store", str(tmp_path / "store"), "--cron", "0 6 * * *",
        "--job-variable", "stream_output=false", "--env", "XLA_FLAGS=--a=b",
        "--alert", f"@{addresses}", "--stall", "90", "--cap", "48", "--cap-cancels",
    ]  # fmt: skip

    def call(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=dict(os.environ) | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = call()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = [
        line for line in done.stdout.splitlines() if not line.startswith(("UI", "start", "and"))
    ]
    assert told == [
        "work pool cli-pool: new, process",
        "deployment study/cli: new",
        "alert study/cli: failed: new",
        "alert study/cli: stalled: new",
        "alert study/cli: over cap: new",
        "deployment sweep/cli: new",
        "alert sweep/cli: failed: new",
        "alert sweep/cli: stalled: new",
        "alert sweep/cli: over cap: new",
    ]
    assert "verysecret" not in done.stdout
    found = ask("GET", "/deployments/name/study/cli")
    assert found["parameters"]["given"]["cli"]["num_seeds"] == 5
    assert found["job_variables"]["stream_output"] is False
    assert found["job_variables"]["env"]["XLA_FLAGS"] == "--a=b"
    wrong = {
        ("--type", "ecs"): "parcel: --type must be one of process, docker, kubernetes, got 'ecs'.",
        ("--env", "XLA"): "parcel: --env must look like NAME=VALUE, got 'XLA'.",
        ("--alert", "@/none"): "parcel: --alert @/none: No such file or directory.",
        ("--alert", "verysecret"): "parcel: --alert must be https://, mailto://",
    }
    requests = [words[1:], *([*words[1:], *more] for more in wrong)]
    again, *refusals = run_commands(requests)
    assert (again.returncode, again.stdout.count("unchanged")) == (0, 8), again
    for refused, line in zip(refusals, wrong.values(), strict=True):
        assert refused.returncode == 2
        assert refused.stderr.startswith(line), refused
        assert refused.stderr.count("\n") == 1
    refused = call(PREFECT_API_AUTH_STRING="me:guess")
    assert refused.returncode == 2
    assert refused.stderr.startswith("parcel: PREFECT_API_AUTH_STRING ")
    assert "guess" not in refused.stderr


def test_without_a_server_one_line_says_so(tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment["PREFECT_HOME"] = str(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}/api"
    for url, told in (
        (None, "PREFECT_API_URL must be the API of a Prefect server, such as"),
        (nobody, f"PREFECT_API_URL must be the API of a Prefect server that runs, got {nobody}: "),
    ):
        named = {} if url is None else {"PREFECT_API_URL": url}
        done = subprocess.run(
            [PARCEL, "deploy", "--pool", "p"],
            env=environment | named,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"parcel: {told}"), done.stderr
        assert done.stderr.count("\n") == 1
