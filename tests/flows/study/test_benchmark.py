"""Transfers: the registry's recipes and rows, and whose checkpoints are scored."""

import pytest

from flows.config.benchmark import metric_of
from flows.graph.datasets import datasets_of
from flows.graph.graph import graph_of
from flows.graph.results_plan import results_plan
from flows.study.load import check_config, load
from infra.errors import ConfigError
from pipelines.sources.paper_groups import MAIN_SUITE
from pipelines.sources.registry import BENCHMARKS


def study(transfers: dict, image_px: int = 224, **more):
    vision = {"image_px": image_px, "patch_px": 14}
    values = {"model": {"vision": vision}, "transfers": transfers, "budgets": [16, 64, 256]}
    values |= more
    if image_px == 448:
        values["budgets"] = [16, 1024]
    return check_config(values, source="here")


@pytest.mark.parametrize(("image_px", "decay", "epochs"), [(224, 0.0, 5), (448, 3e-7, 10)])
def test_what_a_config_leaves_out_is_the_registrys_recipe(image_px, decay, epochs):
    train = study({"textvqa": {"train": {"peak_lr": 0.5}}}, image_px).transfers["textvqa"].train
    assert train.peak_lr == 0.5
    assert (train.batch_size, train.epochs, train.text_len) == (256, epochs, 32)
    assert train.weight_decay == pytest.approx(decay)
    assert (train.schedule, train.warmup, train.b2, train.grad_clip) == ("cosine", 0.05, 0.999, 1)


def test_steps_that_a_config_states_replace_the_recipes_epochs():
    train = study({"chartqa": {"train": {"total_steps": 7}}}).transfers["chartqa"].train
    assert (train.epochs, train.total_steps, train.label_smoothing) == (None, 7, 0.2)
    assert train.in_steps(1_000_000) == train
    passes = study({"chartqa": {}}).transfers["chartqa"].train
    assert (passes.dropout, passes.sampling) == (0.1, "without_replacement")
    assert study({"docvqa": {}}).transfers["docvqa"].train.sampling == "choice"
    assert passes.in_steps(1000).total_steps == round(30 * 1000 / 256)


def test_every_benchmark_has_a_recipe_and_its_rows_by_default():
    tuned = {name: b for name, b in BENCHMARKS.items() if b.final_split or b.parent}
    everything = study({name: {} for name in tuned})
    assert len(everything.views[0].rows) == sum(len(b.rows) for b in tuned.values()) == 47
    plan = results_plan(everything)
    assert len(plan.groups[MAIN_SUITE]) == 27
    # VATEX has no part in any mean, though its row is scored like any other.
    assert plan.left_out == ("vatex_cap",)
    assert "vatex_cap" in plan.benchmarks
    assert not any("vatex_cap" in members for members in plan.groups.values())
    assert {name: len(members) for name, members in plan.groups.items()} == plan.group_sizes
    assert list(plan.group_sizes.values()) == [27, 22, 5, 3, 8, 3, 3, 2, 9, 3, 21]
    assert set(everything.fine_tunings) == {n for n, b in tuned.items() if not b.parent}


def test_what_has_no_training_split_is_scored_with_a_stages_checkpoint():
    config = study({"mme": {}, "mmmu": {}}, num_seeds=1)
    assert config.zero_shot == ("mme", "mmmu")
    assert not config.fine_tunings
    assert list(config.views[0].rows) == ["mme:perception", "mme:cognition", "mmmu"]
    with pytest.raises(ConfigError, match=r"mmmu\.zero_shot must be true, got false"):
        study({"mmmu": {"zero_shot": False}}, num_seeds=1)


def test_rows_are_named_by_benchmark_and_by_split_where_there_are_several():
    one = study({"refcoco": {"eval_splits": ["refcocog_val"]}, "gqa": {}})
    assert list(one.views[0].rows) == ["refcoco", "gqa"]
    assert one.views[0].rows["refcoco"].split == "refcocog_val"
    several = study({"refcoco": {}, "msvd_qa": {"transfer": False}})
    assert len(several.views[0].rows) == 8
    assert several.views[0].rows["refcoco:refcocoplus_testB"].split == "refcocoplus_testB"
    datasets = datasets_of(several.views[0])
    assert datasets["refcoco:refcocog_test/eval"].split == "refcocog_test"
    assert [name for name in datasets if name.endswith("/train")] == [
        "refcoco/train",
        "msvd_qa/train",
    ]


