"""A benchmark of the user's own: configured, checked, planned, and stale where its code changed."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from flows.config.benchmark import metric_of
from flows.config.server_limits import limit_variables
from flows.graph.datasets import datasets_of
from flows.graph.explain import Explanation
from flows.graph.specs import decode_of
from flows.machine.deploy import DeploymentTarget, check_code
from flows.steps import worker
from flows.steps.job import command
from flows.steps.kind import Step
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from flows.study.study import StudyConfig
from flows.study.user_data import check_user_data
from infra.errors import ConfigError
from infra.source_code import checkout
from infra.store.manifest import Recipe
from infra.store.sources import write_tree
from infra.store.store import Artifact, Store
from pipelines.sources.own_source import OwnSource
from tests.flows.graph.test_explain import fill, told
from tests.flows.graphs import checked_graph

pytestmark = pytest.mark.usefixtures("forget")

METRIC = "def f1(prediction, fields):\n    return float(prediction in fields['answers'])\n"
READER = """
def read(folder, split):
    for number, picture in enumerate(sorted(folder.glob("*.png"))):
        yield {"image": picture.name, "question": "Which?", "answers": str(number)}
"""
ROWS = [{"image": f"{n}.png", "question": "Which?", "answers": [str(n), "x"]} for n in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config of one's own beside its code, and the data it is about."""
    (tmp_path / "own_scores.py").write_text(METRIC)
    (tmp_path / "own_reads.py").write_text(READER)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for n in range(4):
        Image.new("RGB", (32, 32), (60 * n, 0, 0)).save(tmp_path / "data" / "mine" / f"{n}.png")
    for split in ("train", "val"):
        put(tmp_path / "data" / "mine" / f"{split}.jsonl", ROWS)
    for path in (tmp_path / "data" / "mine").iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))  # What is a moment old is looked at again.
    return tmp_path


