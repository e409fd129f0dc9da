"""Readers of captions of videos and of questions about them; segments of one video stay apart."""

import json

import pytest

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.sources.reading.item import Item
from tests.pipelines.sources.video_layouts import (
    write_activitynet_cap,
    write_activitynet_qa,
    write_msrvtt_cap,
    write_msrvtt_qa,
    write_msvd_qa,
    write_vatex_cap,
)
from tests.pipelines.sources.writing import put_json


def paths(items) -> list[str]:
    assert all(item.media[0].video for item in items)
    return [item.media[0].path for item in items]


def test_activitynet_captions_are_of_segments(tmp_path, read_source):
    write_activitynet_cap(tmp_path)
    items, rejects = read_source("activitynet_cap", "val", tmp_path)
    assert [(i.id, i.prefix, i.suffixes) for i in items] == [
        ("activitynet_cap/val/v_uqiMw7tQ1Cc[13.79-54.32]#0", "caption en", ("The coach helps.",)),
        ("activitynet_cap/val/v_uqiMw7tQ1Cc[0.0-55.15]#1", "caption en", ("A tutorial.",)),
        ("activitynet_cap/val/v_uqiMw7tQ1Cc[0.0-55.15]#2", "caption en", ("Two men.",)),
    ]
    assert [(i.media[0].start, i.media[0].end) for i in items] == [
        (13.79, 54.32),
        (0, 55.15),
        (0, 55.15),
    ]
    assert items[1].media == items[2].media != items[0].media
    assert Item.from_json(items[0].to_json()) == items[0]
    assert set(paths(items)) == {"activitynet/videos/uqiMw7tQ1Cc.mkv"}
    assert [r.reason.partition(":")[0] for r in rejects] == [
        "timestamps of v_uqiMw7tQ1Cc must be 0 <= start <= end, got [9, 8.5]",
        "v_uneven has 2 sentences, 1 timestamps",
        "v_uneven has 2 sentences, 1 timestamps",
        "malformed row",
    ]


def test_activitynet_captions_are_tested_on_the_second_validation_file(tmp_path, read_source):
    write_activitynet_cap(tmp_path)
    items, rejects = read_source("activitynet_cap", "test", tmp_path)
    assert items[0].id == "activitynet_cap/test/v_uqiMw7tQ1Cc[13.79-54.32]#0"
    assert rejects[-1].reason == "sentence 0 of v_-D0pVkTEYQg is empty"
    items, _ = read_source("activitynet_cap", "train", tmp_path)
    assert paths(items)[0] == "activitynet/videos/v_other.webm"
    assert items[0].media[0].end == 1.5
    assert len({item.id for item in items}) == 4


def test_activitynet_questions_meet_their_answers(tmp_path, read_source):
    write_activitynet_qa(tmp_path)
    items, rejects = read_source("activitynet_qa", "test", tmp_path)
    assert [(i.id, i.prefix, i.answers) for i in items] == [
        ("activitynet_qa/test/v_okC18bPTils#v_okC18bPTils_3", "answer en who runs", ("no",)),
        ("activitynet_qa/test/v_-x#v_-x_1", "answer en who runs", ("2",)),
    ]
    assert items[0].meta == {"question_id": "v_okC18bPTils_3", "question_type": 3}
    assert paths(items)[1] == "activitynet_qa/videos/v_-x.mp4"
    assert [r.reason for r in rejects] == ["question v_okC18bPTils_4 has no answer"]


def test_msrvtt_clips_have_their_captions(tmp_path, read_source):
    write_msrvtt_cap(tmp_path)
    items, rejects = read_source("msrvtt_cap", "train+val", tmp_path)
    assert [item.id for item in items] == [
        "msrvtt_cap/train/video0#0",
        "msrvtt_cap/val/video6513#0",
    ]
    assert items[0].suffixes == items[0].answers == tuple(f"video0 said {n}" for n in range(20))
    assert paths(items) == [
        "msrvtt_cap/TrainValVideo/video0.avi",
        "msrvtt_cap/TrainValVideo/video6513.mp4",
    ]
    assert [r.reason for r in rejects] == ["video9 has no caption"]
    items, rejects = read_source("msrvtt_cap", "test", tmp_path)
    assert (paths(items), rejects) == (["msrvtt/TestVideo/video7010.mp4"], [])


