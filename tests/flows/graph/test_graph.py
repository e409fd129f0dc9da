"""The graph of a study: its nodes and their order, its cells, its seeds."""

import dataclasses

import pytest

from flows.graph.datasets import datasets_of
from flows.graph.graph import PHASES, graph_of
from flows.graph.results_plan import results_plan
from flows.graph.specs import decode_of
from flows.report.build import build_report
from flows.report.markdown import to_markdown
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.digest import canonical_json
from model.connector.registry import KINDS
from pipelines.sources.registry import BENCHMARKS, SOURCES
from tests.flows.report.report_studies import make

METHODS = tuple(KINDS)


def test_all_methods_are_accepted_and_run_where_they_can():
    study = load(overrides=[f"methods=[{','.join(METHODS)}]"])
    assert len(METHODS) == 14
    own = {method: study.budgets_of(method) for method in METHODS}
    assert {method for method, served in own.items() if served == (16, 64, 256)} == set(METHODS) - {
        "vanilla",
        "avgpool4",
        "avgpool2",
        "parcel_fixed2",
    }
    assert own["vanilla"] == (256,)
    assert own["avgpool4"] == (16,)
    assert own["avgpool2"] == (64,)
    assert own["parcel_fixed2"] == (64, 256)


def test_there_are_only_the_cells_that_a_method_serves():
    few, more = (
        load(overrides=[f"methods=[vanilla,{method}]"]) for method in ("avgpool4", "parcel_dual")
    )
    cells = len(few.views[0].rows) * few.num_seeds
    assert len(graph_of(more).cells) - len(graph_of(few).cells) == 2 * cells
    assert len(graph_of(more).nodes) == len(graph_of(few).nodes)


@pytest.mark.parametrize("until", PHASES)
def test_every_node_comes_after_those_it_reads_and_has_a_name_of_its_own(until):
    graph = graph_of(load(overrides=["hygiene.contamination=remove"]), until)
    before: set[str] = set()
    for node, upstream in graph.upstream.items():
        assert {one.name for one in upstream} <= before
        before.add(node.name)
    assert len(before) == len(graph.nodes)
    names = [step.name for step in graph.steps]
    assert len(set(names)) == len(names)


def test_a_transfer_is_one_node_with_its_checkpoint_and_all_its_predictions_and_scores():
    config = load()
    graph = graph_of(config)
    node = next(n for n in graph.nodes if n.name.startswith("transfer parcel chartqa"))
    training, answering, scoring = node.jobs
    assert [step.name for step in training.steps] == [node.name]
    assert [step.config.budget for step in answering.steps] == [16, 64, 256]
    assert {step.inputs["checkpoint"] for step in answering.steps} == set(training.steps)
    assert [step.inputs["predictions"] for step in scoring.steps] == [*answering.steps]
    assert {step.config.metric for step in scoring.steps} == {"relaxed_accuracy"}
    assert scoring.cpus == 1
    assert not scoring.gpus
    assert {step.kind for step in graph.cells.values()} == {"scores"}
    only_trained = graph_of(config, "transfer")
    assert {len(n.jobs) for n in only_trained.nodes} == {1}


def zero_shot(*overrides: str):
    drawn = "{zero_shot: true, path: web}"  # A graph needs no files of what is drawn.
    transfers = f"transfers={{chartqa: {{}}, gqa: {drawn}, pope: {drawn}}}"
    return load(overrides=["num_seeds=1", "num_pretrain_seeds=2", transfers, *overrides])


