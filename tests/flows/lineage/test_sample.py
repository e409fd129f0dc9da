"""From a sample up: the steps that saw it are those of the loader, the cells those above them."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.lineage.named import Named
from flows.lineage.sample import sightings
from flows.study.load import ConfigError
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.data.config import BatchConfig
from model.data.loader import samples_of_step
from model.seeds import Seeds
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, write_dataset

BATCHES = BatchConfig(batch_size=4, mixture=(("color", 1.0),))
STEPS = 5


def made(store: Store, kind: str, name: str, inputs: dict[str, Artifact], **more: Any) -> Artifact:
    read = {role: artifact.as_input for role, artifact in inputs.items()}
    folder = more.pop("folder", None)
    counts = more.pop("counts", {})
    more.setdefault("config", {"name": name})
    attempt = Attempt(store, Recipe(kind=kind, name=name, inputs=read, **more))
    (attempt.path / "name.txt").write_text(name)
    if folder:
        shutil.copytree(folder, attempt.path, dirs_exist_ok=True)
    attempt.counts |= counts
    return attempt.commit({})


def trained(store: Store, name: str, seed: int, **inputs: Artifact) -> Artifact:
    train = {**dataclasses.asdict(BATCHES), "peak_lr": 0.1}
    data = {role.replace("_", "/"): artifact for role, artifact in inputs.items()}
    return made(
        store, "checkpoint", name, data, seed=seed, config={"train": train}, counts={"steps": STEPS}
    )


def data_of(store: Store, folder: Path, name: str, records: Sequence[Record]) -> Artifact:
    write_dataset(folder / name, {"color": records})
    return made(store, "dataset", f"prepare {name}", {}, folder=folder / name)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Store, Named]:
    """Two datasets in one mixture; a tokenizer of the first; a split that is only scored on."""
    store = Store(tmp_path / "store")
    ids = [f"{i:02d}{end}" for i in range(20) for end in ("", "#ocr")]
    records = [dataclasses.replace(color_record(i), id=name) for i, name in enumerate(sorted(ids))]
    web = data_of(store, tmp_path, "web", records[:24])
    more = data_of(store, tmp_path, "more", records[24:])
    split = data_of(store, tmp_path, "eval", [color_record(i) for i in range(3)])
    words = made(store, "tokenizer", "tokenizer", {"web": web})
    stage1 = trained(store, "stage1", 3, data_0=web, data_1=more)
    cells = {}
    for seed in (5, 6):
        tuned = trained(store, f"transfer {seed}", seed, data_0=more, init=stage1, words=words)
        cells[f"x/parcel/16/{seed}"] = made(
            store, "predictions", f"evaluate {seed}", {"checkpoint": tuned, "data": split}
        )
    results = made(store, "results", "results", cells)
    return store, Named(name="demo", artifacts=(results,))


def saw(store: Store, training: Artifact, ids: set[str]) -> list[int]:
    """Returns the steps of a training that hold one of these records, read step by step."""
    inputs = sorted(training.manifest.inputs.items())
    data = [store.get(e.key).place for role, e in inputs if role.startswith("data/")]
    seeds = Seeds.of(training.manifest.seed or 0)
    return [
        step
        for step in range(STEPS)
        for record_id, *_ in samples_of_step(data, BATCHES, seeds, step)
        if record_id in ids
    ]


def test_steps_are_those_whose_batches_hold_the_sample(table: tuple[Store, Named]):
    store, what = table
    trainings = {a.manifest.name: a for a in store.artifacts("checkpoint")}
    hits = 0
    for number in (1, 6, 11, 13, 18):
        found = sightings(store, what, f"{number:02d}")
        assert {place.id for place in found.places} == {f"{number:02d}", f"{number:02d}#ocr"}
        steps = {sight.training.name: list(sight.steps) for sight in found.sights}
        for name, training in trainings.items():
            expected = saw(store, training, {f"{number:02d}", f"{number:02d}#ocr"})
            assert steps.get(name, []) == expected
            hits += len(expected)
        of_stage1 = "stage1" in steps
        assert len(found.cells.get("trained on it", ())) == (
            2 if of_stage1 else sum(name in steps for name in ("transfer 5", "transfer 6"))
        )
        in_words = 2 if number < 12 else 0
        assert len(found.cells.get("with its words in the tokenizer", ())) == in_words
        assert "scored on it" not in found.cells
    assert hits > 0


def test_one_record_is_told_with_its_place_its_steps_and_its_cells(table: tuple[Store, Named]):
    store, what = table
    found = sightings(store, what, "color/001")
    (split,) = [a for a in store.artifacts("dataset") if a.manifest.name == "prepare eval"]
    assert list(found.lines()) == [
        f"color/001 is record 1 of color in prepare eval {split.key} ← color.png sha256:{'0' * 64}",
        "seen by no training",
        "2 of 2 cells are scored on it: x/parcel/16/5, x/parcel/16/6",
    ]
    (record,) = sightings(store, what, "03#ocr").places
    assert (record.id, record.position) == ("03#ocr", 7)


def test_an_unknown_sample_names_the_datasets(table: tuple[Store, Named]):
    with pytest.raises(ConfigError, match=r"got '99', which none .* prepare eval, prepare more"):
        sightings(*table, "99")
