"""The spec of a corpus layout: its splits, its reader, and how its pixels are prepared.

Each reader's module lists its specs in `SOURCES`; `pipelines.sources.registry` only collects them.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import Omission, Reject
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing, with_prompt
from pipelines.sources.reading.layout import SHARED, find_file
from pipelines.sources.reading.slicing import Slice, are_disjoint, parse_slice, read_slice

_FILE_STEM = re.compile(r"[A-Za-z0-9_.-]+")

Files = Callable[[str], tuple[tuple[str, ...], ...]]
"""Split -> its annotation files below the source's folder, each as a tuple of its possible names,
the published one first."""

Omissions = Callable[[Corpus, str], Iterable[Omission]]
"""(corpus, split) -> what lies in its folder, looks like data and is not read for the split."""

Units = Callable[[Corpus, str], Iterator[str]]
"""(corpus, split) -> names of the units that can be listed separately."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One corpus layout.

    Attributes:
      name: its name in configs.
      folder: its default folder below the data root.
      splits: its splits; empty if the files in its folder decide.
      read: (corpus, split) -> would-be records, lazily.
      antialias: whether images of training splits are filtered when made smaller.
      antialias_eval: whether images of other splits are filtered when made smaller.
      num_frames: default number of frames per video.
      frame_stride: default distance between frames, counted at 25 frames a second [frames].
      files: split -> its annotation files.
      units: (corpus, split) -> units that can be listed separately, such as archives; None if only
        the whole split can be listed.
      list_unit: (corpus, unit) -> would-be records of the unit, lazily.
      has_unique_ids: whether no two units share an id, so that a shard may be a group of units.
      unit_files: (corpus, unit) -> all files from which the unit is read; empty if they are not
        known before reading.
      omissions: (corpus, split) -> what looks like data in its folder, but is not read; beside the
        other possible names of an annotation file, which every source names.
      anywhere: whether its rows may name files anywhere below the data root.
      has_clips: whether its items may show clips, which PyAV and decord decode; where not, their
        versions are no part of a dataset's identity.
      publisher: place where its authors publish it; "" for layouts that many programs write.
      containing_split: split -> the split that contains it, as "test" contains "test_human"; mostly
        itself.
      benchmark: the benchmark that it reads; None if there is none.
    """

    name: str
    folder: str
    splits: tuple[str, ...]
    read: Callable[[Corpus, str], Iterator[Item | Reject]]
    antialias: bool
    antialias_eval: bool
    num_frames: int = 16
    frame_stride: int = 30
    files: Files = lambda split: ()
    units: Units | None = None
    list_unit: Callable[[Corpus, str], Listing] | None = None
    has_unique_ids: bool = False
    unit_files: Callable[[Corpus, str], list[Path]] | None = None
    omissions: Omissions = lambda corpus, split: ()
    anywhere: bool = False
    has_clips: bool = True
    publisher: str = ""
    containing_split: Callable[[str], str] = lambda split: split
    benchmark: Benchmark | None = None

    def units_of(self, corpus: Corpus, split: str) -> list[str]:
        """Returns the units that can be listed separately, in order; "" is the whole split."""
        slices = self._parse_split_slices(split)
        # Which records a part has depends on the ids of all, so its units cannot be listed one by
        # one.
        if self.units is None or any(part.start or part.stop for part in slices):
            return [""]
        units = [unit for part in slices for unit in self.units(corpus, part.split)]
        return units if all(units) else [""]

    def part_of(self, split: str, limit: int | None) -> tuple[str, Slice | None]:
        """Returns a split whose units are listed, and the part of their items that is taken.

        For a part of a split, or for the first `limit` records by the hashes of their ids, the
        units of the whole split are listed and the part is taken from them. Several parts, or a
        part with a limit, cannot be taken in this way: the split is returned as given, with None.
        """
        slices = self._parse_split_slices(split)
        is_part = [bool(part.start or part.stop) for part in slices]
        # A limit is a part as well: "train" with a limit of 100 is "train[:100]".
        if limit and not any(is_part):
            return split, Slice(split, stop=str(limit))
        if not limit and is_part == [True]:
            return slices[0].split, slices[0]
        return split, None

    def read_unit(self, corpus: Corpus, split: str, unit: str) -> Listing:
        """Yields the would-be records of one of `units_of`."""
        if not unit:
            return self.read_splits(corpus, split)
        assert self.list_unit is not None
        return self.list_unit(corpus, unit)

    def folders(self, path: str = "") -> list[str]:
        """Returns the folders below the data root that it may read; its own is `path`."""
        return [""] if self.anywhere else [path or self.folder, *SHARED]

    def files_of_unit(self, corpus: Corpus, unit: str) -> list[Path]:
        """Returns all files from which a unit is read; empty if unknown before reading."""
        return self.unit_files(corpus, unit) if unit and self.unit_files else []

    def omissions_of(self, corpus: Corpus, split: str) -> list[Omission]:
        """Returns what lies in the folder, looks like data and is not read for `split`.

        What is passed over inside the files that are read is in `corpus.omissions()`.
        """
        found: set[Omission] = set()
        for part in self._parse_split_slices(split):
            for names in self.files(part.split):
                found.update(_other_names(corpus, names))
            found.update(self.omissions(corpus, part.split))
        return sorted(found)

    def read_splits(self, corpus: Corpus, split: str) -> Iterator[Item | Reject]:
        """Yields the would-be records of `split`, for example "train+val" or "val[:5%]".

        Raises:
          FileNotFoundError: if a file is missing, naming it and where it is published.
        """
        try:
            for part in self._parse_split_slices(split):
                yield from read_slice(part, lambda part=part: self.read(corpus, part.split))
        except FileNotFoundError as error:
            if not self.publisher:
                raise
            raise FileNotFoundError(
                f"{str(error).rstrip('.')}; its authors publish it at {self.publisher}."
            ) from error

    def parse(self, split: str) -> list[str]:
        """Returns the splits of "a+b[:5%]", without the bounds of slices.

        Raises:
          ValueError: if this source has no such split.
        """
        return [part.split for part in self._parse_split_slices(split)]

    def shares(self, split: str, other: str) -> bool:
        """Returns whether two splits, such as "train+val[:5%]" and "val", may share records.

        Raises:
          ValueError: if this source lacks one of them.
        """
        # "val[:5%]" and "val[5%:]" are told apart by their bounds, "test" and "test_human" by which
        # of them contains the other.
        return any(
            not are_disjoint(a, b)
            if a.split == b.split
            else a.split == self.containing_split(b.split)
            or b.split == self.containing_split(a.split)
            for a in self._parse_split_slices(split)
            for b in self._parse_split_slices(other)
        )

    def antialias_of(self, split: str) -> bool:
        """Returns whether a split's images are filtered; "train+val" is a training split."""
        return self.antialias if split.startswith("train") else self.antialias_eval

    def _parse_split_slices(self, split: str) -> list[Slice]:
        # "train+val[:5%]" ─▶ (train, "", ""), (val, "", "5%"). A split that is named twice would
        # give records with equal ids.
        slices = [parse_slice(part) for part in split.split("+")]
        names = [part.split for part in slices]
        for name in names:
            exists = name in self.splits if self.splits else _FILE_STEM.fullmatch(name)
            if not exists or names.count(name) > 1:
                accepted = (
                    f"one of {', '.join(self.splits)}" if self.splits else "the name of a file"
                )
                raise ValueError(
                    f"split of {self.name} must be {accepted} "
                    f'(or several, each once, as "a+b"; a part as "a[:5%]"), got {split!r}.'
                )
        return slices