def test_zero_shot_rows_are_scored_by_the_last_stage_of_each_pretraining():
    config = zero_shot("stages=[{name: instruct, methods: [parcel]}]")
    graph = graph_of(config)
    by_name = {node.name: node for node in graph.nodes}
    for number, seed in config.seed_pairs:
        for method, stage in (("m3", "intermediary"), ("parcel", "instruct")):
            answering, scoring = by_name[f"zero-shot {method} seed={seed}"].jobs
            read = {step.inputs["checkpoint"].name for step in answering.steps}
            assert read == {f"{stage} {method} pretrain={number}"}
            assert {step.inputs["data"].name for step in answering.steps} == {
                "prepare gqa/eval",
                "prepare pope/eval",
            }
            assert [s.inputs["predictions"] for s in scoring.steps] == [*answering.steps]
            assert {step.config.metric for step in scoring.steps} == {"gqa_llava", "pope"}
    # Nothing is fine-tuned for them, nor are guesses learnt.
    assert "prepare gqa/train" not in by_name
    assert not {"chance gqa", "chance pope"} & by_name.keys()
    assert "chance chartqa:test_human" in by_name
    plan = results_plan(config)
    assert {plan.trainings[row] for row in ("gqa", "pope")} == {"zero-shot"}
    assert len(graph.cells) == len(config.seeds) * sum(
        len(config.budgets_of(method)) for method in config.methods
    ) * len(config.views[0].rows)


def test_a_zero_shot_study_is_refused_transfer_seeds_and_untrained_connectors():
    with pytest.raises(ConfigError, match=r"num_seeds must be 1 .*transfers\.gqa .*zero_shot"):
        zero_shot("num_seeds=2")
    begun = "stage1=null", "intermediary=null", "num_pretrain_seeds=1", "start=weights.npz"
    with pytest.raises(ConfigError, match=r"zero_shot .* m3"):
        zero_shot(*begun)
    with pytest.raises(ConfigError, match=r"zero_shot .* mqt"):
        zero_shot(*begun, "stages=[{name: instruct, after: start, methods: [m3, parcel]}]")


def test_a_metric_is_part_of_the_scores_alone():
    def digests(metric: str) -> dict[str, set[str]]:
        overrides = [f"transfers.chartqa.metric={metric}"]
        steps = graph_of(load(overrides=overrides), "evaluate").steps
        return {
            kind: {canonical_json(step.config) for step in steps if step.kind == kind}
            for kind in ("checkpoint", "predictions", "scores")
        }

    relaxed, other = digests("relaxed_accuracy"), digests("anls")
    assert [kind for kind in relaxed if relaxed[kind] != other[kind]] == ["scores"]


def test_only_a_metric_that_reads_masks_has_the_codec_as_input():
    readers = {
        step.config.metric: "mask_codec" in step.inputs
        for step in graph_of(load()).steps
        if step.kind == "scores"
    }
    assert readers.pop("miou")
    assert readers
    assert not any(readers.values())


def test_the_same_step_asked_for_twice_is_one_step():
    words = [
        "sources=[{reader: web}, {reader: chartqa}]",
        "transfers={chartqa: {train_split: train}}",
    ]
    prepare = "prepare={num_shards: 2}"
    graph = graph_of(load(overrides=[*words, prepare]), "transfer")
    names = [node.name for node in graph.nodes]
    assert "prepare mixture/chartqa" in names
    assert "prepare chartqa/train" not in names
    transfer = next(n for n in graph.nodes if n.name.startswith("transfer vanilla chartqa"))
    assert transfer.steps[0].inputs["data/0"].name == "prepare mixture/chartqa"


def test_more_seeds_begin_with_the_same_ones():
    def seeds(*overrides: str) -> tuple[tuple[int, int], ...]:
        return load(overrides=list(overrides)).seed_pairs

    assert seeds("num_seeds=5")[:3] == seeds()
    assert len({seed for _, seed in seeds("num_seeds=100", "num_pretrain_seeds=20")}) == 2000
    two = seeds("num_pretrain_seeds=2")
    assert two[:3] == seeds()
    assert [number for number, _ in two] == [0, 0, 0, 1, 1, 1]
    assert seeds("seed=1") != seeds()
    assert all(10_000 <= seed <= 100_000 for _, seed in seeds("num_seeds=100"))


