"""Files of videos, found by name: authors publish the names, people keep other containers."""

from collections.abc import Callable
from pathlib import Path

from pipelines.sources.corpus import Corpus
from pipelines.sources.layout import image_folder

SPLITS = ("train", "val", "test")
SUFFIXES = (".mp4", ".mkv", ".webm", ".avi")


def video_finder(folder: Path, published: str = SUFFIXES[0]) -> Callable[..., Path]:
    """Returns a function: names without suffix -> the file of the first that is in a folder.

    Args:
      folder: looked into once; it may be missing.
      published: suffix that the authors' files have. Where there is none of any, the path is that
        of the first name with this one, to be told as missing when it is read.
    """
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def find(*names: str) -> Path:
        files = [name + suffix for name in names for suffix in (published, *SUFFIXES)]
        return folder / next((file for file in files if file in present), files[0])

    return find


def msrvtt_folder(corpus: Corpus, split: str) -> Path:
    """Returns where the videos of a split of MSR-VTT lie."""
    return image_folder(corpus, "TestVideo" if split == "test" else "TrainValVideo", "msrvtt")
