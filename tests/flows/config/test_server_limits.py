"""A run started from the UI keeps to the served store, and to this machine's Beam."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config.server_limits import (
    check_carried_studies,
    check_served,
    limit_variables,
    limits_of,
)
from flows.machine.serve import parse_auth
from flows.study.load import load
from flows.sweep.form_values import form_problem, study_of_form
from infra.errors import ConfigError
from infra.store.store import Store, canonical_uri
from pipelines.prepare.config import PrepareConfig


@pytest.fixture
def _own(monkeypatch: pytest.MonkeyPatch):
    names = limit_variables("/store", any_store=False, any_runner=False, roots=[Path("/")])
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    for name in names:
        os.environ.pop(name, None)


@pytest.mark.usefixtures("_own")
def test_another_store_is_refused_unless_any_is_allowed(tmp_path: Path):
    config = load()
    check_served(config, "/anywhere")  # Not served: the terminal's user may.
    os.environ |= limit_variables(str(tmp_path / "here"), any_store=False, any_runner=False)
    check_served(config, str(tmp_path / "here"))
    check_served(config, str(tmp_path / "there" / ".." / "here"))
    with pytest.raises(ConfigError, match=r"store .*--any-store"):
        check_served(config, str(tmp_path / "there"))
    os.environ |= limit_variables(str(tmp_path / "here"), any_store=True, any_runner=False)
    check_served(config, str(tmp_path / "there"))


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize(
    "prepare",
    [PrepareConfig(runner="DataflowRunner"), PrepareConfig(runner_options=("--project=p",))],
)
def test_beams_runner_is_refused_wherever_it_hides(tmp_path: Path, prepare: PrepareConfig):
    plain = load()
    name = next(iter(plain.transfers))
    hidden = [
        dataclasses.replace(plain, prepare=prepare),
        dataclasses.replace(
            plain, sources=(dataclasses.replace(plain.sources[0], prepare=prepare),)
        ),
        dataclasses.replace(
            plain,
            transfers=plain.transfers
            | {name: dataclasses.replace(plain.transfers[name], prepare=prepare)},
        ),
    ]
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=False)
    check_served(plain, str(tmp_path))
    for config in hidden:
        with pytest.raises(ConfigError, match=r"runner.*--any-runner"):
            check_served(config, str(tmp_path))
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=True)
    for config in hidden:
        check_served(config, str(tmp_path))


@pytest.mark.usefixtures("_own")
def test_a_launchers_command_is_refused_but_for_ray(tmp_path: Path):
    config = load(None, ["compute.processes_per_stage=2", "compute.launcher=bash -c id --"])
    rays = load(
        None,
        ["compute.processes_per_stage=2", "compute.launcher=ray", "compute.ray_address=auto"],
    )
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=False)
    check_served(rays, str(tmp_path))
    with pytest.raises(ConfigError, match=r"compute\.launcher .*ray .*bash.*--any-runner"):
        check_served(config, str(tmp_path))
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=True)
    check_served(config, str(tmp_path))


@pytest.fixture
def form(tmp_path: Path, _own: None) -> dict[str, Any]:
    """The demo's form, on a server whose runs may read below one folder."""
    root = tmp_path / "root"
    for folder in (root / "data" / "web", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "loop.yaml").symlink_to(root / "loop.yaml")
    os.environ |= limit_variables(
        str(tmp_path / "store"), any_store=False, any_runner=False, roots=[root, "gs://lab/raw/"]
    )
    return {"study": "demo", "store": str(tmp_path / "store"), "overrides": []}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"data_root": "{root}/data"}, None),
        ({"data_root": "gs://lab/raw/2026"}, None),
        ({"data_root": "gs://lab/raw"}, None),
        ({"data_root": "gs://lab/rawest"}, "data_root must lie below"),
        ({"data_root": "s3://lab/raw"}, "data_root must lie below"),
        ({"data_root": "gs://other/raw"}, "data_root must lie below"),
        ({"data_root": "gs://lab/raw/../secret"}, "data_root must lie below"),
        ({"overrides": ["start={root}/checkpoint", "tokenizer.path={root}/t.model"]}, None),
        ({"data_root": "/etc"}, "data_root must lie below"),
        ({"data_root": "{root}/../outside"}, "data_root must lie below"),
        ({"data_root": "{root}/link"}, "data_root must lie below"),
        ({"data_root": "a\0b"}, "data_root must be a path, got 'a\\x00b'"),
        ({"data_root": "~nobody-has-this-name/x"}, "data_root must lie below"),
        (
            {
                "data_root": "{root}/data",
                "overrides": ["sources=[{reader: web, path: /etc}]"],
            },
            "data_root//etc must lie below",
        ),
        ({"overrides": ["start=/etc/passwd"]}, "start must lie below"),
        ({"overrides": ["tokenizer.path=/etc/passwd"]}, "tokenizer.path must lie below"),
        ({"overrides": ["mask_codec.path=/etc/passwd"]}, "mask_codec.path must lie below"),
        ({"study": "{root}/../outside/secret.yaml"}, "config must lie below"),
        ({"study": "a\0.yaml"}, "config must be a path"),
        ({"study": "{root}/loop.yaml"}, "config must be a readable YAML file"),
        ({"overrides": ["compute.ray_address=10.9.8.7:6379"]}, "compute.ray_address must be left"),
    ],
)
def test_a_form_names_files_below_the_roots_and_no_cluster_of_its_own(
    form: dict[str, Any], tmp_path: Path, fields: dict[str, Any], problem: str | None
):
    (tmp_path / "outside" / "secret.yaml").write_text("password: hunter2\n")
    filled = json.loads(json.dumps(fields).replace("{root}", str(tmp_path / "root")))
    told = form_problem({**form, **filled})
    assert told == problem if problem is None else str(told).startswith(problem)
    assert "hunter2" not in str(told)


