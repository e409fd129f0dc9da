"""Captions of videos: ActivityNet Captions, MSR-VTT, VATEX.

activitynet_cap  train.json, val_1.json, val_2.json    "v_<youtube>": timestamps[], sentences[]
                 videos/v_<youtube>.mp4                in this folder, or in activitynet/
msrvtt_cap       train_val_videodatainfo.json          videos[]: video_id, split
                 test_videodatainfo.json               sentences[]: video_id, caption
                 {TrainValVideo,TestVideo}/<video_id>.mp4     in this folder, or in msrvtt/
vatex_cap        vatex_training_v1.0.json, vatex_validation_v1.0.json
                 vatex_public_test_english_v1.1.json   videoID, enCap[]
                 videos/<videoID>.mp4

Videos may also be .mkv, .webm or .avi. ActivityNet's and VATEX's authors publish the names of
videos but no files; the folder of the files, and that ActivityNet's may lack the "v_", is our
choice. VATEX's files are cut clips: an id ends in the seconds at which it is cut. VATEX's Chinese
captions are left out.

An example of ActivityNet is a segment, with its times in seconds and its one caption; spaces around
captions are dropped. val_1 and val_2 annotate the same videos, by two people. val_1 is validation
and val_2 test, as PaliGemma's sizes show, so training on validation sees test's videos.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.benchmarks.video import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    grouped,
    image_folder,
    load_dict,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published
from pipelines.sources.video.files import SPLITS, msrvtt_folder, video_finder

_ACTIVITYNET = {"train": "train", "val": "val_1", "test": "val_2"}
_MSRVTT = {"train": "train", "val": "validate", "test": "test"}
_VATEX = {
    "train": "training_v1.0",
    "val": "validation_v1.0",
    "test": "public_test_english_v1.1",
}


def _read_activitynet(corpus: Corpus, split: str, file: Path) -> Found:
    find = video_finder(image_folder(corpus, "videos", "activitynet"))

    def make(row: tuple[str, Mapping, int]) -> Item:
        video, told, number = row
        sentences, spans = texts_of(told, "sentences"), told["timestamps"]
        if len(sentences) != len(spans):
            raise BadInput(f"{video} has {len(sentences)} sentences, {len(spans)} timestamps")
        start, end = map(float, spans[number])
        if not 0 <= start <= end < float("inf"):
            raise BadInput(f"timestamps of {video} must be 0 <= start <= end, got {spans[number]}")
        if not (said := sentences[number].strip()):
            raise BadInput(f"sentence {number} of {video} is empty")
        return question(
            BENCHMARKS["activitynet_cap"],
            split,
            corpus.media(find(video, video.removeprefix("v_")), video=True, start=start, end=end),
            number,
            "",
            [said],
            image=f"{video}[{start}-{end}]",
            meta={"video_id": video, "start": start, "end": end},
        )

    videos = load_dict(corpus, file)
    rows = ((video, told, n) for video, told in videos.items() for n in range(_num_segments(told)))
    yield from read_rows(corpus, file, f"activitynet_cap/{split}", rows, make)


def _num_segments(told: Any) -> int:
    """Returns the number of rows of a video; a malformed or empty one has one row, a reject."""
    sentences = told.get("sentences") if isinstance(told, Mapping) else None
    return max(1, len(sentences)) if isinstance(sentences, list) else 1


def _read_msrvtt(corpus: Corpus, split: str, file: Path) -> Found:
    find = video_finder(msrvtt_folder(corpus, split))
    listed = load_list(corpus, file, "sentences")
    captions = {group[0].get("video_id"): group for group in grouped(listed, "video_id")}

    def make(row: dict) -> Item | None:
        if row["split"] != _MSRVTT[split]:
            return None
        video = text_of(row, "video_id")
        said = [text_of(one, "caption") for one in captions.get(video, ())]
        return _captioned(corpus, "msrvtt_cap", split, video, find(video), said)

    rows = load_list(corpus, file, "videos")
    yield from read_rows(corpus, file, f"msrvtt_cap/{split}", rows, make)


def _read_vatex(corpus: Corpus, split: str, file: Path) -> Found:
    find = video_finder(image_folder(corpus, "videos", "vatex"))

    def make(row: dict) -> Item:
        video = text_of(row, "videoID")
        return _captioned(corpus, "vatex_cap", split, video, find(video), texts_of(row, "enCap"))

    rows = load_list(corpus, file)
    yield from read_rows(corpus, file, f"vatex_cap/{split}", rows, make)


def _captioned(
    corpus: Corpus, name: str, split: str, video: str, path: Path, said: list[str]
) -> Item:
    """Returns the one would-be record of a video."""
    if not said:
        raise BadInput(f"{video} has no caption")
    media = corpus.media(path, video=True)
    return question(
        BENCHMARKS[name], split, media, 0, "", said, image=video, meta={"video_id": video}
    )


SOURCES = (
    published(
        BENCHMARKS["activitynet_cap"],
        splits=SPLITS,
        files=lambda split: (
            (f"{_ACTIVITYNET[split]}.json", f"captions/{_ACTIVITYNET[split]}.json"),
        ),
        read=_read_activitynet,
        publisher="cs.stanford.edu/people/ranjaykrishna/densevid",
    ),
    published(
        BENCHMARKS["msrvtt_cap"],
        splits=SPLITS,
        files=lambda split: (
            (f"{'test' if split == 'test' else 'train_val'}_videodatainfo.json",),
        ),
        read=_read_msrvtt,
        publisher="ms-multimedia-challenge.com/2017/dataset",
    ),
    published(
        BENCHMARKS["vatex_cap"],
        splits=SPLITS,
        files=lambda split: ((f"vatex_{_VATEX[split]}.json",),),
        read=_read_vatex,
        publisher="eric-xw.github.io/vatex-website/download.html",
    ),
)