def with_other_prompt(spec: SourceSpec, prompt: str) -> SourceSpec:
    """Returns a benchmark's source whose questions are put in other words."""
    read, list_unit = spec.read, spec.list_unit

    def reworded(corpus: Corpus, split: str) -> Listing:
        return (with_prompt(entry, prompt) for entry in read(corpus, split))

    def reworded_unit(corpus: Corpus, unit: str) -> Listing:
        assert list_unit is not None
        return (with_prompt(entry, prompt) for entry in list_unit(corpus, unit))

    return dataclasses.replace(spec, read=reworded, list_unit=list_unit and reworded_unit)


def _other_names(corpus: Corpus, names: tuple[str, ...]) -> Iterator[Omission]:
    """Yields the files under the other possible names of an annotation file that is read."""
    paths = [path for name in names if (path := find_file(corpus.folder, name))]
    for path in paths[1:]:
        # A disk that ignores capitals has x.JSONL where it has x.jsonl.
        if path == paths[0] or (corpus.is_local and os.path.samefile(path, paths[0])):
            continue
        yield Omission(source=corpus.relative(path), reason=f"{paths[0].name} is read in its place")


def read_units(
    units: Units, list_unit: Callable[[Corpus, str], Listing]
) -> Callable[[Corpus, str], Listing]:
    """Returns the function that lists a split, unit after unit."""

    def read(corpus: Corpus, split: str) -> Listing:
        for unit in units(corpus, split):
            yield from list_unit(corpus, unit)

    return read
