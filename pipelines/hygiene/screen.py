"""Screens a prepared dataset: writes a copy with its duplicates and its contamination reported.

matches.jsonl    one `Match` per line
hygiene.json     the counts

Records that the config removes go to `rejects.jsonl`, with the id of the record they look like.
"""

import collections
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pipelines.hygiene.index import MIN_LIKENESS
from pipelines.hygiene.matches import CONTAMINATION, DUPLICATE, MATCHES, Match
from pipelines.hygiene.matching import find_matches
from pipelines.hygiene.pictures import read_pictures
from pipelines.records import example
from pipelines.records.dataset import REJECTS, Dataset, DatasetInfo, PartInfo
from pipelines.records.schema import Reject
from pipelines.records.tfrecord import Shard, ShardWriter

COUNTS = "hygiene.json"
STAGE = "hygiene"

Action = Literal["off", "report", "remove"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HygieneConfig:
    """Settings of the screening of a training dataset.

    Attributes:
      contamination: action on records that show a picture of an evaluation set.
      duplicates: action on records that show the pictures of an earlier record of another file.
      min_likeness: likeness, up to 1, from which two pictures with different bytes match.
      candidates: most pictures that are compared in detail with each picture.
    """

    contamination: Action = "report"
    duplicates: Action = "report"
    min_likeness: float = MIN_LIKENESS
    candidates: int = 8

    def __post_init__(self) -> None:
        for name in ("contamination", "duplicates"):
            if getattr(self, name) not in ("off", "report", "remove"):
                raise ValueError(
                    f"{name} must be off, report or remove, got {getattr(self, name)!r}."
                )
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
      against: name -> folder of each evaluation dataset.
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
    _copy_without(opened, removed, target)
    return counts


def _count_matches(matches: list[Match]) -> dict[str, int]:
    """Returns the numbers of matches and of exact matches of each kind."""
    counts: collections.Counter[str] = collections.Counter()
    for kind in (CONTAMINATION, DUPLICATE):
        of_kind = [match for match in matches if match.kind == kind]
        counts[kind] = len(of_kind)
        counts[f"{kind}_exact"] = sum(match.exact for match in of_kind)
    return dict(counts)


def _copy_without(dataset: Dataset, removed: Mapping[str, Match], target: Path) -> None:
    """Writes the dataset without the removed records, which are added to the rejects."""
    rejects = list(dataset.rejects())
    folder = dataset.place.local_folder("")
    parts = {}
    for name, part in dataset.info.parts.items():
        counts = []
        for shard in part.shards:
            # Nothing to remove: the shards are the same bytes.
            if not removed:
                for path in (Path(shard), Path(shard).with_suffix(".idx")):
                    shutil.copyfile(folder / path, target / path)
                counts.append(len(Shard(target / shard)))
                continue
            # Records that stay are copied as bytes; they are decoded only to read their ids.
            source, writer = Shard(folder / shard), ShardWriter(target / shard)
            for position in range(len(source)):
                data = source[position]
                record = example.decode_example(data)
                match = removed.get(record.id)
                if match is None:
                    writer.write(data)
                    continue
                rejects.append(
                    Reject(
                        id=record.id,
                        stage=STAGE,
                        reason=match.reason,
                        source=record.source,
                        source_sha256=record.source_sha256,
                    )
                )
            counts.append(writer.commit())
        parts[name] = PartInfo(shards=part.shards, num_records=tuple(counts))
    # A removed record becomes a reject, so that inputs = records + rejects still holds.
    rejects.sort(key=lambda r: (r.id, r.stage, r.reason))
    write_json_lines(target / REJECTS, (dataclasses.asdict(reject) for reject in rejects))
    info: DatasetInfo = dataclasses.replace(
        dataset.info, parts=parts, num_rejected=dataset.info.num_rejected + len(removed)
    )
    info.write(target)


def write_json_lines(path: Path, rows: Iterator[dict]) -> None:
    """Writes one JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(row, sort_keys=True, ensure_ascii=False), file=file)


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
