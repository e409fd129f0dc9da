"""The tutorial of a step of one's own, command by command, on a shrunken study."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flows.pages.lineage_page import page as lineage_page
from flows.pages.record_cards import Cards
from infra.store.store import Artifact, Store
from pipelines.records.dataset import Dataset
from tests.e2e.conftest import PARCEL, SMALLEST, environment, parcel
from tests.ray_nodes import head_of

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

WHERE = """
import dataclasses
import os

from flows.steps.kinds.user_step import NewStep
from own_words import WORD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    def nodes(self, study, steps):
        yield NewStep(name="where")

    def make(self, work):
        words = WORD, self.make.__code__.co_filename, os.environ["WHOSE"]
        (work.out / "where.txt").write_text("\\n".join(words))
"""
"""A step that writes from where its code is imported, and on whose machine."""

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own_step.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("parcel ")]
SMALL = (
    f"base: {SMALLEST}\nhygiene: null\nbudgets: [16, 256]\ntrain_budgets: {{parcel: [16, 256]}}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page has one write."""
    folder = tmp_path_factory.mktemp("lab")
    blocks = re.findall(r"```(?:yaml|python)\n# (\w+\.\w+)(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["dedup.py", "dedup.yaml", "distill.py", "distill.yaml"]
    for name, text in blocks:
        small = text.replace("base: demo\n", SMALL)
        # The demo's RefCOCO, which the pages keep prepared, is no part of the smallest study.
        small = small.replace("{refcoco: {transfer: false}}", "{}")
        small = small.replace("batch_size: 16, total_steps: 100", "batch_size: 4, total_steps: 2")
        (folder / name).write_text(f"#{small}")
    return folder


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the page; files are named by their place, as the command runs elsewhere."""
    words = [re.sub(r"^(\w+\.yaml)$", rf"{folder}/\1", word) for word in shlex.split(line)[1:]]
    return parcel(folder / "store", *words, timeout=900)


def done(folder: Path, line: str) -> str:
    ended = run(folder, line)
    assert ended.returncode == 0, line + ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def artifact(folder: Path, name: str) -> Artifact:
    (found,) = (a for a in Store(folder / "store").artifacts() if a.manifest.name == name)
    return found


def test_a_dataset_of_ones_own_is_made_traced_and_made_again(folder: Path):
    explain, train, trace, *_ = COMMANDS
    assert re.search(r"new +dedup web +prepare mixture/web is new", done(folder, explain))
    assert ", 0 reused" in done(folder, train)
    dedup = artifact(folder, "dedup web")
    records = [(record.task, record.images) for record in Dataset(dedup.uri).records()]
    assert len({*records}) == len(records) == dedup.manifest.counts["records"] > 0
    assert dedup.manifest.counts["rejected"] > 0
    for name in ("tokenizer", "stage1 vanilla", "intermediary parcel"):
        keys = {entry.key for entry in artifact(folder, name).manifest.inputs.values()}
        assert dedup.key in keys
        assert artifact(folder, "prepare mixture/web").key not in keys
    shown = done(folder, trace.replace("chartqa/", "chartqa:test_human/").replace("/64", "/16"))
    (line,) = (line for line in shown.splitlines() if f"dedup web {dedup.key}" in line)
    below = shown[shown.index(line) :]
    assert "data: prepare mixture/web dataset-" in below
    again = done(folder, f"parcel lineage replay {dedup.key}")
    assert "the same bytes" in again
    page = done(folder, f"parcel lineage show {dedup.key}")
    assert "dedup:Dedup" in page
    store = Store(folder / "store")
    text = lineage_page(store, dedup, reused=False)
    assert "| data | [prepare mixture/web](" in text
    assert len([*Cards(store).samples(dedup, 3)]) == 3
    # A record that it kept is one that training saw, by the order of the new dataset.
    sample = next(Dataset(dedup.uri).records()).id
    assert f"{sample} is record 0 of " in done(
        folder, f"parcel lineage trace dedup --sample {sample}"
    )
    assert ", everything reused" in done(folder, train)


def test_its_code_reaches_the_worker_of_a_cluster(tmp_path: Path):
    """A Ray Job, on a node that has neither the file nor the folder in which it lies."""
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "where.py").write_text(WHERE)
    (lab / "own_words.py").write_text("WORD = 'mine'\n")
    with head_of(tmp_path, "--num-cpus=2") as head:
        ended = subprocess.run(
            [
                PARCEL, "prepare", SMALLEST, "hygiene=null", "mask_codec=null",
                f"steps=[{lab}/where.py:Where]", f"compute.ray_address={head.address}",
            ],
            env=environment(tmp_path / "store") | {"RAY_AUTH_MODE": "disabled"},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (made,) = Store(tmp_path / "store").artifacts("user_files")
    word, file, whose = (made.path / "where.txt").read_text().splitlines()
    assert (word, whose) == ("mine", "the node's")
    assert not file.startswith(str(lab)), file


@pytest.mark.night
def test_an_edit_makes_it_stale_and_what_comes_out_the_same_is_re_used(folder: Path):
    explain, train, *_ = COMMANDS
    file = folder / "dedup.py"
    before = file.read_text()
    file.write_text(before.replace("pictures = set()", "pictures = set([])"))
    explained = done(folder, explain)
    assert re.search(r"stale +dedup web +dedup\.Dedup\.make changed since", explained)
    assert re.search(r"follows +stage1 vanilla", explained)
    assert re.search(r"\b1 made, \d+ reused", done(folder, train))
    file.write_text(before)
    assert ", everything reused" in done(folder, train)


@pytest.mark.night
def test_a_distilled_checkpoint_is_where_the_transfers_begin(folder: Path):
    *_, train, results = COMMANDS
    done(folder, train)
    distilled = artifact(folder, "distill parcel")
    read = {role: entry.key for role, entry in distilled.manifest.inputs.items()}
    # The study of the page before has stages of these names, too: of other pictures.
    store = Store(folder / "store")
    assert store.get(read["teacher"]).manifest.name == "intermediary vanilla"
    named = [a for a in store.artifacts("checkpoint") if a.manifest.name == "intermediary parcel"]
    assert distilled.manifest.content not in {a.manifest.content for a in named}
    transfers = [
        a.manifest
        for a in Store(folder / "store").artifacts("checkpoint")
        if a.manifest.name.startswith("transfer parcel")
    ]
    assert distilled.key in {transfer.inputs["init"].key for transfer in transfers}
    assert "| parcel |" in done(folder, results)
    assert "the same bytes" in done(folder, f"parcel lineage replay {distilled.key}")
