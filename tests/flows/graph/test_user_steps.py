"""Steps of the user's own: named in a config, added to the graph, stale if their code changed."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.server_limits import limit_variables
from flows.graph.explain import Explanation
from flows.graph.graph import PHASES, graph_of
from flows.graph.nodes import StudyGraph
from flows.lookup.runs import end_run_record
from flows.machine.deploy import DeploymentTarget, check_code
from flows.pages.mask_overlays import Masks
from flows.study.load import check_config, load
from flows.study.study import StudyConfig
from flows.sweep.form_values import form_problem, study_of_form
from infra.errors import ConfigError
from infra.store import gc
from infra.store.store import Store
from parcel.cli.accept_stale import accept_stale
from tests.flows.graph.test_explain import fill, told

pytestmark = pytest.mark.usefixtures("forget")

STEPS = '''
import dataclasses

from flows.steps.kinds.user_step import NewStep
from pipelines.records.rewrite import rewrite_dataset
from own_words import REASON


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dedup:
    """Keeps the first record with each picture."""

    dataset: str = "prepare mixture/web"
    share: float = 1.0

    def nodes(self, study, steps):
        read = steps[self.dataset]
        name = f"dedup {self.dataset.split()[-1]}"
        yield NewStep(name=name, inputs={"data": read}, makes="dataset", replaces=read)

    def make(self, work):
        seen = set()

        def change(record):
            if record.images in seen:
                return REASON
            seen.add(record.images)
            return record

        work.counts.update(
            rewrite_dataset(work.inputs["data"], change, stage="dedup", out=work.out)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add:
    """Adds whatever the config says."""

    name: str = "mine"
    reads: tuple[str, ...] = ()
    replaces: str | None = None
    makes: str = "files"
    fault: str = ""

    def nodes(self, study, steps):
        if self.fault == "raises":
            raise RuntimeError("no such thing")
        if self.fault == "text":
            yield self.name
        if self.fault == "names":
            yield NewStep(name=self.name, inputs={"x": "corpus"})
        yield NewStep(
            name=self.name,
            inputs={str(i): steps[name] for i, name in enumerate(self.reads)},
            replaces=self.replaces and steps[self.replaces],
            makes=self.makes,
            seed=study.stage_seed(self.name),
        )

    def make(self, work):
        (work.out / "file").write_text("x")


class Plain:
    """No dataclass."""
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "own_steps.py").write_text(STEPS)
    (folder / "own_words.py").write_text('REASON = "its picture was there before"\n')
    return folder


def config(folder: Path, *steps: Any, **more: Any) -> StudyConfig:
    values = {
        "base": "demo",
        "name": "lab",
        "methods": ["vanilla", "parcel"],
        "budgets": [256],
        "num_seeds": 1,
        "transfers": {"refcoco": None, "msvd_qa": None},
        "steps": [*steps],
        **more,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(values))
    return load(folder / "study.yaml")


def add(**settings: Any) -> dict[str, Any]:
    return {"step": "own_steps.py:Add", "settings": settings}


def reads(graph: StudyGraph, name: str) -> dict[str, str]:
    (step,) = (step for step in graph.steps if step.name == name)
    return {role: read.name for role, read in step.inputs.items()}


def in_order(graph: StudyGraph) -> bool:
    before = set()
    for step in graph.steps:
        if not before.issuperset(step.inputs.values()):
            return False
        before.add(step)
    return before.issuperset(graph.cells.values())


DEDUP = "./own_steps.py:Dedup"


def test_all_that_reads_the_replaced_step_reads_the_new_one(folder: Path):
    graph, plain = graph_of(config(folder, DEDUP)), graph_of(config(folder))
    assert reads(graph, "dedup mixture/web") == {"data": "prepare mixture/web"}
    readers = [
        step.name
        for step in plain.steps
        if "prepare mixture/web" in reads(plain, step.name).values()
    ]
    assert {"tokenizer", "mask codec", "stage1 vanilla", "intermediary parcel"} <= {*readers}
    for name in readers:
        assert "prepare mixture/web" not in reads(graph, name).values()
        assert "dedup mixture/web" in reads(graph, name).values()
    assert [n.name for n in graph.nodes if n.name != "dedup mixture/web"] == [
        n.name for n in plain.nodes
    ]
    assert in_order(graph)
    assert {*graph.cells} == {*plain.cells}
    assert graph.results is graph.nodes[-1].steps[0]
    (node,) = (node for node in graph.nodes if node.name == "dedup mixture/web")
    assert node.needs_worker


def test_a_phase_has_the_steps_that_it_can_make(folder: Path):
    late = add(name="late", reads=["results lab", "intermediary parcel"])
    study = config(folder, DEDUP, add(reads=["intermediary parcel"]), late)
    for phase in PHASES:
        graph, plain = graph_of(study, phase), graph_of(config(folder), phase)
        names = {"dedup mixture/web"}
        names |= {"mine"} if phase != "prepare" else set()
        names |= {"late"} if phase == "report" else set()
        assert {s.name for s in graph.steps} == {s.name for s in plain.steps} | names
        assert in_order(graph)


def test_a_step_may_come_between_a_transfer_and_its_evaluation(folder: Path):
    seed = config(folder).seeds[0]
    name = f"transfer parcel chartqa seed={seed}"
    step = add(name="average", reads=[name], replaces=name, makes="checkpoint")
    graph = graph_of(config(folder, step))
    answers = {cell: step.inputs["predictions"] for cell, step in graph.cells.items()}
    scored = {cell.method: step.inputs["checkpoint"].name for cell, step in answers.items()}
    assert scored == {"parcel": "average", "vanilla": name.replace("parcel", "vanilla")}
    assert reads(graph, "average") == {"0": name}
    assert in_order(graph)
    assert [
        s.name for s in graph_of(config(folder, step), "transfer").steps if "0" in s.inputs
    ] == ["average"]


def test_a_step_may_take_the_place_of_one_and_of_a_users_own(folder: Path):
    words = add(name="my words", reads=["corpus"], replaces="tokenizer")
    again = add(name="other words", reads=["my words"], replaces="my words")
    graph = graph_of(config(folder, words, again))
    assert "tokenizer" not in {step.name for step in graph.steps}
    assert reads(graph, "stage1 vanilla")["tokenizer"] == "other words"
    assert reads(graph, "other words") == {"0": "my words"}
    assert in_order(graph)


def test_what_the_new_step_is_made_from_stays_as_it_is(folder: Path):
    step = add(
        name="distilled",
        reads=["intermediary parcel", "intermediary vanilla"],
        replaces="intermediary parcel",
        makes="checkpoint",
    )
    graph = graph_of(config(folder, step, methods=["parcel", "vanilla"]))
    seed = config(folder).seeds[0]
    assert reads(graph, f"transfer parcel chartqa seed={seed}")["init"] == "distilled"
    assert reads(graph, f"transfer vanilla chartqa seed={seed}")["init"] == "intermediary vanilla"
    assert in_order(graph)


FAULTS = {
    "steps.0.step must be a class as file.py:Class or module:Class, got 'dedup'": "dedup",
    "own_steps.py must define it; did you mean Dedup?": "./own_steps.py:Dedupe",
    "steps.0.step: own_steps:Plain must be a dataclass with the methods": "own_steps.py:Plain",
    "steps.0.step: there is no file": "./no_steps.py:Dedup",
    "steps.0.settings.datset: no such key; did you mean dataset": {
        "step": DEDUP,
        "settings": {"datset": "x"},
    },
    "steps.0.settings.share: must be a number": {
        "step": DEDUP,
        "settings": {"share": "x"},
    },
    "got 'prepare mixtur/web'; did you mean prepare mixture/web": {
        "step": DEDUP,
        "settings": {"dataset": "prepare mixtur/web"},
    },
    "nodes must yield NewStep, got 'mine'": add(fault="text"),
    "nodes raised RuntimeError: no such thing": add(fault="raises"),
    "must have steps as inputs, got 'corpus'": add(fault="names"),
    "must give its step a name that is free, got 'tokenizer'": add(name="tokenizer"),
    "must give its step a name, got ' '": add(name=" "),
    "must make one of dataset, checkpoint, files, got makes='table'": add(makes="table"),
    "got 'mine'; `--explain` lists": add(reads=["mine"]),
    "can replace a step of the kind tokenizer, mask_codec, user_files, got 'corpus'": add(
        replaces="corpus"
    ),
    "must replace a step that others read, got 'intermediary parcel'": add(
        reads=["results lab", "intermediary parcel"],
        replaces="intermediary parcel",
        makes="checkpoint",
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_one_line(folder: Path, message: str):
    with pytest.raises(ConfigError) as raised:
        graph_of(config(folder, FAULTS[message]), "prepare")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_its_record_is_the_same_study(folder: Path, forget: Callable[[], None]):
    study = config(folder, DEDUP)
    assert study.steps[0].step == f"{folder}/own_steps.py:Dedup"
    record = json.loads(json.dumps(dataclasses.asdict(study)))
    forget()
    assert check_config(record, source="its record") == study


def test_an_edit_of_its_code_makes_it_stale_and_nothing_else(
    folder: Path, tmp_path: Path, forget: Callable[[], None]
):
    store = Store(tmp_path / "store")
    fill(store, graph_of(config(folder, DEDUP)))
    states = told(store, graph_of(config(folder, DEDUP)))
    assert {state for state, _ in states.values()} == {"reused"}
    forget()
    (folder / "own_words.py").write_text('REASON = "seen"\n')
    states = told(store, graph_of(config(folder, DEDUP)))
    stale = {name: why for name, (state, why) in states.items() if state == "stale"}
    assert {*stale} == {"dedup mixture/web"}
    assert "own_words.REASON changed since" in stale["dedup mixture/web"]
    assert states["prepare mixture/web"][0] == "reused"
    assert states["stage1 vanilla"][0] == "follows"


def test_an_accepted_one_is_kept_and_what_reads_it_rests_on_it(
    folder: Path, tmp_path: Path, forget: Callable[[], None]
):
    store = Store(tmp_path / "store")
    fill(store, graph_of(config(folder, DEDUP)))
    forget()
    (folder / "own_words.py").write_text('REASON = "seen"\n')
    graph = graph_of(config(folder, DEDUP))
    (line,) = accept_stale(store, Explanation(store, graph), "dedup *")
    assert line.startswith("kept user-dataset-")
    states = {name: state for name, (state, _) in told(store, graph).items()}
    assert states["dedup mixture/web"] == "accepted"
    assert states["stage1 vanilla"] == "reused"
    explanation = Explanation(store, graph)
    assert {step.name for step in explanation.accepted} >= {"dedup mixture/web", "stage1 vanilla"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "is_kept"), [('write_text(str("x"))', True), ('write_text("y")', False)]
)
def test_it_is_accepted_after_a_replay_only_if_both_codes_agree(
    folder: Path, tmp_path: Path, forget: Callable[[], None], text: str, is_kept: bool
):
    store = Store(tmp_path / "store")
    fill(store, graph_of(config(folder, add())))
    forget()
    file = folder / "own_steps.py"
    file.write_text(file.read_text().replace('write_text("x")', text))
    explanation = Explanation(store, graph_of(config(folder, add())))
    if is_kept:
        (line,) = accept_stale(store, explanation, "mine", units=1)
        assert "both codes give contents " in line
    else:
        with pytest.raises(ConfigError, match="mine is not kept"):
            list(accept_stale(store, explanation, "mine", units=1))


def test_gc_keeps_its_artifact_while_a_run_names_it_or_one_made_from_it(
    folder: Path, tmp_path: Path, forget: Callable[[], None]
):
    store = Store(tmp_path / "store")

    def kinds_of_garbage(*steps: Any, named: Callable[[str], bool]) -> set[str]:
        """Returns the kinds of the artifacts that gc deletes once only one run is recorded."""
        study = config(folder, *steps)
        graph = graph_of(study)
        fill(store, graph)
        keys = [a.key for a in Explanation(store, graph).artifacts().values() if named(a.key)]
        values = dataclasses.asdict(study)
        end_run_record(store, values, "1" * 12, results=None, artifacts=keys, failed=[])
        forget()  # gc knows keys and manifests, and no code of the user's.
        names = {found.name.rsplit("-", 2)[0] for found in gc.find_garbage(store, older_than=0)}
        return {name for name in names if name.startswith("user-")}

    beside = add(name="beside", reads=["tokenizer"])
    assert kinds_of_garbage(DEDUP, beside, named=lambda _: True) == set()
    assert kinds_of_garbage(DEDUP, beside, named=lambda key: "user-" not in key) == {"user-files"}
    assert kinds_of_garbage(named=lambda _: True) == {"user-files", "user-dataset"}


def test_pages_find_the_mask_codec_behind_a_users_checkpoint(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "store")
    study = config(folder)
    transfer = f"transfer parcel chartqa seed={study.seeds[0]}"
    step = add(name="soup", reads=[transfer], replaces=transfer, makes="checkpoint")
    graph = graph_of(config(folder, step))
    fill(store, graph)
    artifacts = Explanation(store, graph).artifacts()
    codec = next(a for s, a in artifacts.items() if s.kind == "mask_codec")
    predictions = [
        artifact
        for s, artifact in artifacts.items()
        if s.kind == "predictions" and s.inputs["checkpoint"].name == "soup"
    ]
    assert predictions
    masks = Masks(store)
    assert {masks.codec_of(artifact.key) for artifact in predictions} == {codec.key}
    scores = [
        artifact
        for s, artifact in artifacts.items()
        if s.kind == "scores" and artifacts[s.inputs["predictions"]] in predictions
    ]
    assert {masks.codec_of(artifact.key) for artifact in scores} == {codec.key}
    assert masks.codec_of(artifacts[graph.steps[0]].key) == ""


def test_a_changed_setting_is_a_new_step_that_names_its_key(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "store")
    fill(store, graph_of(config(folder, DEDUP)))
    changed = config(folder, {"step": DEDUP, "settings": {"share": 0.5}})
    state, why = told(store, graph_of(changed))["dedup mixture/web"]
    assert (state, why) == ("new", "steps.0.settings.share null → 0.5")


def test_steps_of_the_study_alone_are_those_without_steps(folder: Path):
    graph = graph_of(config(folder, add(name="beside", reads=["results lab"])))
    plain = graph_of(config(folder))
    assert [s.name for s in graph.steps] == [*(s.name for s in plain.steps), "beside"]


def test_a_run_from_the_form_and_a_deployment_bring_no_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    study, target = config(folder, DEDUP), DeploymentTarget(store="gs://lab/studies", pool="gpus")
    with pytest.raises(ConfigError, match=r"--any-runner .*steps\.0\.step"):
        check_code("process", study, target)
    limits = limit_variables(str(folder / "store"), any_store=False, any_runner=False)
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    refused = r"steps\.0\.step must be in the registry, or an entry"
    with pytest.raises(ConfigError, match=refused):
        config(folder, DEDUP)
    form = {"store": str(folder / "store"), "steps": [{"step": f"{folder}/{DEDUP}"}]}
    assert re.search(refused, form_problem(form) or "")


def test_a_form_states_steps_instead_of_the_studys(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "store")
    values = dataclasses.asdict(config(folder, DEDUP))
    given = {"lab": values}

    def steps(*stated: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        study = study_of_form("lab", store, [], deployed_studies=given, steps=stated)
        return [(entry.step, entry.settings) for entry in study.steps]

    own = {"step": f"{folder}/own_steps.py:Add", "settings": {"name": "beside"}}
    assert steps() == [(f"{folder}/own_steps.py:Dedup", {})]
    assert steps(own) == [(own["step"], own["settings"])]
    form = {"study": "lab", "store": store.uri, "given": given, "steps": [own]}
    assert form_problem(form) is None
    own["settings"] = {"nam": "beside"}
    assert "steps.0.settings.nam" in (form_problem(form) or "")
