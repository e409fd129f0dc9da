"""Exports: what others' readers find in them is what was prepared, in the same bytes each time."""

import collections
import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.records import example
from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo
from pipelines.records.export import EXPORT_FILE, export_records
from pipelines.records.schema import Record
from pipelines.records.tfrecord import read_frames, write_shard
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import source_spec

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
FRAMES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found = []
    for number in range(draw(st.integers(0, 7))):
        suffixes = tuple(draw(st.lists(TEXT, min_size=1, max_size=3)))
        prefixes = tuple((draw(TEXT),) for _ in suffixes) if draw(st.booleans()) else ()
        times = tuple(draw(st.lists(st.floats(0, 100, width=32), max_size=2)))
        found.append(
            Record(
                id=f"a/{number}#{draw(TEXT)}", images=tuple(draw(FRAMES)), prefix=draw(TEXT),
                suffixes=suffixes, prefixes=prefixes, task=draw(st.sampled_from(["caption", "b"])),
                source="x/y.jpg", source_sha256="00", answers=tuple(draw(st.lists(TEXT))),
                masks=("{}",), frame_requested=times, frame_decoded=times,
                meta={"k": draw(st.one_of(TEXT, st.integers(), st.lists(TEXT)))},
            )
        )  # fmt: skip
    return found


def dataset_of(folder: Path, found: list[Record]) -> Dataset:
    folder.mkdir()
    write_shard(folder / "p-0.tfrecord", [example.encode_example(record) for record in found])
    part = PartInfo(shards=("p-0.tfrecord",), num_records=(len(found),))
    info = DatasetInfo(
        name="d", parts={"p": part}, num_inputs=len(found), num_rejected=0, image_px=28
    )
    info.write(folder)
    return Dataset(folder)


def from_archives(folder: Path) -> Iterator[Record]:
    """Reads archives as webdataset does: members of one key are one sample."""
    for path in sorted(folder.glob("*.tar")):
        samples: dict[str, dict[str, bytes]] = collections.defaultdict(dict)
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, ending = member.name.partition(".")
                file = archive.extractfile(member)
                assert file is not None
                samples[key][ending] = file.read()
        for _, sample in sorted(samples.items()):
            raw = json.loads(sample.pop("json"))
            caption = sample.pop("txt", None)
            assert caption is None or caption.decode() == raw["suffixes"][0]
            for name, value in raw.items():
                if isinstance(value, list):
                    raw[name] = tuple(tuple(v) if isinstance(v, list) else v for v in value)
            yield Record(images=tuple(sample[e] for e in sorted(sample)), **raw)


def from_tfrecords(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.tfrecord")):
        with path.open("rb") as file:
            yield from (example.decode_example(data) for _, data in read_frames(file))


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.slow
@given(found=records(), size=st.integers(1, 4))
@settings(max_examples=60)
def test_read_again_gives_the_same_records(found: list[Record], size: int):
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        dataset = dataset_of(root / "prepared", found)
        expected = list(dataset.records())
        for form, read in (("tfrecord", from_tfrecords), ("webdataset", from_archives)):
            once, again = root / form, root / f"{form}-again"
            assert export_records(dataset, once, form, records_per_file=size) == {"p": len(found)}
            assert list(read(once)) == expected
            export_records(dataset, again, form, records_per_file=size)
            assert digests(once) == digests(again)
            assert len(list(once.iterdir())) == 1 + max(1, -(-len(found) // size))


@pytest.fixture
def dataset(tmp_path, encoded) -> Dataset:
    found = [
        Record(
            id=f"web/{n}#caption.en",
            images=(encoded(28, 28, seed=n),),
            prefix="caption en",
            suffixes=(f"Noise {n}", "More"),
            task="caption",
            source="a.jpg",
            source_sha256="00",
            answers=("Noise",),
        )
        for n in range(3)
    ]
    return dataset_of(tmp_path / "prepared", found)


def test_plain_tensorflow_reads_it(tmp_path, dataset):
    tensorflow = pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")
    export_records(dataset, tmp_path / "out", "tfrecord")
    files = [str(path) for path in (tmp_path / "out").glob("*.tfrecord")]
    rows = list(tensorflow.data.TFRecordDataset(files).as_numpy_iterator())
    assert [
        tensorflow.train.Example.FromString(r).features.feature["prefix"].bytes_list.value[0]
        for r in rows
    ] == [b"caption en"] * 3


def read_corpus(root: Path, name: str, folder: str, **more) -> list[Item]:
    corpus = Corpus(root, folder, UnpackedMedia(), **more)
    return [one for one in source_spec(name).read(corpus, "train") if isinstance(one, Item)]


def test_exports_are_corpora_again(tmp_path, dataset):
    export_records(dataset, tmp_path / "plain", "tfrecord")
    about = json.loads((tmp_path / "plain" / EXPORT_FILE).read_text())
    items = read_corpus(tmp_path, "tfrecord", "plain", features=about["features"])
    expected = list(dataset.records())
    assert [MediaReader(tmp_path).read(i.media[0]) for i in items] == [
        r.images[0] for r in expected
    ]
    assert [
        (i.id.removeprefix("tfrecord/"), i.prefix, i.suffixes, i.task, i.answers) for i in items
    ] == [(r.id, r.prefix, r.suffixes, r.task, r.answers) for r in expected]
    export_records(dataset, tmp_path / "archives", "webdataset")
    items = read_corpus(tmp_path, "web", "archives", tasks=["caption"])
    assert [i.suffixes for i in items] == [(r.suffixes[0],) for r in expected]


def test_requests_are_checked(tmp_path, dataset):
    with pytest.raises(ValueError, match=r"part .*p, got 'q'"):
        export_records(dataset, tmp_path / "out", "tfrecord", part="q")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").touch()
    with pytest.raises(ValueError, match=r"out must be an empty "):
        export_records(dataset, tmp_path / "out", "webdataset")
