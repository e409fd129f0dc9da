"""Tests that programs know the options, variables and ports that the deployment files set."""

import base64
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import ray_constants
from ray.scripts.scripts import start as ray_start

from infra.prefect.encryption import VARIABLE as ENCRYPTION_KEY
from tests.docs import pages
from tests.docs.test_commands import problem
from tests.infra.deploy.files import KUBERNETES, ROOT, containers, of_kind, pods
from tests.infra.deploy.test_image import all_of

DOC = (ROOT / "docs/howto/cloud.md").read_text()


def variables() -> dict[str, str]:
    """Returns name -> value of the environment that image and manifests set; "" for secrets."""
    found = dict(pair.split("=", 1) for rest in all_of("ENV") for pair in rest.split())
    found |= of_kind("ConfigMap")["parcel"]["data"]
    for name, container in containers():
        entries = container.get("env", [])
        if name != "prefect-database" and isinstance(entries, list):
            found |= {entry["name"]: entry.get("value", "") for entry in entries}
    return found


@pytest.mark.slow
def test_every_variable_is_one_that_somebody_reads():
    from prefect.settings import Settings
    from prefect_kubernetes.settings import KubernetesSettings

    sources = "".join(
        path.read_text()
        for root in ("flows", "infra", "model", "parcel", "pipelines")
        for path in (ROOT / root).rglob("*.py")
    )
    ray_core = (Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server").read_bytes()
    epath = Path(__import__("etils").__file__ or "").parent / "epath"
    known = {*environment_names(Settings)}
    known |= {*environment_names(KubernetesSettings, "PREFECT_INTEGRATIONS_KUBERNETES_")}
    known |= {"HOME", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH"}  # Of the system.
    known |= {"DATABASE_PASSWORD"}  # Part of another variable's value.
    encryption = importlib.util.find_spec("prefect.server.utilities.encryption")
    assert encryption is not None
    assert f'"{ENCRYPTION_KEY}"' in Path(encryption.origin or "").read_text()
    known |= {ENCRYPTION_KEY}  # Prefect has it in no settings.
    for name in variables():
        if name.startswith("PARCEL_"):
            assert f'"{name}"' in sources, name
        elif name.startswith("RAY_"):
            assert name.removeprefix("RAY_").encode() in ray_core, name
        elif name.startswith("EPATH_"):
            assert any(name in path.read_text() for path in epath.glob("*.py")), name
        else:
            assert name in known, name


def environment_names(model: Any, prefix: str = "PREFECT_") -> Iterator[str]:
    """Yields the variables that set the fields of a settings model."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if hasattr(inner, "model_fields"):
            yield from environment_names(inner, f"{prefix}{name.upper()}_")
        else:
            yield f"{prefix}{name.upper()}"
            for other in getattr(field.validation_alias, "choices", ()):
                if isinstance(other, str):
                    yield other.upper()


def commands(program: str) -> Iterator[list[str]]:
    """Yields the words of every call of a program, of the pages and of the manifests."""
    for line in pages.commands():
        words = [word for word in shlex.split(line) if not word.startswith("PREFECT_")]
        if words[0] == program:
            yield words
    for name in ("prefect-server", "prefect-worker", "prefect-watch"):
        (container,) = pods()[name]["spec"]["containers"]
        words = [str(word) for word in container["args"]]
        if words[0] == program:
            yield words


def test_parcel_knows_its_commands_and_options():
    calls = [*commands("parcel")]
    assert {words[1] for words in calls} >= {"deploy", "serve", "results"}
    assert {said for words in calls if (said := problem(shlex.join(words)))} == set()


def options_of(*command: str) -> str:
    """Returns a command's help, as wide as it wants to be."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deep
def test_prefect_knows_its_commands_and_options():
    told: dict[tuple[str, ...], str] = {}
    for words in commands("prefect"):
        command = tuple(words[:3])
        told.setdefault(command, options_of(*command))
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", told[command]), words
    assert {command[1:] for command in told} >= {("server", "start"), ("worker", "start")}


@pytest.mark.slow
def test_ray_knows_its_start_options_and_ports():
    known = {option for parameter in ray_start.params for option in parameter.opts}
    for words in commands("ray"):
        assert words[1] == "start"
        assert {word for word in words if word.startswith("--")} <= known, words
    spec = of_kind("RayCluster")["parcel-ray"]["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert {f"--{name}" for name in group["rayStartParams"]} <= known
    (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert ports == {
        "gcs-server": ray_constants.DEFAULT_PORT,
        "dashboard": ray_constants.DEFAULT_DASHBOARD_PORT,
    }


def test_addresses_name_services_and_their_ports():
    services = of_kind("Service")
    text = " ".join(variables().values())
    found = re.findall(r"(?:http://|@)(prefect-[\w-]+):(\d+)", text)
    assert {host for host, _ in found} == {"prefect-server", "prefect-database"}
    for host, port in found:
        assert int(port) in [p["port"] for p in services[host]["spec"]["ports"]]
    # KubeRay names the head's service after the cluster.
    (ray_cluster,) = of_kind("RayCluster")
    told = {*re.findall(r"http://([\w-]+)-head-svc:(\d+)", DOC)}
    assert told == {(ray_cluster, str(ray_constants.DEFAULT_DASHBOARD_PORT))}


def test_overrides_of_the_page_make_a_study():
    from flows.study.load import load

    given = {*re.findall(r"\b(?:compute|name)[\w.]*=[\w:/.-]*\w", DOC)}
    assert given >= {"compute.ray_address=http://parcel-ray-head-svc:8265", "name=first"}
    for override in given:
        load(overrides=[override])


@pytest.mark.deep
def test_the_server_as_it_is_started_wants_a_password_and_takes_the_pool(tmp_path: Path):
    (container,) = pods()["prefect-server"]["spec"]["containers"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(word) for word in container["args"]]
    words[words.index("0.0.0.0")] = "127.0.0.1"
    words[words.index("4200")] = str(port)
    given = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    given |= {
        "PREFECT_SERVER_API_AUTH_STRING": "parcel:secret",
        "PREFECT_API_AUTH_STRING": "parcel:secret",
        "PREFECT_HOME": str(tmp_path),
        # A database beside it: that of the files is PostgreSQL.
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}/prefect.db",
    }
    environment = {**os.environ, **given}
    server = subprocess.Popen(
        [sys.executable, "-m", *words],
        env=environment,
        stdout=(tmp_path / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        healthy = f"http://127.0.0.1:{port}{container['readinessProbe']['httpGet']['path']}"
        wait_for(healthy, server)
        pools = f"http://127.0.0.1:{port}/api/work_pools/parcel"
        assert status(pools) == 401
        client = {**environment, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
        file = str(KUBERNETES / "base" / "study-pool.json")
        create = ["work-pool", "create", "parcel", "--type", "kubernetes"]
        subprocess.run(
            [sys.executable, "-m", "prefect", *create, "--base-job-template", file],
            env=client,
            check=True,
            capture_output=True,
            timeout=120,
        )
        assert status(pools, "parcel:secret") == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui-settings", timeout=10) as answer:
            assert json.load(answer)["api_url"] == "/api"
    finally:
        server.terminate()
        server.wait(30)


def status(address: str, auth: str = "") -> int:
    request = urllib.request.Request(address)
    if auth:
        request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            if status(address) == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nobody answered at {address}")