def put(path: Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def config(folder: Path, *overrides: str, **mine: object):
    """Returns a study of the user's own benchmark alone."""
    entry = {"reader": "jsonl", "metric": "./own_scores.py:f1", "train": {"total_steps": 4}, **mine}
    values = {
        "base": "demo",
        "name": "mine",
        "data_root": str(folder / "data"),
        "sources": [{"reader": "jsonl", "path": "mine"}],
        "methods": ["vanilla", "parcel"],
        "budgets": [16, 256],
        "train_budgets": {"parcel": [16, 256]},
        "num_seeds": 1,
        "mask_codec": None,
        "transfers": {"chartqa": None, "refcoco": None, "msvd_qa": None, "mine": entry},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(values))
    return load(folder / "study.yaml", overrides)


def metric_in(study: StudyConfig, benchmark: str) -> str:
    return metric_of(benchmark, study.transfers[benchmark])


def test_what_is_not_said_has_a_default(folder: Path):
    study = config(folder)
    assert list(study.views[0].rows) == ["mine"]
    assert study.views[0].rows["mine"].paper_row is None
    train = study.fine_tuning_of("mine", "vanilla")
    assert (train.total_steps, train.epochs, train.peak_lr, train.text_len) == (4, None, 3e-6, 64)
    found = datasets_of(study.views[0])
    assert found["mine/train"].split == "train"
    assert found["mixture/mine"].reader == "jsonl"
    assert found["mine/eval"].split == "val"
    assert found["mine/eval"].reader == OwnSource(
        reader="jsonl", name="mine", prompt="answer {lang} {text}"
    )
    assert metric_in(study, "mine") == "own_scores:f1"
    assert decode_of(study.views[0], "mine").decoding.beams == 1


def test_what_is_said_holds(folder: Path):
    study = config(
        folder,
        "sources=[{reader: jsonl, path: mine, split: 'train[:50%]'}]",
        reader="own_reads.py:read",
        path="mine",
        prompt="which {text}",
        metric="vqa_lower",
        decoding={"beams": 3},
        train_split="train[:50%]",
        eval_splits=["train[50%:]", "val"],
        num_frames=8,
        frame_stride=26,
    )
    assert list(study.views[0].rows) == ["mine:train[50%:]", "mine:val"]
    spec = datasets_of(study.views[0])["mine:val/eval"]
    assert spec.reader == OwnSource(reader="own_reads:read", name="mine", prompt="which {text}")
    assert spec.path == "mine"
    assert (spec.prepare.num_frames, spec.prepare.frame_stride) == (8, 26)
    assert metric_in(study, "mine") == "vqa_lower"
    assert decode_of(study.views[0], "mine").decoding.beams == 3


def test_a_config_may_lie_anywhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config(folder)
    (folder / "below").mkdir()
    (folder / "below" / "more.yaml").write_text("base: ../study.yaml\nname: more\n")
    study = load(folder / "below" / "more.yaml")
    assert study.transfers["mine"].metric == f"{folder}/own_scores.py:f1"
    monkeypatch.chdir(folder / "below")
    (folder / "below" / "own_there.py").write_text(METRIC)
    study = load(folder / "study.yaml", ["transfers.mine.metric=own_there.py:f1"])
    assert metric_in(study, "mine") == "own_there:f1"


def test_a_published_benchmark_may_have_another_metric_and_no_other_reader(folder: Path):
    values = {"transfers.mine": "null", "transfers.chartqa.metric": "anls"}
    study = load(None, [f"{key}={value}" for key, value in values.items() if value != "null"])
    assert metric_in(study, "chartqa") == "anls"
    with pytest.raises(ConfigError, match=r"transfers\.chartqa\.reader .*'js"):
        load(None, ["transfers.chartqa.reader=jsonl"])


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (
            {"reader": ""},
            r"transfers: no benchmark 'mine'\. .* says its reader: jsonl, csv, or a f",
        ),
        ({"reader": "json"}, r"transfers\.mine\.reader must be one of jsonl, csv, or a .*'json'"),
        ({"reader": "gone.py:f"}, r"transfers\.mine\.reader: there is no file .*gone\.py"),
        ({"metric": ""}, r"transfers\.mine\.metric must be given: one of exact_match, vqa, "),
        ({"metric": "f1"}, r"transfers\.mine\.metric must be one of exact_match, .* got 'f1'"),
        ({"metric": "own_scores.py:f2"}, r"transfers\.mine\.metric: own_scores has no 'f2'"),
        ({"metric": "miou"}, r"transfers\.mine\.metric must not be a mask metric"),
        (
            {"prompt": "{question}"},
            r"mine\.prompt may hold \{text\} and \{lang\}, got \{question\}",
        ),
        ({"num_frames": 0}, r"transfers\.mine\.num_frames: must be greater"),
        ({"prompts": "x"}, r"transfers\.mine\.prompts: no such key; did you mean prompt\?"),
        ({"decoding": {"beams": 0}}, r"transfers\.mine\.decoding: beams must be at least 1"),
        ({"eval_splits": ["a/b"]}, r"mine\.eval_splits: split of mine must be the name of a file"),
        ({"train_split": "val"}, r"transfers\.mine\.train_split must be held out .* scored on val"),
    ],
)
def test_mistakes_are_named(folder: Path, mine: dict, told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        config(folder, **mine)
    assert "\n" not in str(refused.value)


def test_a_module_of_the_current_folder_is_found_after_all_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    assert metric_in(config(folder, metric="own_scores:f1"), "mine") == "own_scores:f1"
    assert sys.path[-1] == str(folder)
    # It hides none of ours.
    (folder / "model.py").write_text(METRIC)
    with pytest.raises(ConfigError, match=r"transfers\.mine\.metric: .*model.* has no 'f1'"):
        config(folder, metric="model:f1")


def test_a_metric_that_takes_one_argument_is_refused(folder: Path):
    (folder / "own_scores.py").write_text("def f1(prediction):\n    return 1.0\n")
    with pytest.raises(ConfigError, match=r"transfers\.mine\.metric: .*own_scores:f1"):
        config(folder)


def test_a_reader_that_takes_no_split_is_refused(folder: Path):
    (folder / "own_reads.py").write_text("def read(folder):\n    yield {}\n")
    with pytest.raises(ConfigError, match=r"mine\.reader: own_reads:read .*\(fol"):
        config(folder, reader="own_reads.py:read")


def test_the_mixture_may_not_hold_what_is_scored(folder: Path):
    with pytest.raises(ConfigError, match=r"sources\.0\.split .* scored on val"):
        config(folder, "sources=[{reader: jsonl, path: mine, split: train+val}]")
    with pytest.raises(ConfigError, match=r"sources\.0\.path must be given"):
        config(folder, f"sources=[{{reader: {folder}/own_reads.py:read}}]")
    config(folder, f"sources=[{{reader: {folder}/own_reads.py:read, path: mine}}]")


NO_FIELD = "def f1(prediction, fields):\n    return {'hard': 1.0}[fields['kind']]\n"


def test_rows_are_looked_at_before_anything_runs(folder: Path):
    check_user_data(config(folder))
    val = folder / "data" / "mine" / "val.jsonl"
    for rows, complaint in (
        ([], r"mine\.eval_splits: split 'val' of .*/mine has no rows"),
        (
            [{"image": "0.png", "answers": "x"}],
            r"eval_splits: mine/val\.jsonl line 1: question, or prefix, must be given\. Of the 1 "
            r"rows of split 'val' looked at, 1 cannot be used; prepare\.max_reject_rate accepts 5%",
        ),
        (
            [ROWS[0], {**ROWS[1], "image": "9.png"}],
            r"mine/val/9\.png#1: there is no file mine/9\.png below .*/data\. Of the 2 rows",
        ),
    ):
        put(val, rows)
        with pytest.raises(ConfigError, match=complaint) as refused:
            check_user_data(config(folder))
        assert "\n" not in str(refused.value)
    val.unlink()
    with pytest.raises(ConfigError, match=r"mine\.eval_splits: .*/mine/val\.jsonl is missing"):
        check_user_data(config(folder))
    with pytest.raises(ConfigError, match=r"mine\.train_split: .*/gone is not a folder"):
        check_user_data(config(folder, path="gone"))


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (
            NO_FIELD,
            r"own_scores:f1 fails at \S+/own_scores\.py:2 for 'mine/val/0\.png#0': KeyError: "
            r"lacks 'kind'; the reco"
            r"rd has answers, id, lang, masks",
        ),
        ("def f1(prediction, fields):\n    return '1'\n", "must return a finite number, got '1'"),
    ],
)
def test_a_metric_scores_the_rows_own_answers_first(folder: Path, metric: str, told: str):
    (folder / "own_scores.py").write_text(metric)
    with pytest.raises(ConfigError, match=rf"transfers\.mine\.metric: .*{told}"):
        checked_graph(config(folder))