@pytest.mark.parametrize(
    "text",
    [
        "db_password: hunter2\n",
        "name: hunter2 IS IT\n",
        "hunter2\n",
        "a: [hunter2\n",
        "num_seeds: hunter2",
    ],
)
def test_a_file_that_is_no_study_is_not_told(form: dict[str, Any], tmp_path: Path, text: str):
    study = tmp_path / "root" / "notes.yaml"
    study.write_text(text)
    told = str(form_problem({**form, "study": str(study), "overrides": ["num_seeds=0"]}))
    assert told.startswith(f"{study} is no study by itself; ")
    assert "hunter2" not in told


def test_what_a_study_states_itself_may_lie_anywhere(form: dict[str, Any], tmp_path: Path):
    study = tmp_path / "root" / "study.yaml"
    study.write_text(
        "base: demo\nname: mine\nstart: /etc/passwd\ncompute: {ray_address: '10.9.8.7:6379'}\n"
    )
    assert form_problem({**form, "study": str(study)}) is None
    changed = {**form, "study": str(study), "overrides": ["start=/etc/group"]}
    assert str(form_problem(changed)).startswith("start must lie below")
    changed["overrides"] = ["compute.ray_address=10.9.8.8:6379"]
    assert re.match(r"compute\.ray_address .*10\.9\.8\.7:6379", str(form_problem(changed)))


def test_a_study_that_only_the_form_makes_whole_is_checked_in_full(
    form: dict[str, Any], tmp_path: Path
):
    study = tmp_path / "root" / "study.yaml"
    study.write_text(
        "base: demo\nname: mine\nstart: /etc/hosts\n"
        "compute: {processes_per_stage: 2, launcher: ray}\n"
    )
    with pytest.raises(ConfigError, match=r"^start must lie below"):
        study_of_form(str(study), Store(form["store"]), ["compute.ray_address=auto"])


def test_a_run_of_the_form_carries_no_studies(form: dict[str, Any]):
    check_carried_studies(None)
    with pytest.raises(ConfigError, match="given must be left out"):
        check_carried_studies({"x": {"name": "x"}})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"study": 3}, "study: "),
        ({"overrides": "num_seeds=3"}, "overrides: "),
        ({"overrides": [3]}, "overrides: 0: "),
        ({"given": ["g"]}, "given: "),
        ({"study": "g", "given": {"g": "x"}}, "given: g: "),
        ({"overrides": ["num_seeds=2023-13-45"]}, "demo: num_seeds: must be a whole number"),
        ({"overrides": ["num_seeds=!!timestamp x"]}, "num_seeds: value must be YAML"),
        ({"overrides": ["num_seeds=" + "[" * 3000]}, "num_seeds: value must be YAML, got '[["),
        ({"overrides": ["num_seeds=0x" + "9" * 5000]}, "num_seeds: a number has at most 100"),
    ],
)
def test_whatever_a_form_holds_there_is_one_line_about_it(
    form: dict[str, Any], fields: dict[str, Any], problem: str
):
    told = form_problem({**form, **fields})
    assert told is not None
    assert told.startswith(problem)
    assert "\n" not in told
    assert len(told) < 200


def test_an_auth_string_has_a_name_and_a_password_and_is_never_shown(tmp_path: Path):
    file = tmp_path / "auth"
    file.write_text("me:secret\n")
    assert parse_auth(f"@{file}") == parse_auth("me:secret") == "me:secret"
    assert parse_auth(None) is None
    with pytest.raises(ConfigError, match="name:password") as refused:
        parse_auth("secret")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="No such file"):
        parse_auth("@/no/such/file")


@pytest.mark.parametrize(
    "saved",
    [
        '{"PARCEL_SERVED_RUNNER": "own"}',
        '{"PARCEL_SERVED_RUNNER": "own", "PARCEL_SERVED_STORE": null}',
        '{"PARCEL_SERVED_RUNNER": "any", "PARCEL_SERVED_ROOTS": "[]"}',
        '{"PARCEL_SERVED_RUNNER": "any", "PARCEL_SERVED_ROOTS": "{}"}',
        '{"PARCEL_SERVED_RUNNER": "any", "PARCEL_SERVED_ROOTS": ""}',
        '{"PARCEL_SERVED_STORE": "", "PARCEL_SERVED_ROOTS": "[\\"/\\"]"}',
        "[]",
        "null",
        "{",
    ],
)
def test_what_the_saved_limits_lack_is_the_narrowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: str
):
    (tmp_path / "limits.json").write_text(saved)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    store = str(tmp_path / "store")
    limits = limits_of({"parameters": {"store": store}})
    assert (limits.store, limits.any_runner, limits.roots) == (
        canonical_uri(store),
        False,
        (store,),
    )


@pytest.mark.parametrize("stated", [[], 5, {"PARCEL_SERVED_RUNNER": "own"}, {"x": "y"}])
def test_what_a_deployments_variables_lack_is_the_narrowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: Any
):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    store = str(tmp_path / "store")
    found = {
        "parameters": {"store": store},
        "work_pool_name": "gpus",
        "job_variables": {"env": stated},
    }
    assert (limits_of(found).store, limits_of(found).any_runner) == (canonical_uri(store), False)


def test_the_check_of_a_form_makes_no_store(tmp_path: Path):
    store = tmp_path / "store"
    for more in ({}, {"add": {"seeds": 4}}, {"failed": True}):
        problem = form_problem({"study": "demo", "store": str(store), **more})
        assert problem is None or "failed" in more, problem
    assert not store.exists()
