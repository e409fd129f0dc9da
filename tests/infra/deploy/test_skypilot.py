"""The example for SkyPilot: fields that there are, a command that there is, and its own loader."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.docs.test_commands import problem
from tests.infra.deploy.files import DEPLOY, ROOT
from tests.infra.deploy.test_kubernetes import TEXT, fields

FILE = DEPLOY / "skypilot" / "study.yaml"
TASK = yaml.safe_load(FILE.read_text())

SCHEMA = fields(
    {
        "name": TEXT,
        "workdir": TEXT,
        "num_nodes": {"type": "integer", "minimum": 1},
        "resources": fields(
            {"infra": TEXT, "accelerators": {"pattern": r"^\w+:\d+$"}},
            {"use_spot": {"type": "boolean"}, "disk_size": {"type": "integer"}},
        ),
        "envs": {"type": "object", "additionalProperties": TEXT},
        "setup": TEXT,
        "run": TEXT,
    },
    {},
)
"""The fields of a task that the file uses. Source: `get_task_schema` of SkyPilot 0.14.1."""


def test_the_example_has_known_fields():
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(TASK)
    assert [error.message for error in errors] == []


def test_the_commands_of_the_example_exist():
    values = {f"${name}": value for name, value in TASK["envs"].items()}
    words = [values.get(word, word) for word in shlex.split(TASK["run"])]
    assert words[:2] == ["exec", ".venv/bin/parcel"]
    assert problem(shlex.join(["parcel", *words[2:]])) is None
    assert (ROOT / TASK["envs"]["CONFIG"]).exists()
    assert "PARCEL_STORE" in TASK["envs"]
    *_, setup = TASK["setup"].splitlines()
    assert problem(setup) is None
    for script in (TASK["setup"], TASK["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


LOADED = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps([task.name, task.num_nodes, task.envs, resources.accelerators]))
"""


@pytest.mark.deep
def test_skypilots_own_loader_reads_the_example(tmp_path: Path):
    # In an environment of its own, since SkyPilot's libraries are not the project's.
    uv = [str(Path(sys.executable).with_name("uv")), "run", "--no-project", "--isolated"]
    own = ["--python", sys.executable, "--with", "skypilot==0.14.1"]
    load = ["env", f"HOME={tmp_path}", "python", "-c", LOADED, str(FILE)]
    if subprocess.run([*uv, *own, "true"], capture_output=True, timeout=300).returncode:
        pytest.skip("no registry has skypilot==0.14.1")
    done = subprocess.run([*uv, *own, *load], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    wanted = [TASK["name"], TASK["num_nodes"], TASK["envs"], {"H100": 8}]
    assert json.loads(done.stdout.splitlines()[-1]) == wanted
