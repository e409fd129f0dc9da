"""`parcel data check` and `parcel doctor` read prepared shards back with plain `tf.data`."""

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipelines.records.example as example
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.schema import Record
from pipelines.records.tf_check import different_fields
from pipelines.records.tfrecord import Shard, write_shard
from tests.flows.conftest import Done
from tests.pipelines.conftest import encoded

__all__ = ["encoded"]

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow: the extra tf installs it"
)


@pytest.fixture
def folder(tmp_path: Path, encoded: Callable[..., bytes]) -> Path:
    """Two pictures in a shard, three clips of two windows in two; a part without any shard."""
    picture = {
        "images": (encoded(7, 5, "PNG"),),
        "prefix": "p",
        "suffixes": ("s", "Ä"),
        "lang": "de",
    }
    clip = {
        "images": tuple(encoded(9, 6, "JPEG", seed) for seed in range(4)), "num_windows": 2,
        "frame_requested": (0.0, 0.1, 1.0, 1.1), "frame_decoded": (0.0, 0.1, 0.9, 1.0),
        "prefix": "q", "suffixes": (), "answers": ("x",), "meta": {"n": float("nan")},
    }  # fmt: skip
    folder = tmp_path / "prepared"
    folder.mkdir()
    parts = {}
    for name, values, sizes in (
        ("caption", picture, (2,)),
        ("video", clip, (1, 2)),
        ("no", {}, ()),
    ):
        shards = tuple(f"{name}-{i}.tfrecord" for i in range(len(sizes)))
        for shard, size in zip(shards, sizes, strict=True):
            rows = [
                Record(id=f"{shard}/{n}", task=name, source="a", source_sha256="00", **values)
                for n in range(size)
            ]
            write_shard(folder / shard, map(example.encode_example, rows))
        parts[name] = PartInfo(shards=shards, num_records=sizes)
    info = DatasetInfo(name="d", parts=parts, num_inputs=5, num_rejected=0, image_px=9)
    info.write(folder)
    (folder / "rejects.jsonl").write_text("")
    return folder


def keep(folder: Path, store: str | Path) -> Artifact:
    """Returns the dataset as an artifact of a store."""
    attempt = Attempt(Store(store), Recipe(kind="dataset", name="prepare web"))
    shutil.copytree(folder, attempt.path, dirs_exist_ok=True)
    return Store(store).get(attempt.commit({}).key)


def edit_record(shard: Path, number: int, edit: Callable[[object], None]) -> None:
    """Changes one Example of a shard, which is otherwise as sound as before."""
    examples = [
        example._Example.FromString(data) for data in Shard(shard).read(0, len(Shard(shard)))
    ]
    edit(examples[number].features.feature)
    write_shard(shard, [each.SerializeToString(deterministic=True) for each in examples])


def last_line(done: Done) -> str:
    return done.out.splitlines()[-1]


@needs_tensorflow
@pytest.mark.slow
def test_check_says_which_records_tensorflow_read(parcel, folder: Path):
    before = {*sys.modules}
    done = parcel("data", "check", folder)
    assert done.code == 0, done.err
    told = (
        r"tf\.data .*caption-0\.tfrecord and 2 more .*3 of 3.* 5 records .*15 fields.* 14 pictures"
    )
    assert re.match(told, last_line(done))
    # TensorFlow was loaded by a child of the command. (Another test may have loaded it here.)
    assert "tensorflow" not in {*sys.modules} - before


