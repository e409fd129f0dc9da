"""The matches that hygiene reports: pairs of records that look alike."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from infra.typed_json import read_typed_lines

MATCHES = "matches.jsonl"
CONTAMINATION = "contamination"
DUPLICATE = "duplicate"
TRAINED = "/train"
"""End of the name of a benchmark's split that transfers train on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """One record that looks like another.

    Attributes:
      id: id of the record.
      kind: "contamination" or "duplicate".
      match: id of the other record.
      dataset: name of the other record's split of a benchmark; "" if both are in one dataset.
      likeness: likeness of the two most similar images, up to 1.
      exact: whether both were made from the same bytes.
    """

    id: str
    kind: str
    match: str
    dataset: str
    likeness: float
    exact: bool

    @property
    def reason(self) -> str:
        """The reason of the record's reject, in one line."""
        evidence = "same file" if self.exact else f"likeness {self.likeness:.2f}"
        if self.kind == CONTAMINATION:
            return f"contamination: shows {self.match} of {self.dataset} ({evidence})"
        return f"duplicate: shows what {self.match} shows ({evidence})"


def read_matches(folder: Path) -> Iterator[Match]:
    """Yields the matches of the screened dataset in a folder."""
    yield from read_typed_lines(Match, folder / MATCHES)
