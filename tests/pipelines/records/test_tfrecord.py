"""Shards: what is written is read back, at random and in order; damage shows."""

import io
import pickle
import resource

import google_crc32c
import numpy as np
import pytest

from pipelines.records.tfrecord import (
    Shard,
    ShardWriter,
    index_path,
    is_header,
    read_frames,
    write_shard,
)

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


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 14, 15, 18])
def test_a_flipped_bit_of_any_field_of_a_frame_is_found(tmp_path, at):
    path = tmp_path / "a.tfrecord"
    write_shard(
        path, [b"abc"]
    )  # Length 0 .. 8, its checksum .. 12, data .. 15, its checksum .. 19.
    data = bytearray(path.read_bytes())
    data[at] ^= 64
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"record 0 of .*a\.tfrecord is damaged"):
        Shard(path)[0]
    with pytest.raises(ValueError, match="damaged"):
        list(read_frames(io.BytesIO(data)))


@pytest.mark.parametrize(
    "offsets", [[], [0], [0, 40, 30, 124], [0, 15, 124], [16, 40, 124], [0, 2**63 + 5, 124]]
)
def test_an_index_that_is_no_list_of_frames_is_refused(tmp_path, offsets):
    path = tmp_path / "a.tfrecord"
    write_shard(path, ROWS)
    size = path.stat().st_size
    ends = [size if offset == 124 else offset for offset in offsets]
    for ending in (b"", b"x"):
        index_path(path).write_bytes(np.array(ends, "<u8").tobytes() + ending)
        with pytest.raises(ValueError, match=r"a\.(idx is no index|tfrecord has )"):
            Shard(path)


@pytest.mark.parametrize("length", [2**27 + 1, 2**33, 2**40, 2**63 + 5, 2**64 - 1])
def test_a_length_that_no_record_has_takes_no_memory(length):
    head = length.to_bytes(8, "little")
    head += masked_crc(head).to_bytes(4, "little")
    assert is_header(head)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=f"record 0 bytes in has {length} bytes"):
        list(read_frames(io.BytesIO(head + bytes(100))))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