@needs_tensorflow
@pytest.mark.slow
def test_a_dataset_of_a_store_is_named_by_key_or_step(parcel, folder: Path, tmp_path: Path, gcs):
    store = tmp_path / "store"
    key = keep(folder, store).key
    done = parcel("data", "check", key[:14], "--store", store, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["tf_data"]["num_records"] == 5
    for name in ("prepare web", key):
        named = parcel("data", "check", name, "--store", store, "--no-tf-data")
        assert named.out.startswith("d: 5 inputs = 5 records"), named.err
        assert "tf.data" not in named.out
    assert parcel("data", "check", "prepare wob", "--store", store).code == 2
    # Of a bucket, shards are copied to this machine: TensorFlow has no access to it.
    bucket = f"{gcs.uri}/studies"
    keep(folder, bucket)
    done = parcel("data", "check", "prepare web", "--store", bucket)
    assert done.code == 0, done.err
    assert "(shards: 3 of 3): 5 records of 15 fields, equal to" in last_line(done)


def other_type(feature) -> None:
    feature["num_windows"].bytes_list.value.append(b"2")


def two_ids(feature) -> None:
    feature["id"].bytes_list.value.append(b"b")


def no_picture(feature) -> None:
    feature["image"].bytes_list.value[0] = b"no picture"


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (other_type, "Key: num_windows. Data types don't match. Data type: string but expected"),
        (two_ids, "Key: id. Can't parse serialized Example: "),
        (no_picture, "Unknown image file format."),
    ],
)
def test_what_only_tensorflow_refuses_is_one_line_and_exit_code_1(
    parcel, folder: Path, edit, reason: str
):
    edit_record(folder / "video-1.tfrecord", 1, edit)
    done = parcel("data", "check", folder)
    assert done.code == 1
    assert last_line(done).startswith("tf.data: record 1 of video-1.tfrecord ")
    assert reason in last_line(done)
    assert done.err == ""
    assert not re.search(r"\{\{|\[Op|Iterator", done.out)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_bit, r"record \d of .*/video-1.tfrecord is damaged; prepare it again."),
        (cut_off, r".*/video-1.tfrecord has \d+ bytes, its index says \d+; prepare it again."),
        (remove, r".*/video-1.tfrecord is missing; prepare it again."),
    ],
)
def test_a_damaged_shard_is_one_line_and_exit_code_1(
    parcel, folder: Path, damage: Callable[[Path], None], reason: str
):
    damage(folder / "video-1.tfrecord")
    done = parcel("data", "check", folder)
    assert (done.code, done.err) == (1, "")
    (line,) = done.out.splitlines()
    assert re.fullmatch(reason, line)
    found = json.loads(parcel("data", "check", folder, "--json").out)
    assert re.fullmatch(reason, found["failure"])


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("id", b"b", "id"),
        ("suffix", np.array([b"t"], object), "suffixes"),
        ("frame_decoded", np.array([0.0, 0.2], np.float32), "frame_decoded"),
        ("meta", b"{}", "meta"),
    ],
)
def test_a_field_that_the_readers_read_differently_is_named(name: str, value: Any, field: str):
    record = Record(
        id="a", images=(b"1", b"2"), prefix="p", suffixes=("s",), task="t", source="a",
        source_sha256="00", frame_requested=(0.0, 0.1), frame_decoded=(0.0, 0.1),
        meta={"n": float("nan")}, turns=(("a", "b"),),
    )  # fmt: skip
    found = example.features_of(example.encode_example(record))
    row: dict[str, Any] = {
        key: values[0] if key in (*example.SINGLE, "meta") else np.array(values, object)
        for key, values in found.items()
    } | {"num_windows": np.int64(1)}
    row["frame_decoded"] = np.array([0.0, 0.1], np.float32)
    row["frame_requested"] = row["frame_decoded"]
    read = example.decode_example(example.encode_example(record))
    assert different_fields(read, row) == []
    assert different_fields(read, {**row, name: value}) == [field]


def test_without_tensorflow_the_check_says_what_installs_it(
    parcel, folder: Path, tmp_path: Path, monkeypatch
):
    # As where it is not installed: for this process, and for one that would import it.
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "tensorflow.py").write_text("raise ModuleNotFoundError(name='tensorflow')")
    monkeypatch.syspath_prepend(absent)
    done = parcel("data", "check", folder)
    assert done.code == 0
    assert "pip install 'parcel-pipeline[tf]'" in last_line(done)
    told = parcel("doctor", "--engine", "tf", "--store", folder.parent / "store")
    assert told.code == 0
    assert "note tf         TensorFlow is not installed" in told.out
    assert "→ pip install 'parcel-pipeline[tf]'" in told.out


@needs_tensorflow
@pytest.mark.slow
def test_doctor_reads_a_shard_of_the_store_or_one_of_its_own(parcel, folder: Path, tmp_path: Path):
    store = tmp_path / "store"
    done = parcel("doctor", "--engine", "tf", "--store", store)
    assert done.code == 0, done.out
    told = r"ok   tf  .*doctor-00000-of-00001\.tfrecord .*1 of 1.* 3 records .*15 fields"
    assert re.search(told, done.out)
    edit_record(folder / "caption-0.tfrecord", 0, no_picture)
    key = keep(folder, store).key
    bad = parcel("doctor", "--engine", "tf", "--store", store)
    assert bad.code == 1
    assert (
        f"BAD  tf         RuntimeError: {key}: tf.data: record 0 of caption-0.tfrecord" in bad.out
    )
