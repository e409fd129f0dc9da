"""The tutorials, command by command, with shrunken trainings or explained."""

import importlib.util
import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.study.input_files import data_folders
from flows.study.load import load
from infra.store.store import Store
from model.checkpoint.config_json import config_to_json
from model.files import CONFIG, DIGEST
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus
from tests.docs.pages import ROOT, blocks, commands_of
from tests.e2e.conftest import Finished, parcel, run_all

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

FEW = {"batch_size": 4, "total_steps": 2, "save_steps": 2, "log_steps": 1}
SMALL: dict[str, Any] = {
    "methods": ["parcel"],
    "budgets": [16],
    "num_seeds": 1,
    "train_budgets": {"parcel": [16]},
    "prepare": {"num_shards": 1, "limit": 40},
    "stage1": FEW,
    "intermediary": None,
    "transfers": {"mine": {"train": FEW, "eval_limit": 8}},
    "eval_batch_size": 8,
}
"""Laid over the config of a page."""


def files_of(page: Path, folder: Path, small: dict[str, Any]) -> None:
    """Writes the files that a page shows; its configs are shrunk by others on top of them."""
    for block in blocks(page):
        first = block.text.partition("\n")[0]
        if block.language not in ("python", "yaml") or not first.startswith("# "):
            continue
        name = first[2:].strip()
        if block.language == "yaml":
            (folder / f"whole-{name}").write_text(block.text)
            (folder / name).write_text(yaml.safe_dump({"base": f"whole-{name}", **small}))
        else:
            (folder / name).write_text(block.text)


def walk(
    page: Path, folder: Path, *, refused: Collection[str] = (), explained: bool = False
) -> dict[str, str]:
    """Runs a page's commands in their order; returns command -> what it printed.

    Args:
      page: which.
      folder: where; its store lies there, too.
      refused: commands that end with exit code 2.
      explained: whether studies are explained instead of run, and then have no results or lineage.
    """
    store = folder / "store"
    said: dict[str, str] = {}
    waiting: list[list[str]] = []

    def flush() -> None:
        for done in run_all(waiting, store, folder):
            command = shlex.join(["parcel", *done.args])
            text = done.stdout + done.stderr
            assert done.returncode == (2 if command in refused else 0), f"{command}\n{text}"
            said[command] = text
        waiting.clear()

    for command in (command for block in blocks(page) for command in commands_of(block)):
        words = shlex.split(command)
        if words[0] not in ("python", "parcel"):
            continue  # Puts files where the test has put them.
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, cwd=folder)
        elif explained and words[1] == "run":
            waiting.append([*words[1:], *(["--explain"] if "--explain" not in words else [])])
        elif words[1] == "run" and "--explain" not in words:
            flush()
            done = parcel(store, *words[1:], cwd=folder)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            said[command] = done.stdout
        elif not (explained and words[1] in ("results", "lineage")):
            waiting.append(words[1:])
    flush()
    return said