def test_an_official_metric_is_tried_too(folder: Path):
    with pytest.raises(ConfigError, match=r"transfers\.mine\.metric: answers "):
        checked_graph(config(folder, metric="relaxed_accuracy"))
    checked_graph(config(folder, metric="cider"))


def states(store: Store, study) -> dict[str, str]:
    return {name: state for name, (state, _) in told(store, checked_graph(study)).items()}


@pytest.mark.slow
def test_a_changed_metric_leaves_data_and_training_as_they_are(
    folder: Path, tmp_path: Path, forget: Callable
):
    store = Store(tmp_path / "store")
    fill(store, checked_graph(config(folder)))
    assert set(states(store, config(folder)).values()) == {"reused"}
    (folder / "own_scores.py").write_text(METRIC.replace("float(", "0.5 * ("))
    forget()
    graph = checked_graph(config(folder))
    explained = Explanation(store, graph)
    stale = {s.name.split()[0] for s, v in explained.steps.items() if v.state == "stale"}
    assert stale == {"score", "chance"}
    assert "own_scores.f1 changed since" in told(store, graph)["chance mine"][1]
    states_of: dict[Step, str] = {s: v.state for s, v in explained.steps.items()}
    assert {state for s, state in states_of.items() if s.kind == "checkpoint"} == {"reused"}


@pytest.mark.slow
def test_a_changed_reader_makes_its_own_datasets_stale(
    folder: Path, tmp_path: Path, forget: Callable
):
    store, mine = Store(tmp_path / "store"), {"reader": "./own_reads.py:read", "path": "mine"}
    fill(store, checked_graph(config(folder, **mine)))
    (folder / "own_reads.py").write_text(READER.replace("Which?", "What?"))
    forget()
    found = states(store, config(folder, **mine))
    stale = {name for name, state in found.items() if state == "stale"}
    assert {name for name in stale if not name.startswith("files mine/")} == {
        "prepare mine/train",
        "prepare mine/eval",
    }
    (folder / "data" / "mine" / "notes.txt").write_text("read by nobody, for all anyone knows")
    found = states(store, config(folder, **mine))
    assert {s for name, s in found.items() if name.startswith("files mine/")} <= {"new", "follows"}
    assert found["files mixture/mine"] != "new"


