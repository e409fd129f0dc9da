"""Stage 2: a study at two resolutions, and stages that begin from a checkpoint."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.graph.costs import costs_of
from flows.graph.datasets import datasets_of
from flows.graph.nodes import StudyGraph
from flows.graph.results_plan import results_plan
from flows.steps.kind import Step
from flows.steps.kinds.results import ResultsSpec
from flows.study.input_files import check_study_files
from flows.study.load import check_config, load
from flows.study.study import StudyConfig
from infra.errors import ConfigError
from infra.store.digest import canonical_json, identity_json
from model.checkpoint.config_json import config_to_json
from model.config import ModelConfig
from model.files import CONFIG, DIGEST
from parcel.cli.flops_models import flops_models
from pipelines.sources.registry import BENCHMARKS
from tests.flows.graphs import checked_graph


def study(**stage2: Any) -> StudyConfig:
    words = json.dumps({"train": {"total_steps": 3}, **stage2})
    return load(overrides=[f"stage2={words}"])


def high(**stage2: Any) -> StudyConfig:
    return study(**stage2).views[1]


def step(graph: StudyGraph, name: str) -> Step:
    return next(step for step in graph.steps if step.name == name)


def test_a_study_without_it_has_the_steps_and_keys_it_had():
    plain, wide = (
        {s.name: canonical_json([s.kind, s.config, s.seed]) for s in checked_graph(config).steps}
        for config in (load(), study())
    )
    del plain["results demo"]
    assert plain.items() <= wide.items()
    assert all(
        "@448" in name or name.startswith("stage2 ")
        for name in wide.keys() - plain.keys()
        if name != "results demo"
    )
    assert "resolution" not in identity_json(results_plan(load()))
    assert "also" not in identity_json(results_plan(load()))


def test_every_method_goes_on_from_its_intermediary_and_its_transfers_from_there():
    config = study(num_seeds=1)
    graph = checked_graph(config)
    for method in config.methods:
        stage2 = step(graph, f"stage2 {method}")
        assert stage2.inputs["init"].name == f"intermediary {method}"
        assert stage2.inputs["data/0"].name == "prepare mixture/web@448"
        assert stage2.config.model.vision.image_px == 448
        assert stage2.config.model.connector.kind == method
        assert stage2.config.train.total_steps == 3
        assert stage2.seed not in {step(graph, f"intermediary {method}").seed, None}
        seed = config.seeds[0]
        transfer = step(graph, f"transfer {method} chartqa@448 seed={seed}")
        assert transfer.inputs["init"] is stage2
        assert transfer.inputs["data/0"].name == "prepare chartqa@448/train"
        lower = step(graph, f"transfer {method} chartqa seed={seed}")
        assert lower.inputs["init"].name == f"intermediary {method}"
    assert graph.results is not None
    roles = set(graph.results.inputs)
    assert f"chartqa@448/parcel/1024/{config.seeds[0]}" in roles
    assert f"chartqa/parcel/256/{config.seeds[2]}" in roles
    assert f"chartqa@448/parcel/1024/{config.seeds[1]}" not in roles
    assert {"chance/chartqa", "chance/chartqa@448"} <= roles


def test_budgets_keep_their_share_of_the_features_unless_said():
    view = high()
    assert view.budgets == (64, 256, 1024)
    assert view.train_budgets["m3"] == (64, 256, 1024)
    assert view.budgets_of("vanilla") == (1024,)
    assert view.connectors["mqt"].num_heads == 4
    assert view.connectors["mqt"].buckets == ()
    # A pooling's grid and the anchors' grow with the patches, so their budgets keep it, too.
    middle = high(image_px=336)
    assert middle.budgets == middle.train_budgets["m3"] == (36, 144, 576)
    assert middle.budgets_of("parcel") == (36, 144, 576)
    lists = {"budgets": [64, 576], "train_budgets": {"mqt": [64]}}
    assert high(image_px=336, **lists).budgets == (64, 576)
    own = high(budgets=[16, 1024], train_budgets={"m3": [16, 1024]}).train_config_for
    assert own(load().transfers["chartqa"].train, "m3").budgets == (16, 1024)


def test_records_and_recipes_are_those_of_the_larger_images():
    values: dict[str, Any] = {
        "model": {"vision": {"image_px": 224}},
        "budgets": [16, 256],
        "prepare": {"num_shards": 3},
        "sources": [{"reader": "web", "prepare": {"image_px": 224, "num_shards": 7}}],
        "transfers": {
            "nlvr": {"prepare": {"image_px": 224, "num_shards": 5}},
            "textvqa": {"train": {"batch_size": 8}},
            "chartqa": {"train": {"epochs": 2}},
        },
        "data_root": "somewhere",
        "stage2": {
            "transfers": {
                "textvqa": {"train": {"peak_lr": 0.5}},
                "chartqa": {"train": {"total_steps": 9}},
                "gqa": {},
            }
        },
    }
    config = check_config(values, source="here")
    low, view = config.views
    assert (view.prepare.image_px, view.prepare.num_shards) == (448, 3)
    (source,) = view.sources
    assert source.prepare == dataclasses.replace(low.sources[0].prepare, image_px=448)
    nlvr = view.transfers["nlvr"]
    assert nlvr.prepare is not None
    assert (nlvr.prepare.image_px, nlvr.prepare.num_shards) == (448, 5)
    assert (low.transfers["nlvr"].train.epochs, nlvr.train.epochs) == (3, 10)
    textvqa = view.transfers["textvqa"].train
    recipe = BENCHMARKS["textvqa"].recipes[448]
    assert (textvqa.batch_size, textvqa.peak_lr, textvqa.epochs) == (8, 0.5, recipe.epochs)
    assert (view.transfers["chartqa"].train.epochs, low.transfers["chartqa"].train.epochs) == (
        None,
        2,
    )
    assert view.transfers["gqa"].train.freeze_vision == "all"
    assert "gqa" not in low.transfers
    sizes = {spec.prepare.image_px for spec in datasets_of(view).values()}
    assert sizes == {448}
    assert all("@448" in name for name in datasets_of(view))


def test_a_recorded_config_is_the_config_again():
    import pydantic

    config = study(transfers={"refcoco": None, "textvqa": {}}, budgets=[64, 1024])
    recorded = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    assert check_config(recorded, source="record") == config
    assert list(check_config(recorded, source="record").views[1].transfers) == [
        "chartqa",
        "msvd_qa",
        "textvqa",
    ]


def test_costs_are_those_of_the_resolution():
    config = study()
    low, top = ({(c.method, c.budget): c for c in costs_of(view)} for view in config.views)
    assert top["parcel", 256].tflops > low["parcel", 256].tflops
    assert top["vanilla", 1024].kv_mb > low["vanilla", 256].kv_mb
    assert {row for cost in top.values() for row in cost.benchmarks} == {
        "chartqa@448",
        "refcoco@448",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stage2={image_px: 224}"], r"stage2\.image_px must be above .*=224, got 224"),
        (["stage2={image_px: 450}"], "stage2: vision.image_px must be a multiple of"),
        (["stage2={budgets: [16]}"], "stage2: budgets must hold 1024, all tokens"),
        (
            ["stage2={transfers: {chartqa: {prepare: {image_px: 224}}}}"],
            r"stage2: transfers\.chartqa\.prepare\.image_px must be .*=448, got 224",
        ),
        (["stage2={trian: {}}"], r"stage2\.trian: no such key; did you mean train\?"),
        (["stage1=null"], "stage1 or start must be given"),
        (["start={vanilla: a}"], "start must be one checkpoint where stage1 is given"),
        (["start={vanilla: a}", "stage1=null"], "start must have .* got none for m3, mqt, parcel"),
        (
            ["start=a", "stage1=null", "intermediary=null", "num_pretrain_seeds=2"],
            "num_pretrain_seeds must be 1 without stage1 and intermediary, got 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(words: list[str], told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        load(overrides=words)
    assert "\n" not in str(refused.value)


def checkpoint(folder: Path, model: ModelConfig) -> Path:
    folder.mkdir(parents=True)
    (folder / DIGEST).write_text("0\n")
    (folder / CONFIG).write_text(config_to_json(model))
    (folder / "tokenizer.model").write_bytes(b"pieces")
    return folder


def begun(
    tmp_path: Path, *words: str, of: str = "vanilla", start: Mapping[str, Path] | None = None
) -> StudyConfig:
    """A study of the demo's model that begins from a checkpoint, of one method or of each."""
    first = checkpoint(tmp_path / "first", load().model_of(of))  # type: ignore[arg-type]
    given = json.dumps({k: str(v) for k, v in (start or {}).items()} or str(first))
    return load(overrides=[f"start={given}", f"tokenizer.path={first}/tokenizer.model", *words])


