"""`tf.data` reads what `Dataset` reads: every record, every field, in the same order."""

import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image

from flows.steps.code import reach
from infra.source_code import checkout
from pipelines.records import as_tf_dataset, example
from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard
from tests.pipelines.records.test_export import dataset_of, records

ROOT = Path(__file__).parents[3]


def record_of(row: dict) -> Record:
    """Returns the record of an element, as someone without our reader would put it together."""

    def texts(name: str) -> tuple[str, ...]:
        return tuple(text.decode() for text in row[name].tolist())

    return Record(
        **{name: row[name].decode() for name in example.SINGLE},
        images=tuple(row["image"].tolist()),
        suffixes=texts("suffix"),
        prefixes=tuple(tuple(json.loads(text)) for text in texts("prefixes")),
        answers=texts("answer"),
        masks=texts("mask_rle"),
        frame_requested=tuple(row["frame_requested"].tolist()),
        frame_decoded=tuple(row["frame_decoded"].tolist()),
        num_windows=int(row["num_windows"]),
        meta=json.loads(row["meta"]),
    )


@pytest.mark.slow
@settings(max_examples=20)
@given(found=records())
def test_every_field_of_every_record_is_read(found: list[Record]):
    pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")
    with tempfile.TemporaryDirectory() as folder:
        dataset = dataset_of(Path(folder) / "d", found)
        rows = list(as_tf_dataset(Path(folder) / "d").as_numpy_iterator())
        assert [record_of(row) for row in rows] == list(dataset.records())
    for row, record in zip(rows, found, strict=True):
        assert {*row} == {*example.features_of(example.encode_example(record)), "num_windows"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of clips of two windows in two shards, pictures in one, and a part without any."""
    parts = {}
    for name, sizes in {"video": (3, 2), "caption": (1,), "nothing": ()}.items():
        shards = tuple(f"{name}-{i}.tfrecord" for i in range(len(sizes)))
        for shard, size in zip(shards, sizes, strict=True):
            rows = (
                Record(
                    id=f"{shard}/{n}", images=(b"1", b"2"), num_windows=2 - (name == "caption"),
                    prefix="p", suffixes=("s",), task=name, source="a", source_sha256="00",
                )
                for n in range(size)
            )  # fmt: skip
            write_shard(tmp_path / shard, map(example.encode_example, rows))
        parts[name] = PartInfo(shards=shards, num_records=sizes)
    info = DatasetInfo(name="d", parts=parts, num_inputs=6, num_rejected=0, image_px=28)
    info.write(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_example_of_the_page_gives_pixels_and_texts(tmp_path: Path, encoded, monkeypatch):
    pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")
    record = Record(
        id="a", images=(encoded(7, 5, "PNG"),), prefix="caption de", suffixes=("Ärger", "x"),
        task="caption", source="a", source_sha256="00",
    )  # fmt: skip
    folder = tmp_path / "prepared" / "mixture"
    folder.mkdir(parents=True)
    write_shard(folder / "c.tfrecord", [example.encode_example(record)])
    parts = {"caption": PartInfo(shards=("c.tfrecord",), num_records=(1,))}
    info = DatasetInfo(name="d", parts=parts, num_inputs=1, num_rejected=0, image_px=7)
    info.write(folder)
    page = (ROOT / "docs" / "howto" / "data.md").read_text()
    (code,) = re.findall(r"```python\n(.*?as_tf_dataset.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    ((pixels, prefix, suffix),) = names["pairs"].as_numpy_iterator()
    assert pixels.tolist() == np.asarray(Image.open(io.BytesIO(record.images[0]))).tolist()
    assert (prefix.decode(), suffix.decode()) == ("caption de", "Ärger")


@pytest.mark.slow
def test_parts_are_read_one_by_one_or_all(folder: Path):
    pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")
    whole = [record_of(row) for row in as_tf_dataset(folder).as_numpy_iterator()]
    assert whole == list(Dataset(folder).records())
    clips = [record_of(row) for row in as_tf_dataset(folder, "video").as_numpy_iterator()]
    assert clips == whole[1:]
    assert [clip.num_windows for clip in clips] == [2] * 5
    assert not list(as_tf_dataset(folder, "nothing"))
    with pytest.raises(ValueError, match=r"part .*caption, nothing, video, got 'ocr'"):
        as_tf_dataset(folder, "ocr")


def test_without_tensorflow_the_error_names_the_extra(folder: Path):
    code = "import sys; sys.modules['tensorflow'] = None\n"
    code += f"from pipelines.records import as_tf_dataset; as_tf_dataset({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert re.match(r"ModuleNotFoundError: .*as_tf_dataset .*'parcel-pipeline\[tf\]'", last)


def test_no_step_has_it_in_its_code():
    reached = reach(checkout(), ["flows.steps.kinds.dataset", "flows.steps.kinds.checkpoint"])
    assert "pipelines.records.dataset" in reached
    assert "pipelines.records.tf_data" not in reached
