"""Shards: what is written is read back, at random and in order; damage shows."""

import pickle

import pytest

from pipelines.records.tfrecord import Shard, ShardWriter, index_path, write_shard

ROWS = [b"one", b"", b"three" * 100, b"\x00\xff"]


def test_every_record_comes_back_from_its_position(tmp_path):
    assert write_shard(tmp_path / "a.tfrecord", ROWS) == 4
    shard = Shard(tmp_path / "a.tfrecord")
    assert [shard[i] for i in (2, 0, 3, 1)] == [ROWS[i] for i in (2, 0, 3, 1)]
    assert pickle.loads(pickle.dumps(shard))[2] == ROWS[2]


def test_empty_shard_has_no_records(tmp_path):
    assert write_shard(tmp_path / "a.tfrecord", []) == 0
    assert len(Shard(tmp_path / "a.tfrecord")) == 0


def test_nothing_has_its_name_before_commit(tmp_path):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    writer.write(b"one")
    assert not (tmp_path / "a.tfrecord").exists()
    writer.commit()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.idx", "a.tfrecord"]


@pytest.mark.parametrize("position", [-1, 4])
def test_position_outside_names_the_range(tmp_path, position):
    write_shard(tmp_path / "a.tfrecord", ROWS)
    with pytest.raises(IndexError, match=rf"0\.\.3, got {position}"):
        Shard(tmp_path / "a.tfrecord")[position]


def test_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_shard(path, ROWS)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"record 2 of .* is damaged"):
        Shard(path)[2]


def test_truncated_shard_is_refused(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_shard(path, ROWS)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="its index says"):
        Shard(path)
    assert index_path(path).exists()


@pytest.mark.slow
def test_tensorflow_reads_shards_and_examples(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")

    from pipelines.records.example import encode_example
    from pipelines.records.schema import Record

    record = Record(
        id="a", images=(b"x", b"y"), prefix="caption de", suffixes=("Ärger",), task="caption",
        source="s", source_sha256="0", frame_requested=(0.0, 1.5), frame_decoded=(0.0, 1.25),
    )  # fmt: skip
    write_shard(tmp_path / "a.tfrecord", [encode_example(record)])
    (raw,) = tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord")).as_numpy_iterator()
    parsed = tf.train.Example.FromString(raw)
    assert list(parsed.features.feature["image"].bytes_list.value) == [b"x", b"y"]
    assert parsed.features.feature["suffix"].bytes_list.value[0].decode() == "Ärger"
    assert list(parsed.features.feature["frame_decoded"].float_list.value) == [0.0, 1.25]
    assert parsed.SerializeToString(deterministic=True) == raw
