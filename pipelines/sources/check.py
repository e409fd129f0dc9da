"""What raw files hold before anything is prepared: a corpus, or the rows of all benchmarks."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.store.raw_path import raw_path
from pipelines.benchmarks.registry import BENCHMARKS, Benchmark
from pipelines.records.holdings import Holdings, PartHoldings, kinds_of
from pipelines.records.schema import Reject
from pipelines.sources.corpus import Corpus, Spool
from pipelines.sources.layout import look_up
from pipelines.sources.media_reader import MediaReader
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import SOURCES, get
from pipelines.sources.spec import SourceSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """One annotation file: its published path below the data root, and the one found, or ""."""

    path: str
    found: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What is there of one row of the tables.

    Attributes:
      title: of the row; "training" for a benchmark's training split.
      benchmark: its name.
      suite: "main", "appendix", "other"; "" for training.
      split: of the benchmark's reader.
      files: the annotation files it needs; none where nothing reads the benchmark.
      publisher: where its authors publish them.
      published: number of examples, as published; None if not known.
      num: examples in the files; None if they were not read.
      num_images: different images or videos they name.
      num_present: of which are there.
      num_rejected: malformed rows.
      problem: why the files could not be read; "" if they could, or are missing.
    """

    title: str
    benchmark: str
    suite: str
    split: str
    files: tuple[Expected, ...]
    publisher: str
    published: int | None
    num: int | None = None
    num_images: int = 0
    num_present: int = 0
    num_rejected: int = 0
    problem: str = ""

    @property
    def found(self) -> bool:
        """Whether every annotation file is there."""
        return bool(self.files) and all(file.found for file in self.files)

    @property
    def as_published(self) -> bool | None:
        """Whether the count is the published one, of examples or of images; None if unknown."""
        if self.num is None or self.published is None:
            return None
        return self.published in (self.num, self.num_images)


def check_benchmarks(
    data_root: str | os.PathLike[str] | None, *, training: bool = False
) -> Iterator[Checked]:
    """Yields a result per row of the benchmarks, the main suite first, then per training split.

    Args:
      data_root: the folder that holds the benchmarks' own, or gs://bucket/prefix; None only tells
        what they need.
      training: whether training splits are looked for, too; some take minutes to count.

    Raises:
      FileNotFoundError: if there is no such folder.
    """
    root = None if data_root is None else raw_path(data_root)
    if root is not None and not root.is_dir():
        raise FileNotFoundError(f"data_root must be a folder, got {root}: there is none.")
    suites = ("main", "appendix", "other")
    rows = [(b, row) for b in BENCHMARKS.values() for row in b.rows]
    for benchmark, row in sorted(rows, key=lambda pair: suites.index(pair[1].suite)):
        yield _check(root, benchmark, row.titles[0], row.suite, row.splits, row.size)
    for benchmark in BENCHMARKS.values() if training else ():
        if benchmark.final_split:
            size = benchmark.num_train
            yield _check(root, benchmark, "training", "", benchmark.final_split, size)


def check_corpus(
    data_root: str | os.PathLike[str],
    source: str | OwnSource,
    split: str,
    *,
    path: str = "",
    features: Mapping[str, str] | None = None,
) -> Holdings:
    """Returns the counts of items that preparing a corpus would start from; no picture is opened.

    Args:
      data_root: the folder that holds the source's own.
      source: name of the corpus layout, or one of the user's own.
      split: such as "train", or "train+val".
      path: the source's folder below `data_root`; "" takes the usual one.
      features: which feature of an Example holds what; see `corpus.FEATURES`.

    Raises:
      ValueError: if the source, the split or an annotation file is wrong.
      FileNotFoundError: if the corpus or an annotation file is missing, naming it.
    """
    spec, root = get(source), raw_path(data_root)
    read = MediaReader(root)
    parts: dict[str, PartHoldings] = {}
    rejects = []
    corpus = Corpus(root, path or spec.folder, Spool(), features=features)
    for one in spec.read_splits(corpus, split):
        if isinstance(one, Reject):
            rejects.append(one)
        elif absent := [m for m in one.media if not read.has(m)]:
            where = absent[0].source
            rejects.append(Reject(id=one.id, stage="decode", reason="missing file", source=where))
        else:
            part = parts.setdefault(one.part, PartHoldings())
            part.add(images=len(one.media), suffixes=len(one.suffixes), lang=one.lang)
    return Holdings(name=f"{spec.name}/{split}", parts=parts, rejects=kinds_of(rejects))


def _check(
    root: Path | None,
    benchmark: Benchmark,
    title: str,
    suite: str,
    split: str,
    published: int | None,
) -> Checked:
    spec = SOURCES.get(benchmark.name)
    checked = Checked(
        title=title,
        benchmark=benchmark.name,
        suite=suite,
        split=split,
        files=_files(root, spec, split) if spec else (),
        publisher=spec.publisher if spec else "",
        published=published,
    )
    if root is None or spec is None or not checked.found:
        return checked
    return _count(root, spec, checked)


def _files(root: Path | None, spec: SourceSpec, split: str) -> tuple[Expected, ...]:
    wanted = dict.fromkeys(names for one in spec.parse(split) for names in spec.files(one))
    expected = []
    for names in wanted:
        path = look_up(root / spec.folder, *names) if root is not None else None
        shown = os.path.normpath(os.path.join(spec.folder, names[0]))
        found = os.path.relpath(path, root) if path and root is not None else ""
        expected.append(Expected(path=shown, found=found))
    return tuple(expected)


def _count(root: Path, spec: SourceSpec, checked: Checked) -> Checked:
    num = num_rejected = 0
    media = set()
    try:
        corpus = Corpus(root, spec.folder, Spool())
        for one in spec.read_splits(corpus, checked.split):
            if isinstance(one, Reject):
                num_rejected += 1
                continue
            num += 1
            media.update((m.path, m.member) for m in one.media)
    except (OSError, ValueError) as error:
        return dataclasses.replace(checked, problem=" ".join(str(error).split()))
    return dataclasses.replace(
        checked,
        num=num,
        num_images=len(media),
        num_present=sum((root / path).is_file() for path, _ in media),
        num_rejected=num_rejected,
    )
