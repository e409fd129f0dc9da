"""Counts of a dataset's records per part and language, and of its rejects per reason."""

import bisect
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from infra.errors import printable
from pipelines.records.dataset import Dataset
from pipelines.records.licence import LICENCE_STAGE, LicenceCount
from pipelines.records.schema import Omission, Reject

_DETAIL = re.compile(r"\b\d+(?:x\d+)?(?:\.\d+)?|'[^']*'|(?<=: )[^\s:]+/[^\s:]+$")
"""Numbers, quoted values and a file's path at the end, which differ between rejects of one kind."""

_NAMED = 20
"""Most files that are named for one reason."""

_REASONS = 20
"""Most kinds of rejects that are shown, unless all are."""

EXAMPLES = 3
"""Most rejects of one kind that are shown."""


@dataclasses.dataclass(kw_only=True)
class PartHoldings:
    """Counts of one part.

    Attributes:
      records: number of records.
      images: images per record (for a video, per window) -> records.
      windows: windows per record -> records.
      suffixes: number of suffixes over all records.
      langs: language -> records.
    """

    records: int = 0
    images: dict[int, int] = dataclasses.field(default_factory=dict)
    windows: dict[int, int] = dataclasses.field(default_factory=dict)
    suffixes: int = 0
    langs: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, *, images: int, windows: int = 1, suffixes: int, lang: str) -> None:
        """Counts one record."""
        self.records += 1
        self.suffixes += suffixes
        self.images[images] = self.images.get(images, 0) + 1
        self.windows[windows] = self.windows.get(windows, 0) + 1
        self.langs[lang] = self.langs.get(lang, 0) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectHoldings:
    """Rejects of one kind.

    Attributes:
      stage: the step that refused them.
      reason: what their reasons have in common, with "…" for what differs.
      num: their number.
      examples: the first of them by id, with their full reasons.
    """

    stage: str
    reason: str
    num: int
    examples: tuple[Reject, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OmissionHoldings:
    """What was passed over for one reason.

    Attributes:
      reason: what of the sources was not read.
      num: number of files, archive members or records.
      sources: the first of them by name, each a file or one of a file.
      num_sources: number of the files.
    """

    reason: str
    num: int
    sources: tuple[str, ...]
    num_sources: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holdings:
    """Counts of a dataset.

    Attributes:
      name: the dataset's name, for example "chartqa/train".
      parts: part name -> its counts.
      rejects: kinds of rejects, the most frequent first.
      omissions: what looks like data and is in neither, by reason.
      num_composed: records in which a background shows through transparent pixels.
      licences: records per licence, those that state none included.
      decoders: decoder -> records whose clips it decoded; empty unless decord is wanted.
    """

    name: str
    parts: dict[str, PartHoldings]
    rejects: tuple[RejectHoldings, ...]
    omissions: tuple[OmissionHoldings, ...] = ()
    num_composed: int = 0
    licences: tuple[LicenceCount, ...] = ()
    decoders: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """Records of all parts."""
        return sum(part.records for part in self.parts.values())

    @property
    def num_rejected(self) -> int:
        """Rejects of all kinds."""
        return sum(kind.num for kind in self.rejects)


def count_holdings(dataset: Dataset) -> Holdings:
    """Returns the counts of a prepared dataset's records; every record is read."""
    # Parts without records are listed as well, with zeros.
    parts = {name: PartHoldings() for name in sorted(dataset.parts)}
    for name, part in dataset.parts.items():
        for record in part:
            parts[name].add(
                images=len(record.window()),
                windows=record.num_windows,
                suffixes=len(record.suffixes),
                lang=record.lang,
            )
    return Holdings(
        name=dataset.info.name,
        parts=parts,
        rejects=group_rejects(dataset.rejects()),
        omissions=group_omissions(dataset.omissions()),
        num_composed=dataset.info.num_composed,
        licences=dataset.info.licence_counts,
        decoders=dataset.info.decoders,
    )


def group_omissions(omissions: Iterable[Omission]) -> tuple[OmissionHoldings, ...]:
    """Groups omissions by their reasons."""
    groups: dict[str, list[Omission]] = {}
    for omission in sorted(omissions):
        groups.setdefault(omission.reason, []).append(omission)
    return tuple(
        OmissionHoldings(
            reason=reason,
            num=sum(omission.num for omission in group),
            sources=tuple(
                f"{omission.source}/{omission.example}" if omission.example else omission.source
                for omission in group[:_NAMED]
            ),
            num_sources=len(group),
        )
        for reason, group in sorted(groups.items())
    )


def omission_lines(groups: Iterable[OmissionHoldings]) -> Iterator[str]:
    """Yields a line for each file that was passed over, up to a number of them for each reason."""
    for group in groups:
        yield f"not read: {group.num:,} x {printable(group.reason)}"
        yield from (f"  {printable(source)}" for source in group.sources)
        if group.num_sources > len(group.sources):
            yield f"  and in {group.num_sources - len(group.sources):,} more files"


class RejectGroups:
    """Rejects by stage and reason, of which the number and a few examples are kept.

    Args:
      max_examples: most examples of one kind.
    """

    def __init__(self, max_examples: int = EXAMPLES) -> None:
        self._max_examples = max_examples
        self._groups: dict[tuple[str, str], tuple[int, list[Reject]]] = {}

    def add(self, reject: Reject) -> None:
        """Counts one reject."""
        # "too small: 3x5" and "too small: 4x4" are one kind, "too small: …".
        # A path is replaced before numbers: it may have some, and blanks.
        is_path = "/" in reject.source
        reason = reject.reason.replace(reject.source, "…") if is_path else reject.reason
        # But which licence was dropped is what one wants to know, and few are.
        is_licence = reject.stage == LICENCE_STAGE
        kind = reject.stage, reject.reason if is_licence else _DETAIL.sub("…", reason)
        num, examples = self._groups.get(kind, (0, []))
        # The first by id, whatever the order in which they come.
        bisect.insort(examples, reject, key=_order_of_reject)
        del examples[self._max_examples :]
        self._groups[kind] = num + 1, examples

    def holdings(self) -> tuple[RejectHoldings, ...]:
        """Returns the kinds, the most frequent first."""
        groups = [
            RejectHoldings(stage=stage, reason=reason, num=num, examples=tuple(examples))
            for (stage, reason), (num, examples) in self._groups.items()
        ]
        return tuple(sorted(groups, key=lambda kind: (-kind.num, kind.stage, kind.reason)))


def _order_of_reject(reject: Reject) -> tuple[str, str, str, str]:
    return reject.id, reject.stage, reject.reason, reject.source


def group_rejects(
    rejects: Iterable[Reject], max_examples: int = EXAMPLES
) -> tuple[RejectHoldings, ...]:
    """Groups rejects by stage and reason, ignoring numbers, names and quoted values in the reason.

    Memory holds `max_examples` of each kind.
    """
    groups = RejectGroups(max_examples)
    for reject in rejects:
        groups.add(reject)
    return groups.holdings()


def reject_lines(
    groups: Sequence[RejectHoldings], max_reasons: int | None = _REASONS
) -> Iterator[str]:
    """Yields a line for each kind of reject, and below it a line for each of its examples.

    Args:
      groups: the kinds, the most frequent first.
      max_reasons: most kinds that are shown; None shows all.
    """
    # rejected: 2 x decode: too small: …, min_side=…
    #   mine/train/a.png#0: too small: 7x7, min_side=8 (mine/a.png)
    for group in groups[:max_reasons]:
        yield f"rejected: {group.num:,} x {group.stage}: {printable(group.reason)}"
        for reject in group.examples:
            # A reason that all share is not repeated.
            reason = "" if reject.reason == group.reason else f": {reject.reason}"
            place = "" if reject.source in reason else f" ({reject.source})"
            yield f"  {printable(f'{reject.id}{reason}{place}')}"
        if group.num > len(group.examples):
            yield f"  and {group.num - len(group.examples):,} more"
    if num_left := len(groups[len(groups) if max_reasons is None else max_reasons :]):
        yield f"and {num_left:,} more reasons"