def test_a_zero_shot_benchmark_is_scored_with_its_parents_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
):
    alone, both = study({"marvl": {}}), study({"nlvr": {"train": {"peak_lr": 0.5}}, "marvl": {}})
    found = datasets_of(alone.views[0])
    train, scored = found["nlvr/train"], found["marvl/eval"]
    assert (train.reader, train.split) == ("nlvr", "train+dev")
    assert (scored.reader, scored.split) == ("marvl", "id+sw+ta+tr+zh")
    assert datasets_of(both.views[0])["nlvr/train"] == train
    assert list(alone.fine_tunings) == list(both.fine_tunings) == ["nlvr"]
    assert alone.fine_tunings["nlvr"].batch_size == 256
    assert both.fine_tunings["nlvr"].peak_lr == 0.5
    cells = both.num_seeds * sum(len(both.budgets_of(m)) for m in both.methods)
    drawn = {"path": "web"}  # A graph needs no files of what is drawn, whoever reads them.
    graph = graph_of(study({"nlvr": drawn, "marvl": drawn}), "evaluate")
    assert len(graph.cells) == 2 * cells
    transfers = [node for node in graph.nodes if node.name.startswith("transfer ")]
    assert {node.name.split()[2] for node in transfers} == {"nlvr"}
    scored = {step.name.split()[2] for node in transfers for step in node.jobs[1].steps}
    assert scored == {"nlvr", "marvl"}
    assert study({"pope": {}}).transfers["pope"].eval_text_len == 48


@pytest.mark.parametrize(
    ("name", "fine_tuned", "zero_shot"),
    [
        ("gqa", "vqa", "gqa_llava"),
        ("xgqa", "vqa", "gqa_llava"),
        ("pope", "pope_big_vision", "pope"),
        ("vqav2", "vqav2", "vqav2"),
    ],
)
def test_the_rule_is_that_of_the_question(name: str, fine_tuned: str, zero_shot: str):
    for stated, rule in (({}, fine_tuned), ({"zero_shot": True}, zero_shot)):
        transfers = study({name: stated}, num_seeds=1).transfers
        assert metric_of(name, transfers[name]) == rule
    own = study({name: {"zero_shot": True, "metric": "anls"}}, num_seeds=1).transfers[name]
    assert metric_of(name, own) == "anls"


def test_a_published_benchmark_may_ask_in_other_words():
    short = "{text}\nAnswer the question using a single word or phrase."
    transfers = {"gqa": {"prompt": short}, "pope": {"zero_shot": True}, "aokvqa_mc": {}}
    asked = datasets_of(study(transfers, num_seeds=1).views[0])
    assert {asked[f"gqa/{name}"].reader.prompt for name in ("train", "eval")} == {short}
    assert asked["pope/eval"].reader == "pope"
    assert "vqav2/train" not in asked
    with pytest.raises(ConfigError, match=r"gqa\.prompt .*\{text\}, got \{choices\}"):
        study({"gqa": {"prompt": "{text} {choices}"}})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "transfers={nlvr: {}, marvl: {train: {peak_lr: 1.0}}}",
            r"marvl\.train: marvl is scored with the checkpoints of nlvr; state .* nlvr\.train",
        ),
        ("transfers.chartqa.eval_splits=[test,test]", "eval_splits must not repeat a split"),
        (
            "transfers.chartqa.eval_splits=[test, nope]",
            r"transfers\.chartqa\.eval_splits: split of chartqa must be one of train, .*'nope'",
        ),
        ("transfers.refcoco.train_split=nope", r"transfers\.refcoco\.train_split: split of refc"),
        ("sources=[{reader: wep}]", r"sources\.0\.reader must be one of .*web.*got 'wep'"),
        ("sources=[{reader: web, split: val}]", r"sources\.0\.split: split of web must be one"),
        ("transfers.chartqa.train.epochs=0", "epochs must be positive, or none, got 0"),
        ("transfers.chartqa.train=3", "transfers.chartqa.train: "),
        ("transfers=[chartqa]", "transfers: "),
    ],
)
def test_mistakes_are_named(override, told):
    with pytest.raises(ConfigError, match=told) as refused:
        load(overrides=[override])
    assert "\n" not in str(refused.value)
