"""MSVD-QA: questions about short YouTube clips.

    {train,val,test}_qa.json              id, video_id, question, answer
    youtube_mapping.txt                   "<youtube>_<start>_<end> vid<video_id>" a line
    YouTubeClips/<youtube>_<start>_<end>  .avi as published, or .mp4, .mkv, .webm

Published by its authors at github.com/xudejing/video-question-answering.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.benchmarks.registry import get
from pipelines.records.schema import Reject
from pipelines.sources.item import Corpus, Item

SPLITS = ("train", "val", "test")
PUBLISHER = "github.com/xudejing/video-question-answering"
_SUFFIXES = (".avi", ".mp4", ".mkv", ".webm")


def files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the annotation files of a split, each as the names it may have."""
    return (f"{split}_qa.json",), ("youtube_mapping.txt",)


def read(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per question."""
    file = corpus.folder / f"{split}_qa.json"
    rows = corpus.load_json(file)
    clips = _clips(corpus)
    if not isinstance(rows, list):
        raise ValueError(f"{file} must hold a list of rows, got a {type(rows).__name__}.")
    for number, row in enumerate(rows):
        try:
            video = f"vid{int(row['video_id'])}"
            yield Item(
                id=f"msvd_qa/{split}/{video}#{row['id']}",
                part="msvd_qa",
                media=(corpus.media(clips[video], video=True),),
                prefix=get("msvd_qa").prefix(row["question"]),
                suffixes=(str(row["answer"]),),
                task="msvd_qa",
                answers=(str(row["answer"]),),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield Reject(
                id=f"msvd_qa/{split}/{number}",
                stage="read",
                reason=f"malformed row or unmapped video: {type(error).__name__}: {error}",
                source=corpus.relative(file),
            )


def _clips(corpus: Corpus) -> dict[str, Path]:
    """Returns "vid<n>" -> the clip's file; one that is missing keeps its published name."""
    folder = corpus.folder / "YouTubeClips"
    present = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    clips = {}
    text = corpus.annotation(corpus.folder / "youtube_mapping.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, video = line.strip().rpartition(" ")
        if name:
            found = [name + s for s in _SUFFIXES if name + s in present]
            clips[video] = folder / (found[0] if found else f"{name}.avi")
    return clips
