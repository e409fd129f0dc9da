"""Which licences a dataset may hold; records of other ones are dropped, by wish."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping

from pipelines.records.licence import LICENCE_STAGE, NONE_STATED
from pipelines.records.schema import Reject
from pipelines.sources.reading.item import Item

_REASON = "licence: "

_NEAR = 0.8
"""Least likeness, up to 1, of a licence that was probably meant."""

_CREATIVE_COMMONS = ("BY", "BY-SA", "BY-NC", "BY-ND", "BY-NC-SA", "BY-NC-ND")
_KNOWN = {
    *(
        f"CC-{terms}-{v}"
        for terms in _CREATIVE_COMMONS
        for v in ("1.0", "2.0", "2.5", "3.0", "4.0")
    ),
    *("CC0-1.0", "MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unlicense"),
    *("GPL-2.0-only", "GPL-2.0-or-later", "GPL-3.0-only", "GPL-3.0-or-later", "GPL-3.0"),
    *("ODbL-1.0", "ODC-By-1.0", "PDDL-1.0", "CDLA-Permissive-1.0", "CDLA-Permissive-2.0"),
}
"""Identifiers of SPDX that data often have: one of them is not another one misspelt."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LicencesConfig:
    """Licences of the records that checkpoints may learn from.

    Attributes:
      allow: licences exactly as the sources state them, SPDX identifiers or other words; records of
        all other ones, and those that state none, become rejects.
    """

    allow: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.allow or not all(self.allow):
            raise ValueError(
                f"allow must name at least one licence, such as CC-BY-4.0, got {list(self.allow)}; "
                f"leave licences out to allow all."
            )

    def checked(self, entries: Iterable[Item | Reject]) -> Iterator[Item | Reject]:
        """Yields the entries, with a reject in place of each item whose licence is not allowed."""
        for entry in entries:
            if isinstance(entry, Item) and entry.licence.licence not in self.allow:
                yield Reject(
                    id=entry.id,
                    stage=LICENCE_STAGE,
                    reason=f"{_REASON}{entry.licence.licence or NONE_STATED}",
                    source=entry.source,
                )
            else:
                yield entry

    def check_spelling(
        self, stated: Mapping[str, str], known: Collection[str] = (), *, with_slips: bool = True
    ) -> None:
        """Refuses a licence that nothing states, where something states nearly the same.

        Args:
          stated: licences that are dropped -> where each is stated, in a few words.
          known: licences that are stated and allowed.
          with_slips: whether a slip of some letters counts as nearly the same, as it should where
            all that is stated is known; else only other capitals and signs do.

        Raises:
          ValueError: naming the licence, and the nearest one.
        """
        for licence in self.allow:
            if licence in known or licence in stated:
                continue
            others = [name for name in stated if name not in self.allow]
            if near := _nearest_licence(licence, others, with_slips=with_slips):
                raise ValueError(
                    f"licences.allow must name licences as they are stated, got {licence!r}, which "
                    f"nothing states; the nearest is {near!r}, of {stated[near]}. Write that one."
                )


def dropped_licence(reject: Mapping[str, str]) -> str | None:
    """Returns the licence of a reject that `LicencesConfig` made; "" for none, None for others."""
    if reject["stage"] != LICENCE_STAGE:
        return None
    licence = reject["reason"].removeprefix(_REASON)
    return "" if licence == NONE_STATED else licence


def _nearest_licence(licence: str, stated: Iterable[str], *, with_slips: bool) -> str:
    """Returns the licence that was probably meant; "" if none is near enough."""
    # "CC BY 4.0" and "cc-by-4.0" are "ccby40"; of other words, a slip of one or two letters counts.
    plain = {_plain_licence(name): name for name in sorted(stated, reverse=True)}
    if _plain_licence(licence) in plain:
        return plain[_plain_licence(licence)]
    if not with_slips or _plain_licence(licence) in map(_plain_licence, _KNOWN):
        return ""
    near = difflib.get_close_matches(_plain_licence(licence), plain, n=1, cutoff=_NEAR)
    return plain[near[0]] if near else ""


def _plain_licence(licence: str) -> str:
    return "".join(letter for letter in licence.casefold() if letter.isalnum())
