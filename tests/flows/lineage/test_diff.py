"""Tests of comparing two cells: twenty differences, planted one at a time, are each named."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.lineage.diff import compare_lineages
from flows.lookup.runs import end_run_record
from flows.lookup.target import find_target
from flows.steps.kind import Step
from flows.steps.kinds.files import NOTES
from flows.steps.registry import step_code
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from infra.source_code import Tree, checkout, code_sha256
from infra.store.digest import value_sha256
from infra.store.environment import execution_environment
from infra.store.store import Artifact, Attempt, Store
from infra.store.variables import recorded_variables
from tests.flows.graphs import checked_graph

CONFIG = Path(__file__).parents[2] / "e2e" / "smallest.yaml"
CELL = "chartqa:test_human/vanilla/256"
SPLITS = ("test_human", "test_augmented")
FILES = {"png/1.png": "1" * 64, "png/2.png": "2" * 64}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plant:
    """One difference, and how it must be told.

    Attributes:
      told: (sort, what, step).
      overrides: of the config.
      files: that the raw data of the mixture are.
      edit: (file of the sources, text, another text).
      libraries, packages, hardware: recorded for steps whose names begin with `step`.
    """

    told: tuple[str, str, str]
    overrides: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=lambda: FILES)
    edit: tuple[str, str, str] | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hardware: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: str = ""


NOTHING = Plant(told=("", "", ""))
STAGE1, MIDDLE, TUNED = "stage1 vanilla", "intermediary vanilla", "transfer vanilla chartqa"
ANSWERED, SCORED = "evaluate vanilla chartqa", "score vanilla chartqa"
WEB = "prepare mixture/web"

PLANTS = {
    "learning rate": Plant(
        told=("config", "train.peak_lr", STAGE1), overrides=("stage1.peak_lr=0.5",)
    ),
    "steps": Plant(
        told=("config", "train.total_steps", MIDDLE), overrides=("intermediary.total_steps=3",)
    ),
    "a transfer's setting": Plant(
        told=("config", "train.label_smoothing", TUNED),
        overrides=("transfers.chartqa.train.label_smoothing=0.25",),
    ),
    "mixture": Plant(
        told=("config", "train.mixture", MIDDLE), overrides=("intermediary.mixture=[[caption, 2]]",)
    ),
    "width": Plant(
        told=("config", "model.text.mlp_dim", STAGE1), overrides=("model.text.mlp_dim=128",)
    ),
    "decoder": Plant(
        told=("config", "decode.text_len", ANSWERED),
        overrides=("transfers.chartqa.eval_text_len=9",),
    ),
    "preparation": Plant(
        told=("config", "prepare.num_shards", WEB), overrides=("prepare.num_shards=3",)
    ),
    "a benchmark's size": Plant(
        told=("config", "prepare.limit", "prepare chartqa:test_human/eval"),
        overrides=("transfers.chartqa.eval_limit=5",),
    ),
    "mask codec": Plant(
        told=("config", "train_steps", "mask codec"), overrides=("mask_codec.train_steps=3",)
    ),
    "hygiene": Plant(
        told=("config", "candidates", "screen mixture/web"), overrides=("hygiene.candidates=3",)
    ),
    "seed": Plant(told=("seed", "seed", TUNED), overrides=("seed=7",)),
    "a file that changed": Plant(
        told=("data", "png/2.png", "files mixture/web"), files={**FILES, "png/2.png": "3" * 64}
    ),
    "a file more": Plant(
        told=("data", "png/3.png", "files mixture/web"), files={**FILES, "png/3.png": "3" * 64}
    ),
    "a file less": Plant(
        told=("data", "png/1.png", "files mixture/web"), files={"png/2.png": "2" * 64}
    ),
    "an input": Plant(told=("input", "mask_codec", STAGE1), overrides=("mask_codec=null",)),
    "code of training": Plant(
        told=("code", "model.train.optimizer: lr_schedule", STAGE1),
        edit=("model/train/optimizer.py", "= train.warmup * train", "= 1 * train.warmup * train"),
    ),
    "code of a metric": Plant(
        told=("code", "model.eval.scorer: ", SCORED),
        edit=("model/eval/scorer.py", "class Scorer", "_EDITED = 1\n\n\nclass Scorer"),
    ),
    "a library that decides bytes": Plant(
        told=("version", "pillow", WEB), libraries={"pillow": "1.0"}, step="prepare"
    ),
    "a library that is recorded": Plant(
        told=("version", "jaxlib", TUNED), packages={"jaxlib": "0.1"}, step=TUNED
    ),
    "hardware": Plant(
        told=("hardware", "xla_flags", STAGE1), hardware={"xla_flags": "--xla_x=1"}, step=STAGE1
    ),
    "a variable": Plant(
        told=("hardware", "LIBTPU_INIT_ARGS", STAGE1),
        hardware={"variables": {**recorded_variables(os.environ), "LIBTPU_INIT_ARGS": "--x=1"}},
        step=STAGE1,
    ),
}


def run(store: Store, data: Path, name: str, plant: Plant, *, alike: bool = False) -> None:
    """Leaves a study in the store as a run does, each step's contents decided by what it is.

    Args:
      store: where.
      data: raw data.
      name: of the study.
      plant: in what it differs.
      alike: whether what differs has no effect on the contents.
    """
    store.files = store.volatile  # Outlives no power cut, and need not.
    graph = checked_graph(load(CONFIG, [f"data_root={data}", f"name={name}", *plant.overrides]))
    tree = checkout().files
    if plant.edit:
        path, old, new = plant.edit
        edited = tree[path].decode().replace(old, new, 1)
        tree = {**tree, path: edited.encode()}
    source, code = store.save_source(tree) if plant.edit or not plant.told[0] else "", Tree(tree)
    recorded, found = execution_environment(), dict[Step, Artifact]()
    for step in graph.steps:
        read = {role: found[s] for role, s in step.inputs.items()}
        recipe = look_up_step(store, step, read, set()).recipe
        planted = bool(plant.step) and step.name.startswith(plant.step)
        recipe = dataclasses.replace(
            recipe,
            source=source,
            code=code_sha256(step_code(step.kind, step.config, code))
            if plant.edit
            else recipe.code,
            libraries={**recipe.libraries, **(plant.libraries if planted else {})},
        )
        context = {
            group: {**recorded[group], **(getattr(plant, group) if planted else {})}
            for group in ("packages", "hardware")
        }
        attempt = Attempt(store, recipe)
        notes = ""
        if step.kind == "raw_files":
            files = plant.files if step.name == "files mixture/web" else FILES
            notes = "".join(f"{sha}  1  {path}\n" for path, sha in files.items())
            (attempt.path / NOTES).write_text(notes)
        # What has no effect: code, environment, and a config that says so.
        decides = [step.kind, "" if alike else [recipe.key, context], notes]
        inputs = {role: artifact.as_input.content for role, artifact in read.items()}
        attempt.content = value_sha256([*decides, inputs])
        found[step] = attempt.commit(context)
    assert graph.results
    end_run_record(
        store,
        {"name": name},
        "run",
        results=found[graph.results].key,
        artifacts=[a.key for a in found.values()],
        failed=[],
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("web", "chartqa"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Store:
    store = Store(tmp_path_factory.mktemp("before"))
    run(store, data, "study", NOTHING)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_difference_is_named_and_nothing_else(
    plant: Plant, before: Store, data: Path, tmp_path: Path
):
    now = Store(tmp_path)
    run(now, data, "study", plant)
    found = compare_lineages(
        before, *(find_target(store, f"study/{CELL}") for store in (before, now)), now
    )
    assert not found.is_same
    assert {d.sort for d in found.differences} == {plant.told[0]}
    told = [d.steps for d in found.differences if d.what.startswith(plant.told[1])]
    assert any(step.startswith(plant.told[2]) for steps in told for step in steps), told


@pytest.mark.slow
def test_what_has_no_effect_is_told_as_such_and_sources_line_by_line(
    before: Store, data: Path, tmp_path: Path
):
    now = Store(tmp_path)
    edited = PLANTS["code of training"]
    run(now, data, "study", edited, alike=True)
    was = Store(tmp_path / "was")
    run(was, data, "study", NOTHING, alike=True)
    sides = [find_target(store, f"study/{CELL}/56703") for store in (was, now)]
    found = compare_lineages(was, *sides, now)
    assert found.is_same
    (code,) = found.differences
    assert not code.has_effect
    first, second, *patch = "\n".join(found.lines(patch=True)).splitlines()
    assert first == f"study/{CELL}/56703 → study/{CELL}/56703: the same contents"
    steps = (
        r"\[transfer vanilla chartqa seed=56703, intermediary vanilla and 1 more; without effect"
    )
    assert re.match(rf"code +model\.train\.optimizer: lr_schedule +{steps}", second)
    assert patch[:2] == ["--- a/model/train/optimizer.py", "+++ b/model/train/optimizer.py"]
    assert "-    warmup = train.warmup * train.total_steps" in patch
    assert json.loads(found.as_json())["differences"][0]["steps"] == list(code.steps)


def test_whole_tables_are_compared_and_a_table_with_itself_is_the_same(before: Store):
    table = find_target(before, "study")
    found = compare_lineages(before, table, table)
    assert (found.is_same, found.differences) == (True, ())
    assert list(found.lines())[1] == "nothing differs in how they were made"
    cells = [find_target(before, f"study/chartqa:{split}/vanilla/256") for split in SPLITS]
    found = compare_lineages(before, *cells)
    assert not found.is_same
    assert ("config", "split") in [(d.sort, d.what) for d in found.differences]