def test_msrvtt_questions_share_its_videos(tmp_path, read_source):
    write_msrvtt_qa(tmp_path)
    items, rejects = read_source("msrvtt_qa", "val+test", tmp_path)
    assert [(i.id, i.prefix, i.suffixes) for i in items] == [
        ("msrvtt_qa/val/video6513#158581", "answer en who?", ("man",)),
        ("msrvtt_qa/test/video7010#158581", "answer en who?", ("man",)),
    ]
    assert paths(items) == [
        "msrvtt/TrainValVideo/video6513.mp4",
        "msrvtt/TestVideo/video7010.webm",
    ]
    assert [r.reason for r in rejects] == ["answer must be a text, got None"]


def test_msvd_maps_videos_to_clips(tmp_path, read_source):
    write_msvd_qa(tmp_path)
    items, rejects = read_source("msvd_qa", "val", tmp_path)
    assert [(i.id, i.prefix, i.suffixes) for i in items] == [
        ("msvd_qa/val/vid1#10", "answer en who runs?", ("man",)),
        ("msvd_qa/val/vid2#11", "answer en what?", ("dog",)),
    ]
    assert paths(items) == [
        "msvd_qa/YouTubeClips/ab_c_1_2.mp4",
        "msvd_qa/YouTubeClips/-x y_3_4.avi",
    ]
    assert [r.reason for r in rejects] == ["vid3 is not in youtube_mapping.txt"]
    with pytest.raises(FileNotFoundError, match=r"test_qa\.json is missing"):
        read_source("msvd_qa", "test", tmp_path)


@pytest.mark.parametrize(("split", "num_rejects"), [("val", 1), ("test", 0)])
def test_vatex_keeps_english_captions(tmp_path, read_source, split, num_rejects):
    write_vatex_cap(tmp_path)
    (item,), rejects = read_source("vatex_cap", split, tmp_path)
    assert item.id == f"vatex_cap/{split}/-Xk_7hXF1bA_000015_000025#0"
    assert item.suffixes == tuple(f"A man {n}." for n in range(10))
    assert (item.prefix, item.lang) == ("caption en", "en")
    assert paths([item]) == ["vatex_cap/videos/-Xk_7hXF1bA_000015_000025.mp4"]
    assert len(rejects) == num_rejects


@pytest.mark.slow
def test_frames_of_a_segment_lie_in_it(tmp_path, write_video):
    folder = tmp_path / "root/activitynet_cap"
    (folder / "videos").mkdir(parents=True)
    write_video(folder / "videos/v_a.mp4", num_frames=60, fps=10)
    told = {
        "duration": 6,
        "timestamps": [[2, 4], [0, 1.5], [2, 4], [5, 99], [7, 8], [3, 3]],
        "sentences": ["b", "a", "c", "d", "late", "short"],
    }
    put_json(folder / "val_1.json", {"v_a": told, "v_gone": {**told, "sentences": ["x"] * 6}})
    config = PrepareConfig(
        image_px=16, num_workers=1, num_frames=4, num_shards=1, max_reject_rate=0.9
    )
    prepare_dataset(
        config,
        source="activitynet_cap",
        split="val",
        data_root=str(tmp_path / "root"),
        out=str(tmp_path / "out"),
    )
    found = {record.suffixes[0]: record for record in Dataset(tmp_path / "out").records()}
    requested = {said: list(record.frame_requested) for said, record in found.items()}
    assert requested == {
        "a": pytest.approx([0, 1.2, 0, 1.2]),
        "b": pytest.approx([2, 3.2, 2, 3.2]),
        "c": pytest.approx([2, 3.2, 2, 3.2]),
        "d": pytest.approx([5] * 4),
        "short": pytest.approx([3] * 4),
    }
    assert found["b"].frame_decoded == pytest.approx([2, 3.2, 2, 3.2])
    assert found["b"].images == found["c"].images != found["a"].images
    assert found["b"].id.partition("#")[0] == found["c"].id.partition("#")[0]
    assert len({record.id.partition("#")[0] for record in found.values()}) == 4
    reasons = [
        json.loads(line)["reason"]
        for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()
    ]
    assert reasons.count("the part from 7 s begins after the end, 6.00 s") == 1
    assert (
        reasons.count("No such file or directory: activitynet_cap/videos/v_gone.mp4")
        == len(reasons) - 1
        == 6
    )
