"""Licences of records: who holds them, and how many records of a dataset have which.

Beside a shard whose records state a licence lies a small file that says which record has which, so
that records can be counted by licence without reading them:

    caption-00000-of-00002.licences   {"licences": [{"licence": "CC0-1.0", …}, {"licence": "", …}],
                                       "runs": [[0, 120], [1, 3], …]}

Here the first 120 records have licence 0, the next 3 licence 1.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from infra.typed_json import parse_typed

LICENCES_ENDING = ".licences"
"""Ending of the file beside a shard."""

LICENCE_STAGE = "licence"
"""Stage of the rejects that were dropped because of their licence."""

NONE_STATED = "none stated"
"""What people read in place of a licence where none is stated."""

SEVERAL = "several"
"""Holder or address of a count whose records differ in it."""

_NAMED = 20
"""Most licences with a count of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Licence:
    """Terms under which data may be used.

    Attributes:
      licence: SPDX identifier, such as CC-BY-4.0, or other words; "" if none is stated.
      holder: the person or the group whose work it is; "" if not stated.
      address: place where the data or their terms are published; "" if not stated [URL].
    """

    licence: str = ""
    holder: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or value != " ".join(value.split()):
                raise ValueError(f"{field.name} must be a text on one line, got {value!r:.80}.")

    @property
    def is_stated(self) -> bool:
        """Whether anything is stated."""
        return any(vars(self).values())

    def completed(self, source: "Licence") -> "Licence":
        """Returns this licence with what it leaves out taken from that of its source."""
        if not source.is_stated:
            return self
        return Licence(
            **{name: value or getattr(source, name) for name, value in vars(self).items()}
        )


NO_LICENCE = Licence()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LicenceCount:
    """Records with one licence.

    Attributes:
      licence: as in `Licence`.
      holder: their holder; `SEVERAL` if they differ in it.
      address: their address, likewise.
      records: number of records.
    """

    licence: str = ""
    holder: str = ""
    address: str = ""
    records: int

    @property
    def title(self) -> str:
        """The licence as people read it."""
        return self.licence or NONE_STATED


def add_counts(counts: Iterable[LicenceCount]) -> tuple[LicenceCount, ...]:
    """Returns one count per licence, in the order of the licences' names."""
    merged: dict[str, LicenceCount] = {}
    for count in counts:
        other = merged.get(count.licence, dataclasses.replace(count, records=0))
        merged[count.licence] = LicenceCount(
            licence=count.licence,
            holder=count.holder if count.holder == other.holder else SEVERAL,
            address=count.address if count.address == other.address else SEVERAL,
            records=count.records + other.records,
        )
    return tuple(merged[licence] for licence in sorted(merged))


def stated_counts(counts: Iterable[LicenceCount]) -> tuple[LicenceCount, ...]:
    """Returns one count per licence, those that state none included; () if none states any."""
    merged = add_counts(counts)
    return merged if any(map(_is_stated, merged)) else ()


def _is_stated(count: LicenceCount) -> bool:
    return bool(count.licence or count.holder or count.address)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LicencesFile:
    """Content of the file beside a shard: its licences, and [number of one, records] by run."""

    licences: tuple[LicenceCount, ...]
    runs: tuple[tuple[int, int], ...]


class LicenceRuns:
    """Licences of the records of a shard, in the order of the records."""

    def __init__(self) -> None:
        # Plain lists, since a record adds one: numbers by licence, and per number the count.
        self._numbers: dict[str, int] = {}
        self._counts: list[LicenceCount] = []
        self._runs: list[list[int]] = []

    def add(self, licence: Licence, num: int = 1) -> None:
        """Appends some records that have the same licence."""
        self._append_licence_run(LicenceCount(**vars(licence), records=0), num)

    def extend(self, other: "LicenceRuns") -> None:
        """Appends the records of another shard."""
        for number, num in other._runs:
            self._append_licence_run(other._counts[number], num)

    def _append_licence_run(self, count: LicenceCount, num: int) -> None:
        if not num:
            return
        number = self._numbers.setdefault(count.licence, len(self._counts))
        if number == len(self._counts):
            self._counts.append(dataclasses.replace(count, records=0))
        known = self._counts[number]
        if (known.holder, known.address) != (count.holder, count.address):
            (self._counts[number],) = add_counts([known, count])
        if self._runs and self._runs[-1][0] == number:
            self._runs[-1][1] += num
        else:
            self._runs.append([number, num])

    @property
    def counts(self) -> tuple[LicenceCount, ...]:
        """Records per licence, in the order in which the licences first come."""
        nums = [0] * len(self._counts)
        for number, num in self._runs:
            nums[number] += num
        pairs = zip(self._counts, nums, strict=True)
        return tuple(dataclasses.replace(count, records=num) for count, num in pairs)

    @property
    def is_stated(self) -> bool:
        """Whether any of the records states anything."""
        return any(map(_is_stated, self._counts))

    def names(self) -> Iterator[tuple[str, int]]:
        """Yields (licence, number of neighbours that have it), run after run."""
        return ((self._counts[number].licence, num) for number, num in self._runs)

    def to_json(self) -> bytes:
        """Returns the content of the file beside a shard; equal records give equal bytes."""
        licences = [dataclasses.asdict(count) for count in self.counts]
        return json.dumps({"licences": licences, "runs": self._runs}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes, name: str = "licences") -> Self:
        """Reads the content of such a file.

        Raises:
          ValueError: if it is none; the message begins with `name`.
        """
        raw = parse_typed(_LicencesFile, text, name)
        if any(not 0 <= number < len(raw.licences) or num < 1 for number, num in raw.runs):
            raise ValueError(f"{name}: runs must be of the {len(raw.licences)} licences.")
        runs = cls()
        runs._counts = list(raw.licences)
        runs._numbers = {count.licence: i for i, count in enumerate(runs._counts)}
        runs._runs = [list(run) for run in raw.runs]
        return runs


def licences_path(shard: str | os.PathLike[str]) -> Path:
    """Returns the path of the file beside a shard."""
    return Path(shard).with_suffix(LICENCES_ENDING)


def licence_counts(licences: Iterable[LicenceCount]) -> dict[str, int]:
    """Returns "licence CC0-1.0" -> its records, the most frequent first; {} if none is stated."""
    ordered = sorted(licences, key=lambda count: (-count.records, count.licence))
    counts = {f"licence {count.title}": count.records for count in ordered[:_NAMED]}
    if rest := sum(count.records for count in ordered[_NAMED:]):
        counts["licences other"] = rest
    return counts
