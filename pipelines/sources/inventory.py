"""The raw files that a dataset is made from, by digest."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pipelines.sources.corpus import Corpus, Spool
from pipelines.sources.item import Item
from pipelines.sources.registry import get


class RawFile(NamedTuple):
    """One file a dataset is made from: its path below the data root, digest [hex], size [bytes]."""

    path: str
    sha256: str
    size: int


def inventory(
    source: str, split: str, data_root: str | os.PathLike[str], *, path: str | None = None
) -> list[RawFile]:
    """Returns every file that preparing `split` of `source` would read, sorted by path.

    Media that annotations name but nobody has are left out: their absence shows in the rejects.

    Args:
      source: name of the corpus layout.
      split: such as "train", or "train+val".
      data_root: the folder that holds the source's own.
      path: the source's folder below it; None takes the usual one.

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if an annotation file is missing, naming it.
    """
    spec = get(source)
    corpus = Corpus(data_root, path or spec.folder, Spool(None))
    paths = {
        media.path
        for found in spec.read_splits(corpus, split)
        if isinstance(found, Item)
        for media in found.media
    }
    present = sorted(
        p for p in paths | corpus.annotations if os.path.isfile(os.path.join(data_root, p))
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda p: _digest(Path(data_root), p), present))


def _digest(data_root: Path, path: str) -> RawFile:
    with (data_root / path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return RawFile(path=path, sha256=digest, size=file.tell())
