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
from pipelines.prepare.file_names import names_file, names_receipt, note_file_names
from pipelines.prepare.job import PrepareJob, WorkFolder, group_units, parse_receipt, resolve_folder
from pipelines.prepare.worker_pool import local_workers
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import UnpackedMedia
from pipelines.sources.registry import source_spec

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


def list_raw_files(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    work: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    digest_cache: RawDigestCache | None = None,
    on_progress: Callable[[int, int], None] = lambda num_done, total: None,
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
      features: field -> feature of an Example; see `pipelines.sources.reading.corpus.FEATURES`.
      digest_cache: digests of files read before; None reads every file on a disk.
      on_progress: called with (files done, all files).

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if an annotation file is missing, naming it.
      RuntimeError: if workers were lost.
    """
    spec = source_spec(source)
    spec.parse(split)
    job = PrepareJob(
        config=config,
        source=source,
        split=split,
        data_root=resolve_folder("data_root", data_root),
        path=path or spec.folder,
        features=features or {},
        work=work,
    )
    work_folder = WorkFolder(job)
    corpus = work_folder.corpus(UnpackedMedia())
    # Workers note names in sorted files; merging these and reading digests a thousand names at a
    # time keeps memory flat however many files there are.
    units = list(enumerate(group_units(spec.units_of(corpus, split))))
    missing = [entry for entry in units if work_folder.receipt(names_receipt(entry[0])) is None]
    # Archives name themselves; a list of annotations has to be read to know its pictures.
    if all(spec.files_of_unit(corpus, unit) for _, group in missing for unit in group):
        for number, group in missing:  # The names are known without reading, so no worker starts.
            note_file_names(work_folder, number, group)
    else:
        with local_workers(job):
            from pipelines.prepare.graph import run_naming_pipeline  # Imports Beam.

            run_naming_pipeline(job, missing)
    counts = [parse_receipt(work_folder.files.read(names_receipt(number))) for number, _ in units]
    names = heapq.merge(*(work_folder.lines(names_file(number)) for number, _ in units))
    unique = (name for name, _ in itertools.groupby(json.loads(line) for line in names))
    digest_cache, num_done, total = digest_cache or RawDigestCache(), 0, sum(counts)
    while chunk := list(itertools.islice(unique, _CHUNK)):
        yield from _digest_files(work_folder.data_root, chunk, digest_cache)
        num_done += len(chunk)
        on_progress(num_done, max(num_done, total))


def _digest_files(
    root: Path, names: Sequence[str], digest_cache: RawDigestCache
) -> Iterator[RawFile]:
    if not isinstance(root, Path):
        path: Any
        for name, path in ((name, root / name) for name in names):
            if path.is_file():
                state = path.state()
                yield RawFile(name, f"{state.version[0]}-{state.crc32c}", state.size)
        return
    present = [name for name in names if os.path.isfile(root / name)]
    digests = digest_cache.digests([root / name for name in present])
    for name, digest in zip(present, digests, strict=True):
        yield RawFile(name, *digest)