def test_every_stage_and_pretraining_has_a_seed_of_its_own():
    def checkpoints(*overrides: str) -> dict[str, int | None]:
        graph = graph_of(load(overrides=list(overrides)))
        return {s.name: s.seed for s in graph.steps if s.kind == "checkpoint"}

    once, twice = checkpoints(), checkpoints("num_pretrain_seeds=2")
    assert once["stage1 vanilla"] != once["intermediary parcel"]
    assert once["intermediary parcel"] == once["intermediary mqt"]
    assert twice["stage1 vanilla pretrain=0"] == once["stage1 vanilla"]
    assert twice["stage1 vanilla pretrain=1"] != once["stage1 vanilla"]
    transfers = [name for name in twice if name.startswith("transfer parcel chartqa")]
    assert transfers[:3] == [name for name in once if name.startswith("transfer parcel chartqa")]
    assert len(transfers) == 6


@pytest.mark.parametrize(("stated", "taken"), [("random", "first"), ("centre", "centre")])
def test_training_stores_windows_and_evaluation_the_one_it_looks_at(stated: str, taken: str):
    own = f"transfers.msvd_qa.prepare.num_windows=4 transfers.msvd_qa.prepare.frame_window={stated}"
    found = datasets_of(load(overrides=own.split()).views[0])
    train, held_out = found["msvd_qa/train"].prepare, found["msvd_qa/eval"].prepare
    assert (train.num_windows, train.frame_window) == (4, stated)
    assert (held_out.num_windows, held_out.frame_window) == (1, taken)


def test_hygiene_is_off_unless_asked_for_and_a_step_per_corpus():
    plain, screened = load(), load(overrides=["hygiene.contamination=remove"])
    assert plain.hygiene is None
    before = {node.name for node in graph_of(plain, "prepare").nodes}
    new = [n for n in graph_of(screened, "prepare").nodes if n.name not in before]
    assert [node.name for node in new] == ["screen mixture/web"]
    (step,) = new[0].steps
    assert step.config.contamination == "remove"
    assert {role: read.name for role, read in step.inputs.items()} == {
        "dataset": "prepare mixture/web",
        "chartqa/eval": "prepare chartqa/eval",
        "refcoco/eval": "prepare refcoco/eval",
        "msvd_qa/eval": "prepare msvd_qa/eval",
    }
    stage1 = next(s for s in graph_of(screened, "train").steps if s.name == "stage1 vanilla")
    assert stage1.inputs["data/0"] is not step
    assert stage1.inputs["data/0"].name == "screen mixture/web"


def test_pictures_of_training_splits_count_where_all_splits_do():
    words = ["hygiene={contamination: remove, splits: all}", "transfers.msvd_qa.zero_shot=true"]
    (step,) = (s for s in graph_of(load(overrides=words), "prepare").steps if s.kind == "screened")
    trained = {role for role in step.inputs if role.endswith("/train")}
    assert trained == {"chartqa/train", "refcoco/train"}
    assert "msvd_qa/eval" in step.inputs
    shared = [*words, "sources=[{reader: chartqa, split: train}]", "transfers.chartqa={}"]
    with pytest.raises(ConfigError, match=r"sources\.0 .*chartqa's train\+val\b"):
        load(overrides=shared)
    assert load(overrides=[*shared, "hygiene.contamination=report"])


def test_results_read_what_hygiene_reports_and_nothing_that_it_removed():
    def read(action: str) -> set[str]:
        graph = graph_of(load(overrides=[f"hygiene.contamination='{action}'"]))
        assert graph.results is not None
        return {role for role in graph.results.inputs if role.startswith("screened/")}

    assert read("report") == {"screened/mixture/web"}
    assert read("remove") == read("off") == set()


def test_the_plan_says_what_seeds_and_rows_share():
    study = load(overrides=["num_pretrain_seeds=2", "num_seeds=2", "transfers.xgqa={}"])
    plan = results_plan(study)
    assert plan.pretrainings == (0, 0, 1, 1)
    assert len(plan.seeds) == 4
    assert {plan.trainings[row] for row in plan.benchmarks if row.startswith("xgqa")} == {"gqa"}
    assert plan.trainings["chartqa"] == "chartqa"


