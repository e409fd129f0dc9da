"""Finds video files by name, as many people store other containers than the published ones."""

from collections.abc import Callable
from pathlib import Path

from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.layout import image_folder

SPLITS = ("train", "val", "test")
SUFFIXES = (".mp4", ".mkv", ".webm", ".avi")


def video_finder(folder: Path, published: str = SUFFIXES[0]) -> Callable[..., Path]:
    """Returns a function from names without suffix to the first file in a folder with such a name.

    Args:
      folder: the folder, which is listed once and may be missing.
      published: suffix of the authors' files. If no file exists, the function returns the first
        name with this suffix, which is an error when it is read.
    """
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def find(*names: str) -> Path:
        files = [name + suffix for name in names for suffix in (published, *SUFFIXES)]
        return folder / next((file for file in files if file in present), files[0])

    return find


def msrvtt_folder(corpus: Corpus, split: str) -> Path:
    """Returns the folder of the videos of a split of MSR-VTT."""
    return image_folder(corpus, "TestVideo" if split == "test" else "TrainValVideo", "msrvtt")
