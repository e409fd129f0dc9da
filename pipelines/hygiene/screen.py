"""Screens a prepared dataset: writes a copy with its duplicates and its contamination reported.

matches.jsonl    one `Match` per line
hygiene.json     the counts

Records that the config removes go to `rejects.jsonl`, with the id of the record they look like.
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pipelines.hygiene.index import MIN_LIKENESS
from pipelines.hygiene.matches import CONTAMINATION, DUPLICATE, MATCHES, Match
from pipelines.hygiene.matching import find_matches
from pipelines.hygiene.pictures import read_pictures
from pipelines.records.dataset import Dataset
from pipelines.records.rewrite import rewrite_dataset, write_json_lines

COUNTS = "hygiene.json"
STAGE = "hygiene"

Action = Literal["off", "report", "remove"]
HeldOut = Literal["evaluation", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HygieneConfig:
    """Settings of the screening of a training dataset.

    Attributes:
      contamination: action on records that show a picture of a benchmark.
      splits: splits of the study's benchmarks whose pictures count: "evaluation", or "all", those
        that transfers train on, too.
      duplicates: action on records that show the pictures of an earlier record of another file.
      min_likeness: likeness, up to 1, from which two pictures with different bytes match.
      candidates: most pictures that are compared in detail with each picture.
    """

    contamination: Action = "report"
    splits: HeldOut = "evaluation"
    duplicates: Action = "report"
    min_likeness: float = MIN_LIKENESS
    candidates: int = 8

    def __post_init__(self) -> None:
        for name in ("contamination", "duplicates"):
            if getattr(self, name) not in ("off", "report", "remove"):
                raise ValueError(
                    f"{name} must be off, report or remove, got {getattr(self, name)!r}."
                )
        if self.splits not in ("evaluation", "all"):
            raise ValueError(f"splits must be evaluation or all, got {self.splits!r}.")
        if not 0 < self.min_likeness <= 1:
            raise ValueError(f"min_likeness must be in (0, 1], got {self.min_likeness}.")
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}.")


def screen_dataset(
    dataset: str,
    config: HygieneConfig,
    *,
    against: Mapping[str, str],
    out: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Writes the screened dataset into the folder `out`, and returns the counts.

    Args:
      dataset: folder of a prepared training dataset.
      config: settings of the screening.
      against: name -> folder of each dataset of a benchmark.
      out: absent or empty folder; `dataset.json` appears last.
      on_progress: called with (records read, all records).

    Raises:
      ValueError: if `out` is not empty.
    """
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ValueError(f"out must be an empty or a new folder, got {out}; choose another.")
    opened = Dataset(dataset)
    held_out = {name: Dataset(folder) for name, folder in against.items()}
    total = opened.info.num_records + sum(d.info.num_records for d in held_out.values())
    # Reading is the slow part: each picture is decoded once for its fingerprint.
    count_record = _record_counter(total, on_progress)
    pictures = read_pictures(opened, count_record)
    evaluation = {name: read_pictures(d, count_record) for name, d in sorted(held_out.items())}
    actions = {CONTAMINATION: config.contamination, DUPLICATE: config.duplicates}
    matches = find_matches(
        pictures,
        evaluation,
        kinds={kind for kind, action in actions.items() if action != "off"},
        min_likeness=config.min_likeness,
        candidates=config.candidates,
    )
    # Contamination comes first among the matches; reversed, it is written last and so gives the
    # reason of a record that has matches of both kinds.
    removed = {m.id: m for m in reversed(matches) if actions[m.kind] == "remove"}
    counts = _count_matches(matches)
    counts |= {"removed": len(removed), "records": opened.info.num_records}
    counts["blank_pictures"] = pictures.num_blank
    write_json_lines(target / MATCHES, (dataclasses.asdict(match) for match in matches))
    (target / COUNTS).write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    # A removed record becomes a reject, with what it looks like as the reason.
    rewrite_dataset(
        dataset,
        lambda record: removed[record.id].reason if record.id in removed else record,
        stage=STAGE,
        out=target,
    )
    return counts


def _count_matches(matches: list[Match]) -> dict[str, int]:
    """Returns the numbers of matches and of exact matches of each kind."""
    counts: collections.Counter[str] = collections.Counter()
    for kind in (CONTAMINATION, DUPLICATE):
        of_kind = [match for match in matches if match.kind == kind]
        counts[kind] = len(of_kind)
        counts[f"{kind}_exact"] = sum(match.exact for match in of_kind)
    return dict(counts)


def _record_counter(
    total: int, on_progress: Callable[[int, int], None] | None
) -> Callable[[], None]:
    num_done = 0

    def count_record() -> None:
        nonlocal num_done
        num_done += 1
        if on_progress and (num_done % 256 == 0 or num_done == total):
            on_progress(num_done, total)

    return count_record
