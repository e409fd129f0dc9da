"""Every benchmark runs, on models so small that their figures mean nothing."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from flows.lineage.named import named
from flows.lineage.trace import trace
from infra.store.store import Store
from model.train.config import TrainConfig
from perf import (
    accelerator,
    archives,
    attention,
    decode,
    evaluation,
    images,
    lineage,
    loader,
    order,
    prefill,
    sampling,
    train_step,
    video,
)
from perf.bucket import bucket, stored
from perf.lookup import graph_with
from perf.ranged_reads import moved
from perf.timing import table, take_turns
from pipelines.prepare.run import PrepareConfig, prepare
from pipelines.records.dataset import read_info
from pipelines.records.tfrecord import Shard
from pipelines.video.sampling import FrameSampling
from tests.model.tiny_model import tiny_model
from tests.pipelines.video.decoders import needs_decord

pytestmark = pytest.mark.usefixtures("fast_compiler")


def test_programs_take_turns_in_alternating_order():
    ran: list[str] = []
    timings = take_turns({name: lambda name=name: ran.append(name) for name in "ab"}, 2)
    assert "".join(ran) == "abbaab"
    assert timings["a"].wall >= 0
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        take_turns({}, 0)


def test_tables_are_aligned():
    assert table(["a", "bb"], [["ccc", 1]]) == "a    bb\nccc   1"


@pytest.mark.slow
def test_train_step():
    models = {"vanilla": (tiny_model(), (64,)), "parcel": (tiny_model("parcel", (30, 64)), (30,))}
    rows = train_step.measure(models, TrainConfig(batch_size=2, text_len=6), 1)
    assert [row[:2] for row in rows] == [["vanilla", "64"], ["parcel", "30"]]
    assert rows[0][4] == "1.00"
    assert [row[-1] for row in rows] == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("length", [9, 130])
def test_libraries_compute_the_same_attention(monkeypatch: pytest.MonkeyPatch, length: int):
    monkeypatch.setattr(attention, "SIZES", {"tiny": (2, length, 2, 3, 8)})
    rows = {row[1]: row for row in attention.measure("tiny", 1)}
    assert {"ours", "jax.nn, no cap", "splash"} <= {*rows}
    for what, (*_, differs) in rows.items():
        assert differs == "" if what.startswith("ours") else float(differs) < 1e-4, what


def test_order_is_near_a_full_shuffle():
    batch, lanes, companions, full, correlation = order.measure(20_000, 8, 64, 40)
    assert (batch, lanes) == ("64", "2")
    assert 0.1 < float(companions) < 1.1
    assert float(full) == pytest.approx(63 * 7 / 19_999, abs=1e-4)
    assert abs(float(correlation)) < 0.1


@pytest.mark.slow
def test_lineage(tmp_path: Path):
    lineage.lay_out(graph_with(1), tmp_path)
    store = Store(tmp_path)
    told = list(trace(store, named(store, f"demo/{lineage.CELL}"), samples=0))
    assert sum("(shown above)" not in line for line in told[1:]) > 10
    assert lineage.up(200, 600)[:3] == ["200", "600", "3"]


@pytest.mark.slow
def test_decode():
    shape = {"batch_size": 2, "text_len": 5, "num_tokens": 3, "rounds": 1}
    rows = decode.measure({"parcel": tiny_model("parcel")}, [("parcel", 16)], **shape)
    assert [row[:2] for row in rows] == [["parcel", "16"]]


@pytest.mark.slow
def test_prefill_and_the_flops_it_promises():
    models = tiny_model(), tiny_model("parcel")
    shape = {"batch_size": 2, "text_len": 7, "rounds": 1}
    (one,) = prefill.measure(*models, [16], **shape)
    assert (one.budget, 0 < one.flops_ratio < 1) == (16, True)
    np.testing.assert_allclose(one.found(one.flops_ratio), 1)
    # Matrix products do not dominate in a model this small: XLA counts much else.
    assert one.xla_ratio == pytest.approx(one.flops_ratio, rel=0.3)


@needs_decord
def test_video_loops_and_ours_show_the_same_frames(tmp_path):
    path = video.write_clip(tmp_path / "a.mp4", seconds=2, key_frames=12, width=80, height=48)
    rows = video.measure(path, "12, 5", FrameSampling(num_frames=4, stride=5), rounds=1)
    assert [row[1] for row in rows] == [*video.LOOPS, "ours"]
    assert {row[5] for row in rows} == {"4 of 4"}
    assert rows[-1][-1] == "1.00"


@needs_decord
@pytest.mark.slow
def test_video_memory(capsys: pytest.CaptureFixture[str]):
    video.main(["--seconds", "1", "--height", "48", "--rounds", "1", "--clips", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(video.CASES) * (len(video.LOOPS) + 1) + 1 + 4
    assert [line.split()[0] for line in lines[-4:]] == ["1", "PyAV", "decord", "ours"]
    assert all(int(line.split()[-1]) > 10 for line in lines[-3:])


TRAIN = TrainConfig(batch_size=3, text_len=24, total_steps=2)


def test_loader_opens_and_resumes(tmp_path: Path):
    loader.write_data(tmp_path / "d", 7, 1, num_shards=2, num_photos=2)
    rows = loader.measure_resume(tmp_path / "d", TRAIN, (0, 10**9), 1)
    assert [row[0] for row in rows] == [
        "opening",
        "first batch at step 0",
        "first batch at step 1000000000",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("num_images", [1, 2])
def test_loader_and_plain_tf_data_do_the_same(tmp_path: Path, num_images: int):
    pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")
    loader.write_data(tmp_path / "d", 6, num_images, num_shards=2, num_photos=9)
    ours = loader.open_loader(tmp_path / "d", TRAIN).batches(0, 2)
    theirs = loader.tf_data_batches(tmp_path / "d", TRAIN, num_images).as_numpy_iterator()
    made = [
        sorted(row.tobytes() for batch in batches for row in batch[key])
        for batches in map(list, (ours, theirs))
        for key in ("image", "text", "mask_ar", "mask_loss")
    ]
    assert made[:4] == made[4:]
    row = loader.in_process(1, loader.measure, tmp_path / "d", TRAIN, num_images, 1, 1)
    assert row[:3] == ["disk", str(num_images), "1"]


@pytest.mark.slow
def test_loader_is_measured_from_a_bucket(tmp_path: Path):
    loader.write_data(tmp_path / "d", 30, 1, num_shards=2, num_photos=2)
    with bucket(0, tmp_path / "reader") as url:
        place = stored(tmp_path / "d", tmp_path / "maker")
        before = moved(url)[0]
        row = loader.in_process(1, loader.measure, tmp_path / "d", TRAIN, 1, 1, 1, place)
        assert row[:3] == ["bucket", "1", "1"]
        assert moved(url)[0] > before


@pytest.mark.slow
def test_accelerator(capsys: pytest.CaptureFixture[str]):
    words = "--size tiny --batch-size 1 --text-len 8 --rounds 1 --tokens 2 --budgets 16"
    accelerator.main(words.split())
    *_, train, prefilled, token = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in (train, prefilled, token)] == [
        ["train", "16"],
        ["prefill", "16"],
        ["token", "16"],
    ]
    assert token.split()[-1] == "-"  # A CPU has no peak here.


@pytest.mark.slow
def test_images(tmp_path: Path):
    pictures = images.encodings(2, 2)
    rows = images.measure(tmp_path, [4, 8], pictures, rounds=1, workers=2)
    assert [row[:2] for row in rows] == [
        ["4", "prepare"],
        ["4", "pool"],
        ["4", "one"],
        ["8", "prepare"],
        ["8", "pool"],
    ]
    assert rows[1][4] == rows[1][6] == "1.00"


@pytest.mark.slow
def test_archives(tmp_path: Path):
    archives.write_archives(tmp_path / "corpus", 22, per_tar=2)
    row = archives.measure(tmp_path / "corpus", tmp_path / "out", num_shards=2, workers=1)
    assert len(row) == len(archives.HEADER) - 1
    assert 50 < int(row[-1]) < 1000
    assert read_info(tmp_path / "out").num_records == 44


@pytest.mark.slow
def test_samples(tmp_path: Path):
    sampling.write_sources(tmp_path / "data", images=40, charts=12, clips=2, seconds=1)
    for source in sampling.SOURCES:
        config = PrepareConfig(num_workers=1, num_shards=1)
        rows = sampling.measure(tmp_path / "data", source, [10], config)
        (row,) = rows
        assert len(row) == len(sampling.HEADER)
        assert row[:3] == [source, int(row[4]), 10]


@pytest.mark.slow
def test_images_of_a_bucket(tmp_path: Path):
    pictures = images.encodings(2, 2)
    rows = images.measure(tmp_path, [4], pictures, rounds=1, workers=1, latency_ms=1)
    assert [row[:2] for row in rows] == [["4", n] for n in ("prepare", "bucket", "pool", "one")]


def test_the_bare_pool_writes_the_records_that_prepare_does(tmp_path: Path):
    (root,) = images.write_corpora(tmp_path, [3], images.encodings(3, 1))
    bare = sorted(images.bare_records(root / "web/00000.tar"))
    config = PrepareConfig(image_px=images.IMAGE_PX, num_shards=1, num_workers=1)
    prepare(config, source="web", split="train", data_root=str(root), out=str(tmp_path / "out"))
    (shard,) = map(Shard, (tmp_path / "out").glob("*.tfrecord"))
    assert sorted(shard[i] for i in range(len(shard))) == bare
    assert len(bare) == 3


@pytest.mark.parametrize(
    "name", ["train_step", "decode", "prefill", "accelerator", "images", "loader", "video"]
)
def test_every_script_has_help(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"perf.{name}").main(["--help"])
    assert ended.value.code == 0
    assert "--rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluation():
    shape = {"batch_size": 2, "text_len": 5, "num_tokens": 3, "rounds": 1}
    timings = evaluation.measure(tiny_model("parcel"), [16, 64], **shape)
    assert set(timings) == {"all", "largest"}
