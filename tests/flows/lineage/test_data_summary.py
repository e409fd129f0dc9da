"""What a checkpoint saw, counted from the order, is what its loaders delivered."""

import collections
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.lineage.card import CheckpointOrigin, model_card
from flows.lineage.croissant import croissant_description
from flows.lineage.data_summary import DataSummary, summarise_data
from flows.lookup.target import LookupTarget, find_training_target
from flows.pages.lineage_page import page
from flows.report.markdown import plain
from infra.errors import ConfigError
from infra.store.store import Artifact, Store
from model.data.config import BatchConfig
from model.data.loader import Loader
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from parcel.cli.main import app
from pipelines.records.licence import Licence
from pipelines.records.rewrite import rewrite_dataset
from pipelines.records.schema import Record
from tests.flows.lineage.conftest import made
from tests.model.tiny_data import write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

BY = Licence(licence="CC-BY-4.0", holder="A. Photographer", address="https://example.org/web")
ZERO = Licence(licence="CC0-1.0", address="https://example.org/web")
NONE = Licence()

# Pictures are grey, and no two records of the study have the same grey: what a batch shows is
# which record it is. Parts are unequal, and "caption" is in both datasets.
WEB = {"caption": [BY, ZERO, BY, NONE, BY, BY, ZERO], "vqa": [ZERO] * 3}
MORE = {"caption": [NONE] * 4}
CHARTS = {"vqa": [Licence(licence="GPL-3.0")] * 5}


def record(grey: int, part: str, licence: Licence) -> Record:
    out = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), grey, np.uint8)).save(out, format="PNG")
    return Record(
        id=f"{part}/{grey:03d}",
        images=(out.getvalue(),),
        prefix="which color?",
        suffixes=("red",),
        task=part,
        source=f"{grey}.png",
        source_sha256="0" * 64,
        licence=licence,
    )


