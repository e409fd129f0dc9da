"""The raw files of a dataset, by digest; they stay where they are.

Files:
  files.txt: a line per file: digest, size, path
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.files import NOTES
from flows.steps.kinds.streamed import stream_progress
from flows.steps.user_code import reader_of, with_user_code
from infra.progress import Progress
from infra.store.digest import NOT_IDENTITY
from infra.store.raw_files import RawDigestCache
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.own_source import OwnSource

MEMORY = "digests.sqlite"
"""File in the store's cache `raw_files`, with the digests of files that were read before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawFilesSpec:
    """The files of one split of a source.

    Attributes:
      reader, path, split, features: as in `DatasetSpec`.
      state: digest of the names, sizes and times of all files in its folders; while it stays the
        same, no file is read again. The artifact holds the files' own digests, and only these count
        for a dataset.
      prepare: settings that say where workers run.
    """

    reader: str | OwnSource
    path: str
    split: str
    state: str
    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prepare: PrepareConfig = dataclasses.field(default=PrepareConfig(), metadata=NOT_IDENTITY)


def make(work: StepContext) -> Iterator[Progress]:
    """Notes the files of a `RawFilesSpec` by digest."""
    spec: RawFilesSpec = work.config
    assert work.location is not None
    count, size = yield from stream_progress(lambda report: _write_digests(work, spec, report))
    work.counts.update(files=count, bytes=size)


def _write_digests(
    work: StepContext, spec: RawFilesSpec, report: Callable[..., None]
) -> tuple[int, int]:
    from pipelines.prepare.raw_files import list_raw_files

    # A line per file, as `sha256sum` writes it, with the size in between:
    #
    #   5f1c…  1048576  chartqa/val/1.png
    #
    # A file whose size, time and inode did not change is not read again: `known` has its digest.
    count = total = 0
    entries = list_raw_files(
        spec.prepare,
        source=with_user_code(spec.reader),
        split=spec.split,
        data_root=work.location or "",
        path=spec.path or None,
        features=spec.features,
        work=work.shared,
        digest_cache=RawDigestCache(work.cache("raw_files") / MEMORY),
        on_progress=report,
    )
    with (work.out / NOTES).open("w", encoding="utf-8", newline="\n") as notes:
        for path, digest, size in entries:
            print(f"{digest}  {size}  {path}", file=notes)
            count, total = count + 1, total + size
    return count, total


def _raw_files_reader_module(spec: Mapping[str, Any]) -> tuple[str, ...]:
    from pipelines.sources.registry import reader_module

    return (reader_module(reader_of(spec)),)


RAW_FILES = Kind(
    name="raw_files",
    make=make,
    spec=RawFilesSpec,
    # The registry knows every reader, but one of them lists a split: `also` adds that one.
    stop=("pipelines.sources.registry",),
    also=_raw_files_reader_module,
    functions=lambda spec: [reader_of(spec)],
    file_field="state",
    can_be_touched=True,
)