def test_stages_that_are_left_out_are_those_before_the_start(tmp_path: Path):
    graph = checked_graph(begun(tmp_path, "stage1=null"))
    for method in ("vanilla", "parcel"):
        assert step(graph, f"intermediary {method}").inputs["init"].name == "start"
    assert not [s for s in graph.steps if s.name.startswith("stage1")]


def test_each_method_may_start_from_a_checkpoint_of_its_own(tmp_path: Path):
    methods = ("vanilla", "parcel")
    own = {m: checkpoint(tmp_path / m, load().model_of(m)) for m in methods}
    words = ("stage1=null", "intermediary=null", "methods=[vanilla, parcel]", "stage2={}")
    config = begun(tmp_path, *words, start=own)
    graph = checked_graph(config)
    for method in methods:
        assert step(graph, f"stage2 {method}").inputs["init"].name == f"start {method}"
        transfer = step(graph, f"transfer {method} chartqa seed={config.seeds[0]}")
        assert transfer.inputs["init"].name == f"start {method}"
    assert step(graph, "start parcel").inputs["given"].name == "files start.parcel"


@pytest.mark.parametrize(
    ("of", "words", "told"),
    [
        ("parcel", (), "start must be a checkpoint without a connector, or with the connector of "
         "vanilla, which continues from it; got connector parcel"),
        ("parcel", ("stage1=null",), "or with the connector of vanilla, .*start={parcel: …}"),
        ("mqt", ("stage1=null", "methods=[parcel]"),
         "or with the connector of parcel, .* got connector mqt"),
        ("vanilla", ("model.text.width=48",),
         r"start must be a checkpoint of the study's model, whose text\.width is 48, got .* 96"),
        ("vanilla", ("model.vision.family=siglip2",), r"family is siglip2, got one of siglip"),
        ("vanilla", ("model.projector=mlp",), r"whose projector is mlp, got one of linear"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, of: str, words: tuple[str, ...], told: str
):
    config = begun(tmp_path, *words, of=of)
    with pytest.raises(ConfigError, match=told):
        check_study_files(config.views[0])


def test_a_start_with_the_connector_of_its_method_is_taken(tmp_path: Path):
    config = begun(tmp_path, "stage1=null", "methods=[parcel]", of="parcel")
    assert step(checked_graph(config), "intermediary parcel").inputs["init"].name == "start"
    # M³ has pooling only, and no parameters.
    check_study_files(begun(tmp_path / "again", of="m3").views[0])


def test_what_is_no_checkpoint_of_anybody_is_refused(tmp_path: Path):
    (tmp_path / "weights.npz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"start cannot be read, got .*weights\.npz"):
        check_study_files(begun(tmp_path, "stage1=null", f"start={tmp_path}/weights.npz").views[0])
    with pytest.raises(ConfigError, match=r"start .*\.npz .*no such path"):
        check_study_files(begun(tmp_path / "b", "stage1=null", "start=gone").views[0])


def test_softcaps_of_transfers_are_kept_where_a_study_says_so():
    words = ["model.attn_softcap=50", "model.final_softcap=30"]
    for kept in (False, True):
        config = load(overrides=[*words, f"softcaps_in_transfers={str(kept).lower()}"])
        model = config.model_of("parcel", transfer=True)
        assert (model.attn_softcap, model.final_softcap) == ((50, 30) if kept else (0, 0))
        assert config.model_of("parcel").attn_softcap == 50


def test_groups_of_parameters_must_be_there_before_anything_runs():
    def grouped(params: str, *words: str) -> StudyGraph:
        return checked_graph(
            load(overrides=[f"intermediary.groups=[{{params: {params!r}}}]", *words])
        )

    spec = step(grouped("connector/.*"), "intermediary vanilla").config
    assert spec.train.groups[0].lr == 1.0  # Of PARCEL's parameters, if of none of vanilla's.
    with pytest.raises(ConfigError, match=r"intermediary\.groups: no parameter .* 'vison/\.\*'"):
        grouped("vison/.*")
    with pytest.raises(ConfigError, match="begin with projector, text, vision;"):
        grouped("connector/.*", "methods=[vanilla]")


def test_fields_that_artifacts_are_older_than_change_no_key():
    train = load().stage1
    assert train is not None
    text = identity_json(train)
    assert "groups" not in text
    assert "rsqrt_timescale" not in text
    changed = dataclasses.replace(train, rsqrt_timescale=5.0)
    assert '"rsqrt_timescale":5.0' in identity_json(changed)


def test_a_recorded_plan_is_the_plan_again():
    import pydantic

    spec = ResultsSpec(plan=results_plan(study()))
    recorded = json.loads(canonical_json(spec))
    again = pydantic.TypeAdapter(ResultsSpec).validate_python(recorded)
    assert again == spec
    assert again.plan.also[0].benchmarks == ("chartqa@448", "refcoco@448")


def test_flops_take_stage_2s_settings_for_its_size(tmp_path: Path):
    path = tmp_path / "two.yaml"
    path.write_text("base: demo\nstage2: {connectors: {parcel: {num_heads: 4, mlp_dim: 64}}}\n")
    found = {m.connector.kind: m for m in flops_models(str(path), 448)[""]}
    assert (found["parcel"].vision.image_px, found["parcel"].connector.mlp_dim) == (448, 64)
    assert found["mqt"].connector.mqt_keys == "positional"
    own = {m.connector.kind: m for m in flops_models(str(path), None)[""]}
    assert (own["parcel"].vision.image_px, own["parcel"].connector.buckets) == (224, (62, 64, 256))
    other = {m.connector.kind: m for m in flops_models(str(path), 112)[""]}
    assert other["parcel"].connector.buckets == ()  # Those of 224 px do not fit.
