"""A connector of the user's own: named, planned, sent to workers, stale where its code changed."""

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.references import connector_reference
from flows.config.server_limits import limit_variables
from flows.graph.costs import costs_of
from flows.machine.deploy import DeploymentTarget, check_code
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.registry import libraries_of, user_modules
from flows.steps.step_lookup import look_up_step
from flows.steps.user_code import user_files_of
from flows.study.load import apply_overrides, check_config, load, read_study_file
from flows.study.study import StudyConfig
from flows.sweep.form import deployments_of
from flows.sweep.form_values import form_problem
from flows.sweep.sweep import Sweep, SweepRun
from infra.errors import ConfigError
from infra.source_code import checkout
from infra.store.digest import canonical_json
from infra.store.store import Artifact, Store
from tests.flows.graph.test_explain import fill, told
from tests.flows.graphs import checked_graph
from tests.flows.steps.test_user_code import install

pytestmark = pytest.mark.usefixtures("forget")

RIPPLE = '''
import jax.numpy as jnp
from flax import nnx
from model.connector.routing import Routing
from model.vision.layers import Attention
from own_start import DEVIATION


class Ripple(nnx.Module):
    """Queries that read the features."""

    routing = Routing(reads="nothing")

    def __init__(self, cfg, *, rngs):
        bank = (cfg.vision.num_patches, cfg.vision.width)
        self.queries = nnx.Param(nnx.initializers.normal(DEVIATION)(rngs.params(), bank))
        self.attn = Attention(cfg.vision.width, cfg.connector.num_heads, rngs=rngs)

    def __call__(self, features, *, bucket, budget):
        x = self.queries[:bucket].astype(features.dtype)
        x = jnp.broadcast_to(x[None], (len(features), bucket, features.shape[-1]))
        return x + self.attn(x, features, features)


class Flat(Ripple):
    """Gives the wrong shape."""

    def __call__(self, features, *, bucket, budget):
        return features[0, :bucket]


class Bare:
    """Says no budgets."""
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "own_ripples.py").write_text(RIPPLE)
    (folder / "own_start.py").write_text("DEVIATION = 0.02\n")
    return folder


def config(folder: Path, *overrides: str, **more: Any) -> StudyConfig:
    values = {
        "base": "demo",
        "name": "ripple",
        "methods": ["vanilla", "parcel", "own_ripples.py:Ripple"],
        "budgets": [16, 256],
        "train_budgets": {"own_ripples.py:Ripple": [16, 256]},
        "connectors": {"./own_ripples.py:Ripple": {"num_heads": 2}},
        "num_seeds": 1,
        "transfers": {"refcoco": None, "msvd_qa": None},
        **more,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(values))
    return load(folder / "study.yaml", overrides)


def test_a_file_beside_the_config_is_a_method(folder: Path):
    study = config(folder)
    name = "own_ripples:Ripple"
    assert study.methods == ("vanilla", "parcel", name)
    assert study.budgets_of(name) == (16, 256)
    assert study.train_budgets[name] == (16, 256)
    assert study.model_of(name).connector.num_heads == 2
    assert study.connector_files == {name: str(folder / "own_ripples.py")}
    names = {step.name for step in checked_graph(study).steps}
    assert {f"intermediary {name}", f"transfer {name} chartqa seed={study.seeds[0]}"} <= names
    costs = {cost.method: cost.tflops for cost in costs_of(study.views[0]) if cost.budget == 16}
    assert 0.9 < costs[name] / costs["parcel"] < 1.1


def test_a_variant_may_be_of_it(folder: Path):
    file = "own_ripples.py:Ripple"
    study = config(folder, methods=[file, "longer"], variants={"longer": {"of": file, "length": 2}})
    name, variant = study.methods
    assert (name, variant) == ("own_ripples:Ripple", "longer")
    assert study.model_of(variant) == study.model_of(name)
    scores = checked_graph(study).cells.values()
    assert {step.inputs["predictions"].config.connector for step in scores} == {name}


def test_its_record_is_the_same_study(folder: Path, forget: Callable[[], None]):
    study = config(folder)
    record = json.loads(json.dumps(dataclasses.asdict(study)))
    forget()
    assert check_config(record, source="its record") == study


def test_it_may_be_a_module_or_an_entry_point(folder: Path, tmp_path: Path, monkeypatch):
    site = tmp_path / "site-packages"
    text = RIPPLE.replace("from own_start import DEVIATION", "DEVIATION = 0.02")
    points = "[parcel.connectors]\nrippled = own_installed_ripple:Ripple\n"
    install(site, "own_installed_ripple", "2.1", text, points)
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(folder)
    assert connector_reference("methods.0", "own_ripples:Ripple") == "own_ripples:Ripple"
    study = config(folder, methods=["parcel", "rippled"], train_budgets={}, connectors={})
    assert study.methods == ("parcel", "own_installed_ripple:Ripple")
    assert not any(path.startswith("own/own_installed") for path in checkout().files)
    by_version = {
        s.kind
        for s in checked_graph(study).steps
        if "own_installed_ripple" in libraries_of(s.kind, s.config)
    }
    assert by_version == {"checkpoint", "predictions"}
    check_code("kubernetes", study, DeploymentTarget(store="gs://lab/studies", pool="gpus"))
    with monkeypatch.context() as served:
        for name, value in limit_variables("s", any_store=True, any_runner=False).items():
            served.setenv(name, value)
        again = check_config(dataclasses.asdict(study), source="its record")
        assert again.methods == study.methods


def test_ours_have_the_identity_they_had(folder: Path):
    demo = load(None, ["methods=[vanilla,parcel]"])
    beside = config(folder)
    theirs = {step.name: canonical_json(step.config) for step in checked_graph(beside).steps}
    for step in checked_graph(demo).steps:
        if isinstance(step.config, EvaluateSpec):
            assert step.config.connector in step.name
        if isinstance(step.config, FitSpec) and " parcel" not in step.name:
            assert theirs.get(step.name, canonical_json(step.config)) == canonical_json(step.config)


@pytest.mark.slow
def test_an_edit_makes_stale_what_trains_or_evaluates_with_it(
    folder: Path, tmp_path: Path, forget: Callable[[], None]
):
    store = Store(tmp_path / "store")
    fill(store, checked_graph(config(folder)))
    assert {state for state, _ in told(store, checked_graph(config(folder))).values()} == {"reused"}

    def edited(name: str, text: str) -> dict[str, str]:
        (folder / name).write_text(text)
        forget()
        found = told(store, checked_graph(config(folder)))
        return {node: why for node, (state, why) in found.items() if state == "stale"}

    assert not edited("own_ripples.py", RIPPLE.replace("that read", "which read"))
    stale = edited("own_start.py", "DEVIATION = 0.03\n")
    seed = config(folder).seeds[0]
    wanted = [f"{what} own_ripples:Ripple" for what in ("intermediary", "transfer")]
    assert list(stale) == [wanted[0], f"{wanted[1]} chartqa seed={seed}"]
    assert all("own_start.DEVIATION changed" in why for why in stale.values())
    # Evaluations of a checkpoint that is there are stale by themselves, too.
    graph = checked_graph(config(folder))
    kinds = {step.kind for node in graph.nodes if node.name in stale for step in node.steps}
    assert kinds == {"checkpoint", "predictions", "scores"}


# The first that a worker does.
WORKER = """
import pickle, sys
import numpy as np
store, recipes = pickle.load(sys.stdin.buffer)
from flows.steps.worker import _check_code, _install_user_code
from infra.store.store import Artifact, Store
for recipe in recipes:
    _install_user_code(Store(store), recipe)
    _check_code(Store(store), recipe)
    spec = recipe.config
    print(recipe.kind, getattr(spec, "connector", "") or spec.model.connector.routing.reads)
from model import vlm
print(vlm.abstract_params(recipes[0].config.model)["connector"]["queries"].shape)
"""


@pytest.mark.slow
def test_a_worker_has_it_from_the_store(folder: Path, tmp_path: Path):
    store, graph = Store(tmp_path / "store"), checked_graph(config(folder))
    fill(store, graph)
    source, made, recipes = store.save_source(checkout().files), dict[Any, Artifact](), {}
    for step in graph.steps:
        inputs = {role: made[one] for role, one in step.inputs.items()}
        found = look_up_step(store, step, inputs, frozenset(), source=source)
        assert found.artifact is not None
        made[step] = found.artifact
        if "Ripple" in step.name and step.kind != "scores":  # Scoring needs no connector.
            recipes.setdefault(step.kind, found.recipe)
    sent = user_files_of(user_modules("checkpoint", recipes["checkpoint"].config))  # To members.
    assert sent == {f"own/{path.name}": path.read_bytes() for path in folder.glob("*.py")}
    for path in folder.glob("*.py"):
        path.write_text("raise SystemExit\n")  # An edit while the run is under way.
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps((store.uri, list(recipes.values()))),
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.decode().splitlines() == [
        "checkpoint nothing",
        "predictions own_ripples:Ripple",
        "(256, 64)",
    ]


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("parcl", r"methods\.1 must be one of .*or a class as file\.py:Class or .*, got 'parcl'"),
        ("own_none.py:Ripple", r"methods\.1: there is no file .*/lab/own_none\.py"),
        ("own_no_module:Ripple", r"own_no_module cannot be imported: .*; install it, put its fold"),
        ("own_ripples.py:Nobody", r"methods\.1: own_ripples has no 'Nobody'; .* must define it"),
        ("own_ripples.py:Bare", r"methods\.1: own_ripples:Bare\.routing must be a Routing"),
        (
            "own_ripples.py:DEVIATION",
            r"own_ripples:DEVIATION must be a function or a class, got 0\.02",
        ),
    ],
)
def test_one_that_is_none_is_told_in_a_line(folder: Path, method: str, told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        config(folder, methods=["vanilla", method], train_budgets={}, connectors={})
    assert "\n" not in str(refused.value)


def test_one_that_breaks_its_promises_is_told_before_anything_runs(folder: Path):
    study = config(folder, methods=["own_ripples.py:Flat"], train_budgets={}, connectors={})
    with pytest.raises(ConfigError, match=r"methods: at 224 px own_ripples:Flat breaks 'programs'"):
        checked_graph(study)


def test_a_bank_that_stage_2_could_not_start_from_is_told_before_anything_runs(folder: Path):
    (folder / "own_banks.py").write_text(RIPPLE.replace("self.queries", "self.bank"))
    values = {"train_budgets": {}, "connectors": {}, "stage2": {"image_px": 448}}
    with pytest.raises(ConfigError, match=r"methods: at 448 px connector/bank has shape \(256, "):
        checked_graph(config(folder, methods=["own_banks.py:Ripple"], **values))
    checked_graph(config(folder, methods=["own_ripples.py:Ripple"], **values))


def test_a_run_from_the_ui_names_entry_points_only(folder: Path, monkeypatch):
    for name, value in limit_variables("s", any_store=True, any_runner=False).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"methods\.2 .*registry.* entry poin"):
        config(folder)


@pytest.mark.parametrize("key", ["model.connector.kind", "connectors.parcel.kind"])
def test_a_class_is_named_by_methods_alone(key: str, tmp_path: Path, monkeypatch):
    (tmp_path / "own_evil.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"\.kind .*'own_evil:X'"):
        load(None, [f"{key}=own_evil:X"])
    with pytest.raises(ConfigError, match="own_evil cannot be imported: SystemExit: 3"):
        load(None, ["methods=[vanilla, 'own_evil:X']"])


def test_a_deployment_brings_it_only_if_told_and_only_where_it_is(folder: Path):
    study, target = config(folder), DeploymentTarget(store="gs://lab/studies", pool="gpus")
    with pytest.raises(ConfigError, match=r"--any-runner .*methods: /.*Ripple"):
        check_code("process", study, target)
    target = dataclasses.replace(target, any_runner=True)
    check_code("process", study, target)
    with pytest.raises(ConfigError, match=r"methods .*module:function .*kubernetes"):
        check_code("kubernetes", study, target)


def test_forms_offer_entry_points_and_what_the_study_has(folder: Path, tmp_path: Path, monkeypatch):
    site = tmp_path / "site-packages"
    points = "[parcel.connectors]\nrippled = own_offered:Ripple\n"
    install(site, "own_offered", "2.1", RIPPLE, points)
    monkeypatch.syspath_prepend(site)
    values = json.loads(json.dumps(dataclasses.asdict(config(folder))))
    deployments = deployments_of(
        "ripple", str(tmp_path), any_store=False, deployed_studies={"ripple": values}
    )
    schema: Any = deployments[1]._parameter_openapi_schema
    for field in ("methods", "compare"):
        offered = schema.definitions["Sweep"]["properties"][field]["items"]["enum"]
        assert offered.count("parcel") == 1
        assert offered[-2:] == ["rippled", "own_ripples:Ripple"]


def test_a_sweep_adds_it_to_a_study(folder: Path, tmp_path: Path):
    own = f"{folder}/own_ripples.py:Ripple"
    (folder / "plain.yaml").write_text("base: demo\nname: plain\nmethods: [vanilla, parcel]\n")
    firing = SweepRun(
        values=read_study_file(folder / "plain.yaml"),
        source="plain",
        overrides=(),
        sweep=Sweep(methods=(own, "mqt")),
        store=Store(tmp_path / "store"),
    )
    assert firing.config.methods == ("vanilla", "parcel", "own_ripples:Ripple", "mqt")
    assert firing.sweep.grid(firing.config) == []
    more = Sweep(methods=("m3",)).grid(firing.config)
    assert more == [f"methods=[vanilla, parcel, {own}, mqt, m3]"]
    assert apply_overrides({}, more, source="it").connector_files
    with pytest.raises(ValueError, match=r"methods\.0 must be one of vanilla"):
        Sweep(methods=("parcl",))


def test_a_form_tells_what_is_wrong(tmp_path: Path):
    form = {"study": "demo", "store": str(tmp_path), "overrides": [], "add": {"methods": ["rip"]}}
    assert re.match(r"add: methods\.0 .*vanilla, .*'rip'", form_problem(form) or "")