def test_a_budget_a_method_does_not_serve_is_an_empty_cell():
    study = load(
        overrides=["methods=[vanilla,parcel,avgpool2]", "transfers.refcoco.transfer=false"]
    )
    plan = results_plan(study)
    scores = [
        make("chartqa", method, budget, seed, 50.0)
        for method in study.methods
        for budget in study.budgets_of(method)
        for seed in study.seeds
    ]
    report = build_report(plan, scores, {})
    assert report.sections[0].cell("avgpool2", 64).complete
    assert report.sections[0].cell("avgpool2", 16).expected == 0
    row = next(line for line in to_markdown(report).splitlines() if line.startswith("| avgpool2"))
    assert [cell.strip(" *") for cell in row.split("|")[2:8]] == [
        "",
        "50.0 ± 0.0",
        "",
        "",
        "100.0",
        "",
    ]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["methods=[vanilla,avgpool2]", "budgets=[16,256]"],
            r"budgets: avgpool2 serves none of \[16, 256\]; it serves 64\. Add one of these",
        ),
        (["methods=[vanilla,avgpool4]", "budgets=[16]"], "budgets must hold 256, all tokens"),
        (["methods=[parcel]", "budgets=[16,256,1024]"], r"no method serves \[1024\]"),
    ],
)
def test_budgets_that_no_cell_has_are_refused(overrides: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        load(overrides=overrides)


def test_captions_are_decoded_with_their_beams(monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "chartqa", dataclasses.replace(BENCHMARKS["chartqa"], beams=3))
    assert decode_of(load().views[0], "chartqa").decoding.beams == 3
    assert decode_of(load().views[0], "refcoco").decoding.beams == 1
    beams = {name: row.beams for name, row in BENCHMARKS.items() if row.beams > 1}
    assert beams == {"chartqa": 3, "cococap": 2, "nocaps": 2, "textcaps": 3}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("msrvtt_qa", "msrvtt_qa cannot be prepared, no source reads msrvtt_qa; leave it out"),
        ("docvqa", "docvqa cannot be scored, its metric 'missing' is not among .*; leave it out"),
    ],
)
def test_benchmarks_that_cannot_be_run_are_refused(name: str, told: str, monkeypatch):
    lacking = dataclasses.replace(BENCHMARKS["docvqa"])
    object.__setattr__(lacking, "metric", "missing")
    monkeypatch.setitem(BENCHMARKS, "docvqa", lacking)
    monkeypatch.delitem(SOURCES, "msrvtt_qa", raising=False)
    with pytest.raises(ConfigError, match=told) as refused:
        load(overrides=[f"transfers.{name}={{}}"])
    assert "\n" not in str(refused.value)
    if name == "docvqa":
        load(overrides=["transfers.docvqa={transfer: false}"])


@pytest.mark.slow
def test_processes_are_asked_for_and_no_part_of_what_a_step_is():
    words = ["processes_per_stage=2", "gpus_per_stage=2", "processes_per_cell=4", "gpus_per_cell=4"]
    words = [f"compute.{word}" for word in [*words, "cpus_per_cell=4"]]
    plain, shared = graph_of(load()), graph_of(load(overrides=words))
    jobs = [job for node in shared.nodes for job in node.jobs]
    asked = {job.steps[0].name: job.processes for job in jobs if job.steps[0].kind == "checkpoint"}
    assert asked.pop("stage1 vanilla") == 2
    assert set(asked.values()) == {4}
    assert {job.processes for job in jobs if job.steps[0].kind != "checkpoint"} == {1}
    assert [dataclasses.astuple(step)[:4] for step in plain.steps] == [
        dataclasses.astuple(step)[:4] for step in shared.steps
    ]


def test_a_launcher_gives_each_process_a_host_of_its_own():
    words = ["processes_per_stage=3", "cpus_per_stage=8", "gpus_per_stage=8", "launcher=srun -N 3"]
    graph = graph_of(load(overrides=["stage1.batch_size=6", *(f"compute.{w}" for w in words)]))
    (job,) = next(node for node in graph.nodes if node.name == "stage1 vanilla").jobs
    assert (job.processes, job.cpus, job.gpus, job.launcher) == (3, 8, 8, "srun -N 3")