def test_the_sources_of_a_run_hold_its_code(folder: Path):
    checked_graph(config(folder))
    assert checkout().files["own/own_scores.py"] == METRIC.encode()


def test_what_the_page_shows_works(folder: Path):
    page = (Path(__file__).parents[3] / "docs/howto/own_data.md").read_text()
    blocks = re.findall(r"```(?:yaml|python)\n# (\w+\.\w+)(.*?)```", page, re.DOTALL)
    assert [name for name, _ in blocks] == ["study.yaml", "my_scores.py", "my_reader.py"]
    for name, text in blocks:
        (folder / name).write_text(f"#{text}")
    study = load(folder / "study.yaml", [f"data_root={folder / 'data'}"])
    check_user_data(study)
    assert list(study.views[0].rows) == ["mine"]
    rows = [{**row, "meta": {"near": []}} for row in ROWS]
    put(folder / "data" / "mine" / "val.jsonl", rows)
    (folder / "data" / "mine" / "train.txt").write_text("1.png\tseal\n")
    (folder / "data" / "mine" / "img").mkdir()
    (folder / "data" / "mine" / "1.png").rename(folder / "data" / "mine" / "img" / "1.png")
    for overrides in (
        ["transfers.mine.metric=./my_scores.py:near", "prepare.max_reject_rate=1"],
        [
            "transfers.mine.reader=./my_reader.py:read",
            "transfers.mine.eval_splits=['train[50%:]']",
            "transfers.mine.train_split='train[:50%]'",
        ],
    ):
        words = [text.replace("./", f"{folder}/") for text in overrides]
        found = load(folder / "study.yaml", [f"data_root={folder / 'data'}", *words])
        if "metric" in words[0]:
            check_user_data(found)
        else:
            assert "my_reader:read" in str(datasets_of(found.views[0])["mine/eval"].reader)


def test_a_deployment_brings_code_only_if_told_and_only_where_it_is(folder: Path):
    study, target = config(folder), DeploymentTarget(store="gs://lab/studies", pool="gpus")
    with pytest.raises(ConfigError, match=r"--any-runner .*transfers\.mine\.metr"):
        check_code("process", study, target)
    check_code("process", study, dataclasses.replace(target, any_runner=True))
    with pytest.raises(ConfigError, match=r"transfers\.mine\.metric .*module:function"):
        check_code("kubernetes", study, dataclasses.replace(target, any_runner=True))
    check_code("kubernetes", config(folder, metric="vqa"), target)


@pytest.mark.slow
def test_a_job_elsewhere_makes_what_its_code_decides(folder: Path, tmp_path: Path):
    store, graph = Store(tmp_path / "store"), checked_graph(config(folder))
    source = store.save_source(checkout().files)
    made: dict[Step, Artifact] = {}

    def recipe_of(step: Step) -> Recipe:
        for read in step.inputs.values():
            if read not in made:
                recipe = recipe_of(read)
                (*_, end) = worker.make(store.uri, [recipe], {})
                assert isinstance(end, worker.StepOutcome)
                assert not end.error, end.traceback
                made[read] = store.get(recipe.key)
        inputs = {role: made[read] for role, read in step.inputs.items()}
        return look_up_step(store, step, inputs, frozenset(), source=source).recipe

    recipe = recipe_of(next(step for step in graph.steps if step.kind == "chance"))
    node = tmp_path / "node"
    write_tree(checkout().files, node)
    (folder / "own_scores.py").unlink()
    words = command(store, "chance-1.now", [], [recipe], {}).split(" ")
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=node,
        env={**os.environ, "PYTHONPATH": str(node)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert store.get(recipe.key).manifest.counts["score"] > 0


def test_a_run_from_the_form_brings_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in limit_variables(
        str(folder / "store"), any_store=False, any_runner=False
    ).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"transfers\.mine\.metric .*registry"):
        config(folder)
    config(folder, metric="vqa")
