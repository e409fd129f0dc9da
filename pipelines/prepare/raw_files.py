"""The raw files of a dataset, with digests: workers list them, and only new ones are read."""

import heapq
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from infra.store.raw_files import RawDigestCache
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.file_names import name_files, names_of, receipt_of
from pipelines.prepare.job import Desk, Job, grouped, load, place_of
from pipelines.sources.corpus import Spool
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import get

_CHUNK = 1000
"""Number of files whose digests are looked up together, and read where unknown."""


class RawFile(NamedTuple):
    """One file that a dataset is made from.

    Attributes:
      path: path below the data root.
      digest: sha256 [hex]; in a bucket, the object's generation and crc32c.
      size: size of the file [bytes].
    """

    path: str
    digest: str
    size: int


def raw_files(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    work: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    known: RawDigestCache | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[RawFile]:
    """Yields every file that preparing `split` of `source` would read, sorted by path.

    Media that annotations name but that do not exist are left out; preparing rejects their items.
    Memory grows neither with the items nor with the files.

    Args:
      config: settings of the runner, its workers and time limits.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      work: a folder that all workers reach, for the names they list.
      path: the source's folder below `data_root`; None takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.corpus.FEATURES`.
      known: digests of files read before; None reads every file on a disk.
      on_progress: called with (files done, all files).

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if an annotation file is missing, naming it.
      RuntimeError: if workers were lost.
    """
    spec = get(source)
    spec.parse(split)
    job = Job(
        config=config,
        source=source,
        split=split,
        data_root=place_of("data_root", data_root),
        path=path or spec.folder,
        features=features or {},
        work=work,
    )
    desk = Desk(job)
    corpus = desk.corpus(Spool())
    units = list(enumerate(grouped(spec.units_of(corpus, split))))
    missing = [one for one in units if desk.receipt(receipt_of(one[0])) is None]
    if all(spec.files_of_unit(corpus, unit) for _, group in missing for unit in group):
        for number, group in missing:  # The names are known without reading, so no worker starts.
            name_files(desk, number, group)
    else:
        from pipelines.prepare.graph import run_naming  # Beam takes two seconds to import.

        run_naming(job, missing)
    counts = [load(desk.files.read(receipt_of(number))) for number, _ in units]
    names = heapq.merge(*(desk.lines(names_of(number)) for number, _ in units))
    unique = (name for name, _ in itertools.groupby(json.loads(line) for line in names))
    known, done, total = known or RawDigestCache(), 0, sum(counts)
    while chunk := list(itertools.islice(unique, _CHUNK)):
        yield from _digests(desk.data_root, chunk, known)
        done += len(chunk)
        on_progress(done, max(done, total))


def _digests(root: Path, names: Sequence[str], known: RawDigestCache) -> Iterator[RawFile]:
    if not isinstance(root, Path):
        path: Any
        for name, path in ((name, root / name) for name in names):
            if path.is_file():
                state = path.state()
                yield RawFile(name, f"{state.version[0]}-{state.crc32c}", state.size)
        return
    present = [name for name in names if os.path.isfile(root / name)]
    digests = known.digests([root / name for name in present])
    for name, digest in zip(present, digests, strict=True):
        yield RawFile(name, *digest)
