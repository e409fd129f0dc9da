"""A study in small: real datasets, and manifests of all that would be made from them."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.lookup.target import LookupTarget
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.data.config import BatchConfig
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, write_dataset

BATCHES = BatchConfig(batch_size=4, mixture=(("color", 1.0),))
STEPS = 3


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


def data_of(
    store: Store, folder: Path, name: str, records: Sequence[Record], **more: Any
) -> Artifact:
    write_dataset(folder / name, {"color": records})
    return made(store, "dataset", f"prepare {name}", {}, folder=folder / name, **more)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Store, LookupTarget]:
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
        answered = made(
            store, "predictions", f"evaluate {seed}", {"checkpoint": tuned, "data": split}
        )
        cells[f"x/parcel/16/{seed}"] = made(
            store, "scores", f"score {seed}", {"predictions": answered, "data": split}
        )
    results = made(store, "results", "results", cells)
    return store, LookupTarget(name="demo", artifacts=(results,))
