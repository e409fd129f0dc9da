"""Published files as they are: every one becomes a record or a reject with a reason."""

import collections
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from pipelines.prepare.check import check_corpus
from pipelines.prepare.raw_files import list_raw_files
from pipelines.prepare.run import PrepareConfig, prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.video.decoders import decode_pyav
from pipelines.video.probe import probe_video

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parity,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data, published sample files"),
]


def run(tmp_path, source: str, split: str, path: str, rate: float = 0.0) -> Dataset:
    config = PrepareConfig(image_px=28, num_frames=4, num_workers=2, max_reject_rate=rate)
    out = str(tmp_path / "out")
    prepare_dataset(config, source=source, split=split, data_root=str(DATA), out=out, path=path)
    dataset = Dataset(out)
    ids = [r.id for r in dataset.records()] + [r.id for r in dataset.rejects()]
    assert len(set(ids)) == dataset.info.num_inputs
    return dataset


def reasons(dataset: Dataset) -> collections.Counter[str]:
    return collections.Counter(reject.reason.split(":")[0] for reject in dataset.rejects())


def test_chartqa(tmp_path):
    dataset = run(tmp_path, "chartqa", "val", "chartqa")
    rows = json.loads((DATA / "chartqa/ChartQA Dataset/val/val_human.json").read_text())
    assert dataset.info.num_records == len(rows) == 20
    asked = {(r.prefix, r.answers[0]) for r in dataset.records()}
    assert asked == {(row["query"], row["label"]) for row in rows}
    where = {"source": "chartqa", "split": "val", "data_root": str(DATA)}
    assert len(list(list_raw_files(PrepareConfig(), **where, work=str(tmp_path / "work")))) == 11


def test_nlvr_uses_every_picture_once(tmp_path):
    dataset = run(tmp_path, "nlvr", "dev", "nlvr")
    assert dataset.info.num_records == 120
    sources = [source for r in dataset.records() for source, _ in r.meta["sources"]]
    assert len(set(sources)) == len(sources) == 240
    assert all(len(r.images) == 2 and r.suffixes[0] in ("True", "False") for r in dataset.records())


def test_web_shards(tmp_path):
    dataset = run(tmp_path, "web", "train", "web_image_text", rate=1.0)
    captions = {r.suffixes[0]: len(r.images) for r in dataset.records()}
    assert captions["A bus."] == 1
    assert captions["一段卡通"] == 4
    found = {reason.partition(";")[0]: num for reason, num in reasons(dataset).items()}
    assert found == {
        "only a URL": 1002,
        "no image among .ten": 100,
        "no caption or annotation": 97,
    }


def test_videos(tmp_path):
    dataset = run(tmp_path, "videos", "train", "videos", rate=0.3)
    rejects = {reject.id.rpartition("/")[2]: reject.reason for reject in dataset.rejects()}
    assert rejects.pop("bitmap.mp4") == "too small: 1x1, min_side=8"
    assert rejects.pop("crunching.mp3") == "no video stream, only audio"
    assert rejects.pop("result.webm").startswith("unreadable video")
    assert not rejects
    assert dataset.info.num_records == 12
    for record in dataset.records():
        gaps = [a - b for a, b in zip(record.frame_requested, record.frame_decoded, strict=True)]
        assert all(-0.001 <= gap < 0.15 for gap in gaps), record.id


def test_frames_of_published_videos_are_those_of_decoding_in_sequence():
    names = [*DATA.glob("videos/**/*.m[pko][4v]"), *DATA.glob("web_image_text/**/*.mp4")]
    begun = 0
    for path in map(str, names):
        info = probe_video(path)
        times = [info.duration * i / 16 for i in range(16)]
        found = decode_pyav(path, info, times)
        whole = decode_pyav(path, dataclasses.replace(info, starts=()), times)
        for (at, pixels), (expected_at, expected) in zip(found, whole, strict=True):
            assert at == pytest.approx(expected_at, abs=1e-6), path
            np.testing.assert_array_equal(pixels, expected, path)
        begun += bool(info.starts)
    assert begun > 8


