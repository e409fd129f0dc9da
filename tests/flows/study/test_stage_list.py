"""Stages as values in a list: the paper's three, and the study's own between and after them."""

import dataclasses
import itertools
import json
from typing import Any

import pytest

from flows.graph.graph import graph_of
from flows.graph.nodes import StudyGraph
from flows.plan.plan import _pretrainings
from flows.study.load import check_config, load
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig
from infra.errors import ConfigError
from infra.store.digest import canonical_json, identity_json

SHORT = {"total_steps": 3}


def study(*stages: dict[str, Any], words: tuple[str, ...] = ()) -> StudyConfig:
    few = ("methods=[vanilla,m3,parcel]", "train_budgets={}")
    return load(overrides=[*few, *words, f"stages={json.dumps(stages)}"])


def init(graph: StudyGraph, name: str) -> str:
    (step,) = (step for step in graph.steps if step.name == name)
    return step.inputs["init"].name


def transfer(config: StudyConfig, method: str, at: str = "") -> str:
    return f"transfer {method} chartqa{at} seed={config.seeds[0]}"


def test_the_papers_three_are_three_values():
    config = study(words=(f"stage2={json.dumps({'train': SHORT})}",))
    stages = stages_of(config.views[0])
    assert [(s.name, s.key, s.view.view_suffix) for s in stages] == [
        ("stage1", "stage1", ""),
        ("intermediary", "intermediary", ""),
        ("stage2", "stage2.train", "@448"),
    ]
    assert [s.is_shared for s in stages] == [True, False, False]
    assert stages[0].methods == ("vanilla",)
    assert stages_of(study(words=("intermediary=null",)).views[0])[-1].name == "stage1"


def test_the_studys_microbatch_and_pack_are_those_of_trainings_that_state_none():
    words = ("compute.microbatch=auto", "intermediary.microbatch=2")
    words += ("compute.pack=null", "intermediary.pack=20")
    parts, plain = graph_of(study(words=words)), graph_of(study())
    rows = {
        step.name.partition(" ")[0]: (step.config.train.microbatch, step.config.train.pack)
        for step in parts.steps
        if step.kind == "checkpoint"
    }
    wanted = {"stage1": ("auto", None), "intermediary": (2, 20), "transfer": ("auto", None)}
    assert rows == wanted
    # It is no part of what a step is.
    for one, other in zip(parts.steps, plain.steps, strict=True):
        assert identity_json(one.config) == identity_json(other.config)
    for field, wrong, key in itertools.product(
        ("microbatch", "pack"), ("0", "all"), ("compute", "stage1")
    ):
        told = rf"{key}: {field} must be at least 1.* or null .* auto for .* got '?{wrong}'?\."
        with pytest.raises(ConfigError, match=told):
            study(words=(f"{key}.{field}={wrong}",))


def test_a_stage_of_ones_own_is_between_its_method_and_its_transfers():
    anneal = {"name": "anneal", "methods": ["parcel"], "train": {**SHORT, "batch_size": 4}}
    config, plain = study(anneal), study()
    graph = graph_of(config)
    assert init(graph, "anneal parcel") == "intermediary parcel"
    assert init(graph, transfer(config, "parcel")) == "anneal parcel"
    assert init(graph, transfer(config, "m3")) == "intermediary m3"
    added = next(step for step in graph.steps if step.name == "anneal parcel")
    before = next(step for step in graph.steps if step.name == "intermediary parcel")
    assert added.config.train.total_steps == 3
    assert added.config.model == before.config.model
    assert added.seed not in {step.seed for step in graph.steps if step is not added}
    assert {*added.inputs} == {*before.inputs}
    # Nothing before it is another step than it was.
    known = {s.name: canonical_json([s.kind, s.config, s.seed]) for s in graph_of(plain).steps}
    now = {s.name: canonical_json([s.kind, s.config, s.seed]) for s in graph.steps}
    assert now.keys() - known.keys() == {"anneal parcel"}
    assert known.items() <= now.items()
    planned = study(anneal, words=("compute.topology=h100:1",))
    rows = [row[:4] for row in _pretrainings(planned)]
    assert ("anneal", planned.views[0], "parcel", added.config.train) in rows