def test_own_images_become_a_table(tmp_path: Path):
    page = ROOT / "docs/tutorials/own_images.md"
    files_of(page, tmp_path, SMALL)
    said = walk(page, tmp_path)
    check = next(text for command, text in said.items() if "data check" in command)
    assert check in page.read_text()
    assert "mine/img/val" in said["parcel lineage trace mine/mine/parcel/16"]
    assert (tmp_path / "pages/index.html").exists()
    anew = said["parcel run study.yaml transfers.mine.metric=exact_match --explain"]
    assert "  metric vqa → exact_match" in anew
    assert "reused    stage1 vanilla" in anew


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_own_images_teach_a_model_that_reads_the_questions(tmp_path: Path):
    page = ROOT / "docs/tutorials/own_images.md"
    for block in blocks(page):
        first = block.text.partition("\n")[0]
        if block.language in ("python", "yaml") and first.startswith("# "):
            (tmp_path / first[2:].strip()).write_text(block.text)
    subprocess.run([sys.executable, "draw_data.py"], check=True, cwd=tmp_path)
    store = tmp_path / "store"
    done = parcel(store, "run", "study.yaml", cwd=tmp_path, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    text = parcel(store, "results", "mine", "--format", "json", cwd=tmp_path).stdout
    (section,) = json.loads(text)["benchmarks"]
    assert section["without_question"] == 50.0
    assert all(cell["low"] > 50.0 for cell in section["cells"])


def link_easy_vqa(folder: Path) -> Path:
    """Puts the benchmark where its tutorial does, from the package that `make setup` installed."""
    package = importlib.util.find_spec("easy_vqa")
    assert package is not None
    assert package.origin is not None
    data = Path(package.origin).parent / "data"
    (folder / "data").mkdir()
    (folder / "data/easy_vqa").symlink_to(data)
    return data


def test_a_published_benchmark_is_learned_from_its_package(tmp_path: Path):
    data = link_easy_vqa(tmp_path)
    read = runpy.run_path(str(ROOT / "configs/read_easy_vqa.py"))["read"]
    rows = {split: [*read(data, split)] for split in ("train", "test")}
    # The sizes that its author states.
    assert [len(rows["train"]), len(rows["test"])] == [38_575, 9_673]
    assert len({row["image"] for row in rows["train"]}) == 4_000
    small = {**SMALL, "transfers": {"easy_vqa": {"train": FEW, "eval_limit": 8}}}
    config = {"base": str(ROOT / "configs/easy_vqa.yaml"), **small}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    store = tmp_path / "store"
    done = parcel(store, "run", "small.yaml", "data_root=data", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    trace = parcel(store, "lineage", "trace", "easy-vqa", "--cell", "easy_vqa/parcel/16")
    assert "easy_vqa/test/test/images/" in trace.stdout


def test_a_published_benchmark_is_found_and_planned(finished: Finished, tmp_path: Path):
    (corpus,) = Store(finished.store).artifacts("corpus")
    link_easy_vqa(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "data/chartqa").symlink_to(corpus.path / "chartqa")
    page = ROOT / "docs/tutorials/published_benchmark.md"
    files_of(page, tmp_path, {})
    row = '{"id": 1, "prediction": "41", "answers": ["40"]}\n'
    (tmp_path / "predictions.jsonl").write_text(row)
    leak = "parcel run charts.yaml transfers.chartqa.train_split=test --explain"
    said = walk(page, tmp_path, refused=[leak], explained=True)
    assert said[leak].strip() in page.read_text()
    assert "results charts" in said["parcel run charts.yaml --explain"]
    assert "relaxed_accuracy\t100" in said["parcel model score relaxed_accuracy predictions.jsonl"]


def test_a_first_day_is_fetched_checked_and_explained(tmp_path: Path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    study = load(ROOT / "configs/first_day.yaml")
    weights = tmp_path / str(study.start)
    weights.mkdir()
    (weights / CONFIG).write_text(config_to_json(study.model))
    (weights / DIGEST).write_text("0\n")
    (weights / "tokenizer.model").write_bytes(b"pieces")
    # ChartQA as its authors publish it, with charts of our own; of the others the folders.
    sizes = CorpusConfig(num_web=0, num_charts=20, num_scenes=0, num_videos=0, num_defects=0)
    render_corpus(sizes, f"{tmp_path}/data")
    for name in data_folders(study.views):
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
    page = ROOT / "docs/tutorials/first_day.md"
    waiting: list[list[str]] = []
    for command in (command for block in blocks(page) for command in commands_of(block)):
        program, *words = shlex.split(command)
        if program != "parcel" or words[0] in ("doctor", "results", "lineage"):
            continue  # Those of a finished study: test_documents.py.
        if words[0] == "run" and "--explain" not in words:
            words = [*words, "--explain"]
        if words[:2] == ["data", "fetch"]:
            if "--accept-licence" in words:
                continue  # The Hub is asked even for a dry run.
            words = [*words, "--dry-run"]
        waiting.append(words)
    said = {
        shlex.join(done.args): done.stdout + done.stderr
        for done in run_all(waiting, tmp_path / "store", tmp_path)
        if done.returncode == 0
    }
    assert len(said) == len({shlex.join(words) for words in waiting}), said
    planned = next(text for command, text in said.items() if command.startswith("plan "))
    shown = next(block.text for block in blocks(page) if block.text.startswith("plan of"))
    assert shown.partition("\n…")[0] in planned
    for command, text in said.items():
        if command.startswith("run "):
            assert "processes: 1 for intermediary, each transfer" in text
            assert "new       intermediary parcel" in text