def test_on_ray_each_process_asks_for_its_own_and_the_step_for_a_core():
    words = ["processes_per_stage=3", "cpus_per_stage=8", "gpus_per_stage=4", "device=gpu"]
    launcher = "launcher=ray --chips 8"
    with pytest.raises(ValueError, match="launcher ray needs ray_address"):
        load(overrides=[f"compute.{launcher}"])
    asked = [f"compute.{word}" for word in (*words, launcher, "ray_address=auto")]
    graph = graph_of(load(overrides=["stage1.batch_size=6", *asked]))
    (job,) = next(node for node in graph.nodes if node.name == "stage1 vanilla").jobs
    assert (job.processes, job.cpus, job.gpus) == (3, 1, 0)
    assert job.launcher == "ray --cpus 8 --gpus 4 --wait 900 --chips 8"
    (alone,) = next(node for node in graph.nodes if node.name == "intermediary parcel").jobs
    assert alone.launcher == launcher.partition("=")[2]  # Which one process does not need.
    assert alone.cpus == 1


def test_hosts_of_a_tpu_vm_have_their_own_and_the_step_a_core():
    words = ["processes_per_stage=3", "cpus_per_stage=200", "gpus_per_stage=4", "device=tpu"]
    named = "launcher=tpu-vm --name pod"
    with pytest.raises(ValueError, match=r"launcher tpu-vm: .* --zone;"):
        load(overrides=[f"compute.{named}"])
    asked = [f"compute.{word}" for word in (*words, f"{named} --zone z")]
    graph = graph_of(load(overrides=["stage1.batch_size=6", *asked]))
    (job,) = next(node for node in graph.nodes if node.name == "stage1 vanilla").jobs
    assert (job.processes, job.cpus, job.gpus) == (3, 1, 0)
    assert job.launcher == "tpu-vm --cpus 200 --gpus 4 --wait 900 --name pod --zone z"


CELLS_BY_TWO = [
    f"compute.{word}" for word in ("processes_per_cell=2", "cpus_per_cell=2", "gpus_per_cell=0")
]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compute.cpus_per_stage=3"], "must divide cpus_per_stage=3 and gpus_per_stage=0, got 2"),
        (["compute.gpus_per_stage=1"], "gpus_per_stage=1, got 2; without GPUs set gpus_per_stage"),
        (["compute.device=tpu"], "processes_per_stage must be 1 where device is tpu, got 2"),
        (["stage1.batch_size=63"], "processes_per_stage must divide stage1.batch_size=63, got 2"),
        (
            ["watch={every: 1, probe: {benchmark: chartqa, batch_size: 9}}"],
            "processes_per_stage must divide the batch of watch.probe, 9, got 2; set watch.probe",
        ),
        (["compute.processes_per_cell=2"], "processes_per_cell must divide cpus_per_cell=1"),
        (
            [*CELLS_BY_TWO, "intermediary.batch_size=63"],
            "processes_per_cell must divide intermediary.batch_size=63, got 2",
        ),
        (
            [*CELLS_BY_TWO, "transfers.chartqa.train.batch_size=15"],
            "processes_per_cell must divide transfers.chartqa.train.batch_size=15, got 2",
        ),
    ],
)
def test_processes_that_cannot_share_a_training_are_refused(words: list[str], told: str):
    two = ["compute.processes_per_stage=2", "compute.gpus_per_stage=0"]
    with pytest.raises(ConfigError, match=told):
        load(overrides=[*two, *words])


def test_a_study_that_scores_nothing_is_refused_where_it_would_score():
    config = load(overrides=["transfers={}"])
    assert [step.kind for step in graph_of(config, "prepare").steps]
    with pytest.raises(ConfigError, match=r"transfers .*got none"):
        graph_of(config)
