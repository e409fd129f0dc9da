"""The raw files that a dataset is made from, by digest."""

import os
from pathlib import Path
from typing import NamedTuple

from infra.store.raw_files import RawFiles
from pipelines.sources.corpus import Corpus, Spool
from pipelines.sources.item import Item
from pipelines.sources.registry import get


class RawFile(NamedTuple):
    """One file a dataset is made from: its path below the data root, digest [hex], size [bytes]."""

    path: str
    sha256: str
    size: int


def inventory(
    source: str,
    split: str,
    data_root: str | os.PathLike[str],
    *,
    path: str | None = None,
    known: RawFiles | None = None,
) -> list[RawFile]:
    """Returns every file that preparing `split` of `source` would read, sorted by path.

    Media that annotations name but nobody has are left out: their absence shows in the rejects.

    Args:
      source: name of the corpus layout.
      split: such as "train", or "train+val".
      data_root: the folder that holds the source's own.
      path: the source's folder below it; None takes the usual one.
      known: digests of earlier inventories; None reads every file.

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
    digests = (known or RawFiles()).digests([Path(data_root) / path for path in present])
    return [RawFile(path, *digest) for path, digest in zip(present, digests, strict=True)]