def test_stage_2_begins_from_the_last_stage_and_others_may_follow_it():
    config = study(
        {"name": "anneal", "methods": ["parcel"], "train": SHORT},
        {"name": "cool", "after": "anneal", "methods": ["parcel", "m3"], "train": SHORT},
        {"name": "late", "after": "stage2", "methods": ["m3"], "train": SHORT},
        {"name": "aside", "after": "stage1", "methods": ["m3"], "train": SHORT},
        words=(f"stage2={json.dumps({'train': SHORT, 'num_seeds': 1})}",),
    )
    graph = graph_of(config)
    assert init(graph, "cool parcel") == "anneal parcel"
    assert init(graph, "cool m3") == "intermediary m3"
    assert init(graph, "aside m3") == "stage1 vanilla"
    assert init(graph, transfer(config, "parcel")) == "cool parcel"
    assert init(graph, transfer(config, "m3")) == "aside m3"
    assert init(graph, transfer(config, "vanilla")) == "intermediary vanilla"
    assert init(graph, "stage2 parcel") == "cool parcel"
    assert init(graph, "stage2 m3") == "aside m3"
    assert init(graph, "late m3") == "stage2 m3"
    assert init(graph, transfer(config, "m3", "@448")) == "late m3"
    late = next(step for step in graph.steps if step.name == "late m3")
    assert late.config.model.vision.image_px == 448
    assert late.inputs["data/0"].name == "prepare mixture/web@448"
    assert late.keys == {"train": "stages.2.train"}


def test_a_stage_may_have_a_resolution_and_transfers_of_its_own():
    third = {
        "name": "stage3",
        "after": "stage2",
        "methods": ["parcel"],
        "train": SHORT,
        "resolution": {"image_px": 896, "num_seeds": 1, "transfers": {"refcoco": None}},
    }
    late = {"name": "late", "after": "stage3", "train": {**SHORT, "batch_size": 4}}
    words = (f"stage2={json.dumps({'train': SHORT, 'num_seeds': 1})}",)
    config = study(third, late, words=words)
    assert [view.model.vision.image_px for view in config.views] == [224, 448, 896]
    view = config.views[2]
    assert (view.methods, view.key_prefix) == (("parcel",), "stages.0.resolution.")
    assert (view.prepare.image_px, view.budgets) == (896, (256, 1024, 4096))
    graph, before = graph_of(config), graph_of(study(words=words))
    assert init(graph, "stage3 parcel") == "stage2 parcel"
    assert init(graph, "late parcel") == "stage3 parcel"
    assert init(graph, transfer(config, "parcel", "@896")) == "late parcel"
    assert init(graph, transfer(config, "parcel", "@448")) == "stage2 parcel"
    steps = {step.name: step for step in graph.steps}
    assert steps["stage3 parcel"].config.model.vision.image_px == 896
    assert steps["stage3 parcel"].inputs["data/0"].name == "prepare mixture/web@896"
    assert steps[transfer(config, "parcel", "@896")].keys == {
        "train": "stages.0.resolution.transfers.chartqa.train"
    }
    assert not any("refcoco@896" in name or name.endswith("m3@896") for name in steps)
    assert {s.name for s in before.steps} <= {*steps}
    assert f"chartqa@896/parcel/4096/{config.seeds[0]}" in steps["results demo"].inputs


def test_each_pretraining_seed_has_its_own():
    config = study({"name": "anneal", "train": SHORT}, words=("num_pretrain_seeds=2",))
    steps = {step.name: step for step in graph_of(config).steps}
    assert steps["anneal m3 pretrain=1"].inputs["init"].name == "intermediary m3 pretrain=1"
    assert steps["anneal m3 pretrain=0"].seed != steps["anneal m3 pretrain=1"].seed


def test_its_record_is_the_same_study():
    config = study({"name": "anneal", "methods": ["parcel"], "train": SHORT})
    record = json.loads(json.dumps(dataclasses.asdict(config)))
    assert check_config(record, source="a record") == config


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"name": "stage1"}, "stages.0.name must be a name of its own, got 'stage1'"),
        ({"name": "transfer"}, "stages.0.name must be a name of its own, got 'transfer'"),
        ({"name": "Anneal"}, "stages.0.name: "),
        ({"name": "a", "after": "stage2"}, "that the study has before it, stage1, intermediary, "),
        ({"name": "a", "after": "a"}, "stages.0.after must be a stage"),
        ({"name": "a", "methods": ["mqt"]}, "stages.0.methods must be methods of the study"),
        (
            {"name": "a", "resolution": {"image_px": 224}},
            "stages.0.resolution.image_px must be above that of intermediary, and none that the "
            "study has, 224, got 224",
        ),
        ({"name": "a", "resolution": {"image_px": 450}}, "stages.0.resolution: vision.image_px "),
        ({"name": "a", "resolution": {"budgets": [16]}}, "stages.0.resolution: budgets must hold"),
        ({"name": "a", "trian": {}}, "stages.0.trian: no such key; did you mean train"),
    ],
)
def test_a_fault_is_one_line(stage: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as raised:
        study(stage)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_of_one_name_are_refused():
    with pytest.raises(ConfigError, match=r"stages\.1\.name .*got 'a'"):
        study({"name": "a"}, {"name": "a"})