class Study:
    """Three datasets and two trainings, the second from the first.

    Attributes:
      terms: grey -> (source, licence) of the record that shows it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder / "store")
        self.terms: dict[int, tuple[str, str]] = {}
        self.datasets = {
            name: self._dataset(name, parts)
            for name, parts in (("mixture/web", WEB), ("mixture/more", MORE), ("charts", CHARTS))
        }
        mixture = (("caption", 2.0), ("vqa", 1.0))
        self.stage1 = self._training(
            "stage1 vanilla",
            BatchConfig(batch_size=3, text_len=16, mixture=mixture),
            seed=7,
            steps=11,
            inputs={
                "data/0": self.datasets["mixture/web"],
                "data/1": self.datasets["mixture/more"],
                "watched/0": self.datasets["charts"],
            },
        )
        self.transfer = self._training(
            "transfer parcel charts seed=1",
            BatchConfig(batch_size=4, text_len=16),
            seed=8,
            steps=2,
            inputs={
                "data/0": self.datasets["charts"],
                "data/1": self.datasets["mixture/more"],
                "init": self.stage1,
            },
        )

    def _dataset(self, name: str, parts: dict[str, list[Licence]]) -> Artifact:
        plain, folder = self.folder / f"plain-{name.replace('/', '-')}", self.folder / "rewritten"
        records: dict[str, list[Record]] = {}
        for part, licences in parts.items():
            for licence in licences:
                grey = 5 * len(self.terms)
                self.terms[grey] = (name, licence.licence)
                records.setdefault(part, []).append(record(grey, part, licence))
        write_dataset(plain, records)
        folder = folder / name
        folder.mkdir(parents=True)
        rewrite_dataset(plain, lambda record: record, stage="none", out=folder)
        return made(self.store, "dataset", f"prepare {name}", {}, folder=folder)

    def _training(
        self,
        name: str,
        batches: BatchConfig,
        *,
        steps: int,
        inputs: dict[str, Artifact],
        **more: Any,
    ) -> Artifact:
        config = {"train": {**dataclasses.asdict(batches), "peak_lr": 0.1}}
        return made(
            self.store, "checkpoint", name, inputs, config=config, counts={"steps": steps}, **more
        )

    def delivered(self, training: Artifact, tokenizer: Tokenizer) -> collections.Counter[int]:
        """Returns the greys in the batches of a training that stopped in its middle once."""
        manifest = training.manifest
        train = manifest.config["train"]
        names = [field.name for field in dataclasses.fields(BatchConfig)]
        config = BatchConfig(**{n: train[n] for n in names if n != "mixture"})
        config = dataclasses.replace(config, mixture=tuple(map(tuple, train["mixture"])))
        data = [e.key for role, e in sorted(manifest.inputs.items()) if role.startswith("data/")]
        places = [self.store.get(key).uri for key in data]
        stop = int(manifest.counts["steps"])
        greys = collections.Counter[int]()
        for first, last in ((0, stop // 2), (stop // 2, stop)):
            loader = Loader(
                places,
                config,
                tokenizer=tokenizer,
                mask_codec=None,
                image_px=32,
                seeds=Seeds.of(manifest.seed or 0),
            )
            for batch in loader.batches(first, last):
                greys.update(batch["image"][:, 0, 0, 0, 0].tolist())
            loader.close()
        assert greys.total() == stop * config.batch_size
        return greys


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


def summary_of(study: Study, artifact: Artifact) -> DataSummary:
    return summarise_data(study.store, LookupTarget(name="x", artifacts=(artifact,)))


def by_terms(study: Study, greys: collections.Counter[int]) -> dict[tuple[str, str], list[int]]:
    """Returns (source, licence) -> examples and records."""
    counts: dict[tuple[str, str], list[int]] = {}
    for grey, num in greys.items():
        examples_and_records = counts.setdefault(study.terms[grey], [0, 0])
        examples_and_records[0] += num
        examples_and_records[1] += 1
    return counts


def counted(seen: Any) -> dict[tuple[str, str], list[int]]:
    return {(row.source, row.licence): [row.examples, row.records] for row in seen}


def test_counts_are_those_of_the_batches_that_were_delivered(study: Study, tmp_path: Path):
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "t.model"))
    summary = summary_of(study, study.transfer)
    first, second = summary.trainings
    assert (first.name, second.name) == ("stage1 vanilla", "transfer parcel charts seed=1")
    of_stage1, of_transfer = (study.delivered(t, tokenizer) for t in (study.stage1, study.transfer))
    assert counted(first.seen) == by_terms(study, of_stage1)
    assert counted(second.seen) == by_terms(study, of_transfer)
    assert counted(summary.seen) == by_terms(study, of_stage1 + of_transfer)
    # The counts tell licences apart, repeats from records, and both stages from each other.
    assert len(counted(summary.seen)) == 5
    assert any(row.examples > row.records for row in first.seen)
    shared = [counted(part)["mixture/more", ""] for part in (first.seen, second.seen, summary.seen)]
    assert shared[0][0] + shared[1][0] == shared[2][0]
    assert shared[0][1] + shared[1][1] > shared[2][1]


def test_a_summary_is_printed_and_is_json(study: Study):
    words = ["lineage", "summary", "--store", str(study.folder / "store")]
    lines = CliRunner().invoke(app, [*words, study.transfer.key]).stdout.splitlines()
    seen = summary_of(study, study.transfer).seen
    examples, records = sum(r.examples for r in seen), sum(r.records for r in seen)
    assert lines[0].startswith(f"stage1 vanilla {study.stage1.key}: 11 steps, 33 examples of ")
    assert f"{study.transfer.key}: 2 trainings, {examples} examples of {records} records" in lines
    assert any("mixture/more" in line and "none stated" in line for line in lines)
    found = json.loads(CliRunner().invoke(app, [*words, "stage1 vanilla", "--json"]).stdout)
    assert [training["key"] for training in found["trainings"]] == [study.stage1.key]
    rows = {(row["source"], row["licence"]): row for row in found["seen"]}
    assert rows["mixture/web", "CC-BY-4.0"]["holder"] == "A. Photographer"
    assert sum(row["examples"] for row in rows.values()) == 33


def test_what_rests_on_no_training_is_refused(study: Study):
    data = study.datasets["charts"]
    with pytest.raises(ConfigError, match=r"training, got .*: dataset"):
        summarise_data(study.store, find_training_target(study.store, data.key))
    with pytest.raises(ConfigError, match="No training step has that name"):
        find_training_target(study.store, "stage9")


def test_a_card_has_what_was_seen_by_licence(study: Study):
    origin = CheckpointOrigin(
        store=study.store, name="x", checkpoint=study.transfer, scores=(), cells=()
    )
    text = model_card(tiny_model("parcel"), origin, name="lab", licence="", dtype="float32")
    section = text.split("## Licences of the data\n")[1].split("\n## ")[0]
    seen = summary_of(study, study.transfer).seen
    assert len(seen) == 5
    for row in seen:
        assert f"| {' | '.join(map(plain, row.cells()))} |" in section
    assert "| charts | GPL-3.0 |" in section
    unstated = sum(row.records for row in seen if not row.licence)
    assert re.search(rf"\b{unstated} records .*licence", section)


def test_a_description_and_a_page_state_licences(study: Study):
    web = json.loads(croissant_description(study.datasets["mixture/web"]))
    assert web["license"] == ["CC-BY-4.0", "CC0-1.0"]
    assert [creator["name"] for creator in web["creator"]] == ["A. Photographer"]
    assert "Licences: none stated (1), CC-BY-4.0 (4), CC0-1.0 (5)" in web["description"]
    features = [field["name"] for field in web["recordSet"][0]["field"]]
    assert features[-3:] == ["licence", "licence_holder", "licence_address"]
    more = json.loads(croissant_description(study.datasets["mixture/more"]))
    assert "license" not in more
    assert "Licences: none stated (4)." in more["description"]
    text = page(study.store, study.datasets["mixture/web"], reused=False)
    assert "| CC-BY-4.0 | A. Photographer | https&#58;//example.org/web | 4 |" in text
    assert "| none stated |  |  | 1 |" in text
    unstated = page(study.store, study.datasets["mixture/more"], reused=False)
    assert "| none stated |  |  | 4 |" in unstated
