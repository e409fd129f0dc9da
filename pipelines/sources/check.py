"""Checks which of the benchmarks' raw files are there, and counts what they list."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from infra.store.raw_path import raw_path
from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import Reject
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.layout import find_file
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.registry import BENCHMARKS, SOURCES


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """One annotation file: its published path below the data root, and the found path or ""."""

    path: str
    found: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawFileCheck:
    """The raw files found for one row of the paper's tables, and their counts.

    Attributes:
      title: title of the row; "training" for a benchmark's training split.
      benchmark: name of the benchmark.
      suite: "main", "appendix", "other"; "" for training.
      split: split of the benchmark's reader.
      files: annotation files that the split needs; empty if no source reads the benchmark.
      publisher: place where the authors publish them.
      published: published number of examples; None if it is unknown.
      num: number of examples in the files; None if they were not read.
      num_images: number of distinct images or videos that the examples name.
      num_present: number of these that exist.
      num_rejected: number of malformed rows.
      problem: reason that the files could not be read; "" if there is none or they are missing.
    """

    title: str
    benchmark: str
    suite: str
    split: str
    files: tuple[AnnotationFile, ...]
    publisher: str
    published: int | None
    num: int | None = None
    num_images: int = 0
    num_present: int = 0
    num_rejected: int = 0
    problem: str = ""

    @property
    def all_present(self) -> bool:
        """Whether every annotation file is there."""
        return bool(self.files) and all(file.found for file in self.files)

    @property
    def as_published(self) -> bool | None:
        """Whether the number of examples or images is the published one; None if unknown."""
        if self.num is None or self.published is None:
            return None
        return self.published in (self.num, self.num_images)


def check_benchmarks(
    data_root: str | os.PathLike[str] | None, *, training: bool = False
) -> Iterator[RawFileCheck]:
    """Yields a result per row of the benchmarks, the main suite first, then per training split.

    Args:
      data_root: folder or gs://bucket/prefix that holds the benchmarks' folders; with None, results
        only list the files that are needed.
      training: whether training splits are checked, too; some take minutes to count.

    Raises:
      FileNotFoundError: if there is no such folder.
    """
    root = None if data_root is None else raw_path(data_root)
    if root is not None and not root.is_dir():
        raise FileNotFoundError(f"data_root must be a folder, got {root}: there is none.")
    suites = ("main", "appendix", "other")
    rows = [(b, row) for b in BENCHMARKS.values() for row in b.rows]
    for benchmark, row in sorted(rows, key=lambda pair: suites.index(pair[1].suite)):
        yield _check_row(root, benchmark, row.titles[0], row.suite, row.splits, row.size)
    for benchmark in BENCHMARKS.values() if training else ():
        if benchmark.final_split:
            size = benchmark.num_train
            yield _check_row(root, benchmark, "training", "", benchmark.final_split, size)


def _check_row(
    root: Path | None,
    benchmark: Benchmark,
    title: str,
    suite: str,
    split: str,
    published: int | None,
) -> RawFileCheck:
    # Counting reads every annotation, so it is done only where all files are present.
    spec = SOURCES.get(benchmark.name)
    checked = RawFileCheck(
        title=title,
        benchmark=benchmark.name,
        suite=suite,
        split=split,
        files=_annotation_files(root, spec, split) if spec else (),
        publisher=spec.publisher if spec else "",
        published=published,
    )
    if root is None or spec is None or not checked.all_present:
        return checked
    return _count_examples(root, spec, checked)


def _annotation_files(
    root: Path | None, spec: SourceSpec, split: str
) -> tuple[AnnotationFile, ...]:
    alternatives = dict.fromkeys(
        names for split_name in spec.parse(split) for names in spec.files(split_name)
    )
    expected = []
    for names in alternatives:
        path = find_file(root / spec.folder, *names) if root is not None else None
        published_path = os.path.normpath(os.path.join(spec.folder, names[0]))
        present_path = os.path.relpath(path, root) if path and root is not None else ""
        expected.append(AnnotationFile(path=published_path, found=present_path))
    return tuple(expected)


def _count_examples(root: Path, spec: SourceSpec, checked: RawFileCheck) -> RawFileCheck:
    num = num_rejected = 0
    media = set()
    # What cannot be read is a finding about this row; the rows after it are checked all the same.
    try:
        corpus = Corpus(root, spec.folder, UnpackedMedia())
        for item in spec.read_splits(corpus, checked.split):
            if isinstance(item, Reject):
                num_rejected += 1
                continue
            num += 1
            # By file and member: pictures of an archive or a table share the file.
            media.update((m.path, m.member) for m in item.media)
    except (OSError, ValueError) as error:
        return dataclasses.replace(checked, problem=" ".join(str(error).split()))
    return dataclasses.replace(
        checked,
        num=num,
        num_images=len(media),
        num_present=sum((root / path).is_file() for path, _ in media),
        num_rejected=num_rejected,
    )
