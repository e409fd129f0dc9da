"""The tutorials, command by command, with shrunken trainings or explained."""

import importlib.util
import runpy
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.store.store import Store
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
    assert "mine/img/val" in said["parcel lineage trace mine --cell mine/parcel/16"]
    assert (tmp_path / "pages/index.html").exists()
    anew = said["parcel run study.yaml transfers.mine.metric=exact_match --explain"]
    assert "  metric vqa → exact_match" in anew
    assert "reused    stage1 vanilla" in anew


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
    assert "relaxed_accuracy\t100" in said["parcel score relaxed_accuracy predictions.jsonl"]
