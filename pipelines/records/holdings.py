"""What a dataset holds, counted: per part, per language, and what was rejected why."""

import dataclasses
import re
from collections.abc import Iterable

from pipelines.records.dataset import Dataset
from pipelines.records.schema import Reject

_DETAIL = re.compile(r"\b\d+(?:x\d+)?(?:\.\d+)?|'[^']*'")
"""What differs between rejects of one kind: numbers and quoted values."""


@dataclasses.dataclass(kw_only=True)
class PartHoldings:
    """One part: its records, the images of each, the texts each may be trained on.

    Attributes:
      records: number of them.
      images: images per record, of a video in each window -> records.
      windows: windows per record -> records.
      suffixes: over all records.
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
    """Rejects of one kind, and one of them."""

    stage: str
    reason: str
    num: int
    example: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holdings:
    """What there is; `num_inputs` is records and rejects together.

    Attributes:
      name: such as "chartqa/train".
      parts: by name.
      rejects: kinds, the most frequent first.
    """

    name: str
    parts: dict[str, PartHoldings]
    rejects: tuple[RejectHoldings, ...]

    @property
    def num_records(self) -> int:
        """Records of all parts."""
        return sum(part.records for part in self.parts.values())

    @property
    def num_rejected(self) -> int:
        """Rejects of all kinds."""
        return sum(kind.num for kind in self.rejects)


def holdings_of(dataset: Dataset) -> Holdings:
    """Returns the counts of a prepared dataset's records; every record is read."""
    parts = {name: PartHoldings() for name in sorted(dataset.parts)}
    for name, part in dataset.parts.items():
        for record in part:
            parts[name].add(
                images=len(record.window()),
                windows=record.num_windows,
                suffixes=len(record.suffixes),
                lang=record.lang,
            )
    return Holdings(name=dataset.info.name, parts=parts, rejects=kinds_of(dataset.rejects()))


def kinds_of(rejects: Iterable[Reject]) -> tuple[RejectHoldings, ...]:
    """Returns rejects by stage and reason, whose numbers and quoted values do not count."""
    kinds: dict[tuple[str, str], list[Reject]] = {}
    for reject in rejects:
        kinds.setdefault((reject.stage, _DETAIL.sub("…", reject.reason)), []).append(reject)
    found = [
        RejectHoldings(stage=stage, reason=reason, num=len(same), example=same[0].id)
        for (stage, reason), same in kinds.items()
    ]
    return tuple(sorted(found, key=lambda kind: (-kind.num, kind.stage, kind.reason)))
