"""Tests of the estimated cost of reading, compared with the reads that a pass makes."""

import pytest

from model.data.config import BatchConfig
from model.data.parts import open_parts
from model.data.reading import PartSize, reading_of
from pipelines.records import dataset
from tests.model.tiny_data import color_record, write_dataset

WEB = PartSize(num_records=100_000_000, num_bytes=33_000 * 100_000_000, num_shards=10_000)


def test_a_pass_takes_as_many_requests_as_told(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "MAX_BLOCK", 4)
    folder = write_dataset(tmp_path / "d", {"color": [color_record(i) for i in range(70)]})
    other = write_dataset(tmp_path / "e", {"color": [color_record(i) for i in range(33)]})
    joined = open_parts([folder, other])["color"]
    ranges = {
        (id(part), *piece)
        for part, length in zip(joined._parts, (70, 33), strict=True)
        for position in range(length)
        for piece in part._pieces(*part._block_of(position))
    }
    sizes = PartSize(num_records=103, num_bytes=joined.num_bytes, num_shards=2)
    told = reading_of({"color": sizes}, BatchConfig(batch_size=5))
    assert told.requests_per_record * 103 == pytest.approx(len(ranges)) == 27
    assert told.bytes_per_record == pytest.approx(joined.num_bytes / 103)
    assert told.window_bytes == joined.num_bytes


def test_a_pods_pace_stays_far_from_a_buckets_limit():
    told = reading_of({"caption": WEB}, BatchConfig(batch_size=8192))
    assert 7300 * told.requests_per_record == pytest.approx(229, abs=1)
    assert told.window_bytes == 33_000 * 8192 * 32


def test_weights_count_and_parts_outside_the_mixture_do_not():
    parts = {"clip": PartSize(num_records=10**6, num_bytes=2**20 * 10**6, num_shards=1), "web": WEB}
    half = BatchConfig(mixture=(("clip", 1.0), ("web", 1.0)))
    assert reading_of(parts, half).requests_per_record == pytest.approx((1 + 1 / 32) / 2, rel=0.01)
    only = BatchConfig(mixture=(("web", 1.0),))
    assert reading_of(parts, only) == reading_of({"web": WEB}, BatchConfig())
