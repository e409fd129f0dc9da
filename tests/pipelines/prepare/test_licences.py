"""Licences from rows and sources to records; what is not allowed is dropped and counted."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from pipelines.prepare.job import EarlierDataset
from pipelines.prepare.licences import LicencesConfig
from pipelines.prepare.run import (
    PrepareConfig,
    RejectRateError,
    make_dataset,
    prepare_dataset,
)
from pipelines.records.dataset import Dataset
from pipelines.records.export import export_records
from pipelines.records.holdings import count_holdings
from pipelines.records.licence import Licence, LicenceCount
from tests.pipelines.sources.test_web_source import write_tar

CONFIG = PrepareConfig(
    image_px=16, num_shards=2, num_workers=1, max_reject_rate=0.05, tasks=("caption",)
)
COLUMNS = {"licence": "license", "holder": "author"}
SOURCE = Licence(holder="The Web", address="https://example.org/web")
LICENCES = ["CC-BY-4.0"] * 4 + ["CC0-1.0"] * 3 + ["CC-BY-NC-4.0"] * 2 + [None]


@pytest.fixture
def corpus(tmp_path: Path, encoded) -> Path:
    """An archive of ten captioned pictures, nine with a licence, the fourth with a holder."""
    members = {}
    for i, licence in enumerate(LICENCES):
        fields = {"license": licence} | ({"author": "Ann"} if i == 3 else {})
        members[f"{i:03d}.jpg"] = encoded(40, 30, seed=i)
        members[f"{i:03d}.txt"] = f"picture {i}".encode()
        members[f"{i:03d}.json"] = json.dumps(fields).encode()
    write_tar(tmp_path / "web/0.tar", members)
    return tmp_path


def prepared(corpus: Path, name: str, **more) -> Dataset:
    config = more.pop("config", CONFIG)
    out = corpus / name
    prepare_dataset(
        config, source="web", split="train", data_root=str(corpus), out=str(out), **more
    )
    return Dataset(out)


def content(dataset: Dataset) -> dict[str, bytes]:
    folder = Path(dataset.place.uri)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shard_by", ["id", "archive"])
def test_records_have_the_licences_of_their_rows_and_the_rest_of_their_source(
    corpus: Path, shard_by: str
):
    config = dataclasses.replace(CONFIG, shard_by=shard_by)
    dataset = prepared(corpus, "out", features=COLUMNS, licence=SOURCE, config=config)
    found = {record.suffixes[0]: record.licence for record in dataset.records()}
    assert found["picture 0"] == Licence(
        licence="CC-BY-4.0", holder="The Web", address=SOURCE.address
    )
    assert found["picture 3"].holder == "Ann"
    assert found["picture 9"] == SOURCE
    counts = {count.licence: count for count in dataset.info.licences}
    assert {licence: count.records for licence, count in counts.items()} == {
        "": 1, "CC-BY-4.0": 4, "CC-BY-NC-4.0": 2, "CC0-1.0": 3,
    }  # fmt: skip
    assert (counts["CC-BY-4.0"].holder, counts["CC0-1.0"].holder) == ("several", "The Web")
    # The files beside the shards say the same of every record.
    of_runs = [name for name, num in dataset.licences("caption") for _ in range(num)]
    assert of_runs == [record.licence.licence for record in dataset.parts["caption"]]


def test_a_dataset_without_licences_is_as_it_was(corpus: Path):
    plain = prepared(corpus, "plain")
    assert plain.info.licence_counts == (LicenceCount(records=10),)
    for name, data in content(plain).items():
        assert b"licence" not in data, name
    assert not [name for name in content(plain) if name.endswith(".licences")]
    allowed = LicencesConfig(allow=("MIT",))
    with pytest.raises(RejectRateError, match=r"\b10 inputs .*none stated \(10\)"):
        prepared(corpus, "none", licences=allowed)


def test_what_is_not_allowed_is_dropped_and_counts_against_nothing_else(corpus: Path):
    allowed = LicencesConfig(allow=("CC-BY-4.0", "CC0-1.0"))
    dataset = prepared(corpus, "out", features=COLUMNS, licences=allowed)
    info = dataset.info
    # Three of ten are far above the accepted 5 % of rejects: they were dropped by wish.
    assert (info.num_inputs, info.num_records, info.num_rejected, info.num_dropped) == (10, 7, 3, 3)
    assert {(r.stage, r.reason) for r in dataset.rejects()} == {
        ("licence", "licence: CC-BY-NC-4.0"),
        ("licence", "licence: none stated"),
    }
    kinds = {kind.reason: kind.num for kind in count_holdings(dataset).rejects}
    assert kinds == {"licence: CC-BY-NC-4.0": 2, "licence: none stated": 1}
    # A damaged picture is one of the eight that were not dropped.
    (corpus / "web/1.jsonl").write_text(
        json.dumps({"image": "absent.png", "caption": "x", "license": "CC0-1.0"}) + "\n"
    )
    with pytest.raises(RejectRateError, match=r"1 of 8 inputs .*at decode"):
        prepared(corpus, "torn", features=COLUMNS, licences=allowed)


def test_a_licence_that_is_nearly_what_rows_state_gets_the_nearest_one(corpus: Path):
    with pytest.raises(ValueError, match=r"'cc by 4\.0'.*'CC-BY-4\.0', of 4 records"):
        prepared(
            corpus, "out", features=COLUMNS, licences=LicencesConfig(allow=("cc by 4.0", "CC0-1.0"))
        )
    # Another licence of the same family is no slip.
    allowed = LicencesConfig(allow=("CC-BY-SA-4.0", "CC0-1.0"))
    assert prepared(corpus, "other", features=COLUMNS, licences=allowed).info.num_records == 3
    with pytest.raises(ValueError, match="allow must name"):
        LicencesConfig(allow=())


def test_a_shard_is_taken_from_an_earlier_dataset_with_its_licences(corpus: Path):
    def made(name: str, earlier: str = "") -> int:
        given = EarlierDataset(store=str(corpus), folder=earlier) if earlier else None
        work = f"{corpus}/{name}-work"
        dataset = make_dataset(
            CONFIG,
            source="web",
            split="train",
            data_root=str(corpus),
            work=work,
            features=COLUMNS,
            earlier=given,
        )
        (corpus / name).mkdir()
        for file, (stored, _) in dataset.files.items():
            os.link(f"{work}/{stored}", corpus / name / file)
        return dataset.num_taken

    assert made("first") == 0
    assert made("again", "first") == 2
    assert content(Dataset(corpus / "again")) == content(Dataset(corpus / "first"))


def test_an_export_is_read_again_with_its_licences(corpus: Path):
    dataset = prepared(corpus, "out", features=COLUMNS, licence=SOURCE)
    export_records(dataset, corpus / "exported", "tfrecord")
    about = json.loads((corpus / "exported/export.json").read_text())
    config = dataclasses.replace(CONFIG, num_shards=1)
    prepare_dataset(
        config,
        source="tfrecord",
        split="train",
        data_root=str(corpus),
        path="exported",
        features=about["features"],
        out=str(corpus / "again"),
    )
    found = {r.suffixes[0]: r.licence for r in Dataset(corpus / "again").records()}
    assert found == {r.suffixes[0]: r.licence for r in dataset.records()}
    assert len(set(found.values())) == 5
    export_records(dataset, corpus / "as_web", "webdataset")
    dataset = prepared(
        corpus,
        "web_again",
        path="as_web",
        features={n: n for n in ("licence", "holder", "address")},
    )
    assert {r.suffixes[0]: r.licence for r in dataset.records()} == found