def test_decoded_times_are_those_of_the_frame_list(tmp_path):
    listed = DATA / "videos/torchcodec/test/resources/nasa_13013.mp4.stream3.all_frames_info.json"
    times = [float(frame["pts_time"]) for frame in json.loads(listed.read_text())]
    dataset = run(tmp_path, "videos", "train", "videos/torchcodec", rate=0.3)
    (record,) = [r for r in dataset.records() if r.id.endswith("nasa_13013.mp4")]
    for requested, decoded in zip(record.frame_requested, record.frame_decoded, strict=True):
        shown = max(t - times[0] for t in times if t - times[0] <= requested + 1e-4)
        assert decoded == pytest.approx(shown, abs=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_bad_images(tmp_path):
    dataset = run(tmp_path, "images", "train", "bad_images", rate=1.0)
    files = [p for p in (DATA / "bad_images").rglob("*") if p.is_file()]
    assert dataset.info.num_inputs == len(files) - 1  # Less the manifest.
    assert dataset.info.num_records >= 80
    assert {"undecodable", "too small", "too large", "mode F"} <= set(reasons(dataset))


MISSING = "No such file or directory: …"
"""Rows whose pictures or clips their authors publish elsewhere."""

ACCOUNTS = (
    ("activitynet_cap", "train", "activitynet_captions/anet_data", 0, {MISSING: 722}, 0),
    ("activitynet_qa", "train", "activitynet_qa", 0, {MISSING: 600}, 0),
    ("activitynet_qa", "val", "activitynet_qa", 0, {MISSING: 1200}, 0),
    ("aokvqa_da", "val", "aokvqa", 0, {MISSING: 1}, 0),
    ("aokvqa_mc", "val", "aokvqa", 0, {MISSING: 1}, 0),
    ("images", "train", "clipscore_example", 2, {}, 2),
    ("images", "train", "coco_panoptic_masks", 3, {}, 3),
    ("docvqa", "val", "docvqa", 0, {MISSING: 12}, 0),
    ("images", "train", "labelme_instance_seg", 10, {}, 4),
    ("marvl", "id", "marvl", 0, {MISSING: 150}, 0),
    ("marvl", "sw", "marvl", 0, {MISSING: 150}, 0),
    ("web", "train", "metric_parity", 0, {}, 18),
    ("nlvr", "dev", "nlvr2", 0, {MISSING: 300}, 0),
    ("images", "train", "opencqa", 60, {}, 61),
    ("pope", "random", "pope", 0, {MISSING: 600}, 0),
    ("pope", "popular", "pope", 0, {MISSING: 300}, 0),
    ("images", "train", "scicap", 1, {}, 1),
    *(("xgqa", f"dev_{lang}", "xgqa", 0, {MISSING: 120}, 0) for lang in ("en", "de", "bn")),
)
"""Source, split, path: records, rejects by reason, files that were passed over."""

REFUSED = (
    ("activitynet_cap", "val", "activitynet_captions/anet_data", "val_1.json"),
    ("coco_objects", "train", "coco_panoptic_masks", "instances_train2017.json"),
    ("coco_objects", "train", "labelme_instance_seg", "instances_train2017.json"),
    ("web", "train", "coco_results", "holds no .tar, .tgz, .parquet"),
    ("countbenchqa", "huggingface", "countbenchqa", ".parquet"),
    ("web", "train", "flickr8k", "holds no .tar, .tgz, .parquet"),
    ("refcoco", "testA", "refcoco_expressions", "refs(unc).p"),
    ("scicap", "train", "scicap", "file_idx.json"),
    ("screen2words", "train", "screen2words", "screen_summaries.csv"),
    ("widgetcap", "train", "widget_caption", "widget_captions.csv"),
)
"""Samples without the lists that a reader needs, with what it names as missing."""

DETAILED = ("bad_images", "chartqa", "exif_orientation", "nlvr", "videos", "web_image_text")
"""Samples that the tests above prepare."""


def test_every_sample_is_accounted_for():
    named = {path.split("/")[0] for _, _, path, *_ in (*ACCOUNTS, *REFUSED)} | {*DETAILED}
    assert {folder.name for folder in DATA.iterdir() if folder.is_dir()} == named


@pytest.mark.parametrize(("source", "split", "path", "records", "rejects", "omissions"), ACCOUNTS)
def test_a_published_sample_is_accounted_for(source, split, path, records, rejects, omissions):
    config = PrepareConfig(max_reject_rate=1.0)
    check = check_corpus(str(DATA), source, split, path=path, config=config, open_all=True)
    assert sum(part.records for part in check.parts.values()) == records
    assert {group.reason: group.num for group in check.rejects} == rejects
    assert sum(group.num for group in check.omissions) == omissions


@pytest.mark.parametrize(("source", "split", "path", "missing"), REFUSED)
def test_a_sample_without_its_lists_names_them(source, split, path, missing):
    with pytest.raises(FileNotFoundError, match=re.escape(missing)):
        check_corpus(str(DATA), source, split, path=path)


def test_exif_orientation(tmp_path):
    dataset = run(tmp_path, "images", "train", "exif_orientation")
    assert dataset.info.num_records == 4
