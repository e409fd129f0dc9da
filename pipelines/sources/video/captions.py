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

from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import (
    group_rows,
    load_dict,
    load_list,
    read_file,
    read_rows,
)
from pipelines.sources.video.benchmark import video_benchmark, video_recipe
from pipelines.sources.video.files import SPLITS, msrvtt_folder, video_finder

ACTIVITYNET_CAP = video_benchmark(
    "activitynet_cap",
    "ActivityNet-CAP",
    video_recipe(1e-5, 3e-6, 1, decay=True, freeze_vision="all"),
    text_len=64,
    stride=30,
    num_train=44_775,
    size=17_031,
)

MSRVTT_CAP = video_benchmark(
    "msrvtt_cap",
    "MSRVTT-Cap",
    video_recipe(1e-5, 1e-5, 20, freeze_vision="all"),
    text_len=32,
    stride=9,
    num_train=4_965,
    size=2_990,
)

VATEX_CAP = video_benchmark(
    "vatex_cap",
    "VATEX",
    video_recipe(3e-6, 3e-6, 10, decay=True),
    text_len=64,
    stride=7,
    num_train=24_850,
    size=3_000,
    split="val",
    suite="other",
)

_ACTIVITYNET = {"train": "train", "val": "val_1", "test": "val_2"}
_MSRVTT = {"train": "train", "val": "validate", "test": "test"}
_VATEX = {
    "train": "training_v1.0",
    "val": "validation_v1.0",
    "test": "public_test_english_v1.1",
}


def _read_activitynet_captions(corpus: Corpus, split: str, file: Path) -> Listing:
    find = video_finder(image_folder(corpus, "videos", "activitynet"))

    def item_of_row(row: tuple[str, Mapping, int]) -> Item:
        video, segments, number = row
        # One row per segment of a video: its number finds sentence and times in the video's lists.
        sentences, spans = texts_under(segments, "sentences"), segments["timestamps"]
        if len(sentences) != len(spans):
            raise BadInput(f"{video} has {len(sentences)} sentences, {len(spans)} timestamps")
        start, end = map(float, spans[number])
        if not 0 <= start <= end < float("inf"):
            raise BadInput(f"timestamps of {video} must be 0 <= start <= end, got {spans[number]}")
        if not (sentence := sentences[number].strip()):
            raise BadInput(f"sentence {number} of {video} is empty")
        return question_item(
            ACTIVITYNET_CAP,
            split,
            # Frames come from this part of the file only.
            corpus.media(find(video, video.removeprefix("v_")), video=True, start=start, end=end),
            number,
            "",
            [sentence],
            # The times are part of the id: a video has several segments.
            image=f"{video}[{start}-{end}]",
            meta={"video_id": video, "start": start, "end": end},
        )

    # {"v_a": {"timestamps": [[0, 4], [4, 9]], "sentences": [s, t]}}  ─▶  (v_a, …, 0), (v_a, …, 1)
    videos = load_dict(corpus, file)
    rows = (
        (video, segments, number)
        for video, segments in videos.items()
        for number in range(_num_segments(segments))
    )
    yield from read_rows(corpus, file, f"activitynet_cap/{split}", rows, item_of_row)


def _num_segments(segments: Any) -> int:
    """Returns the number of rows of a video; a malformed or empty one has one row, a reject."""
    sentences = segments.get("sentences") if isinstance(segments, Mapping) else None
    return max(1, len(sentences)) if isinstance(sentences, list) else 1


def _read_msrvtt_captions(corpus: Corpus, split: str, file: Path) -> Listing:
    find = video_finder(msrvtt_folder(corpus, split))
    listed = load_list(corpus, file, "sentences")
    captions_of = {group[0].get("video_id"): group for group in group_rows(listed, "video_id")}

    def item_of_row(row: dict) -> Item | None:
        if row["split"] != _MSRVTT[split]:
            return None
        video = text_under(row, "video_id")
        captions = [text_under(sentence, "caption") for sentence in captions_of.get(video, ())]
        return _caption_item(corpus, MSRVTT_CAP, split, video, find(video), captions)

    yield from read_file(corpus, file, f"msrvtt_cap/{split}", item_of_row, key="videos")


def _read_vatex(corpus: Corpus, split: str, file: Path) -> Listing:
    find = video_finder(image_folder(corpus, "videos", "vatex"))

    def item_of_row(row: dict) -> Item:
        video = text_under(row, "videoID")
        return _caption_item(
            corpus, VATEX_CAP, split, video, find(video), texts_under(row, "enCap")
        )

    yield from read_file(corpus, file, f"vatex_cap/{split}", item_of_row)


def _caption_item(
    corpus: Corpus, benchmark: Benchmark, split: str, video: str, path: Path, captions: list[str]
) -> Item:
    """Returns the one would-be record of a video."""
    if not captions:
        raise BadInput(f"{video} has no caption")
    media = corpus.media(path, video=True)
    meta = {"video_id": video}
    return question_item(benchmark, split, media, 0, "", captions, image=video, meta=meta)


SOURCES = (
    published_source(
        ACTIVITYNET_CAP,
        splits=SPLITS,
        files=lambda split: (
            (f"{_ACTIVITYNET[split]}.json", f"captions/{_ACTIVITYNET[split]}.json"),
        ),
        read=_read_activitynet_captions,
        publisher="cs.stanford.edu/people/ranjaykrishna/densevid",
    ),
    published_source(
        MSRVTT_CAP,
        splits=SPLITS,
        files=lambda split: (
            (f"{'test' if split == 'test' else 'train_val'}_videodatainfo.json",),
        ),
        read=_read_msrvtt_captions,
        publisher="ms-multimedia-challenge.com/2017/dataset",
    ),
    published_source(
        VATEX_CAP,
        splits=SPLITS,
        files=lambda split: ((f"vatex_{_VATEX[split]}.json",),),
        read=_read_vatex,
        publisher="eric-xw.github.io/vatex-website/download.html",
    ),
)
