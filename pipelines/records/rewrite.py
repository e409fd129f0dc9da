"""Writes a prepared dataset again with some of its records changed or rejected."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pipelines.records.example as example
from pipelines.records.dataset import REJECTS, Dataset, PartInfo
from pipelines.records.licence import LicenceCount, LicenceRuns, licences_path, stated_counts
from pipelines.records.schema import Record, Reject
from pipelines.records.tfrecord import Shard, ShardWriter


def rewrite_dataset(
    dataset: str | Path,
    change: Callable[[Record], Record | str],
    *,
    stage: str,
    out: str | Path,
) -> dict[str, int]:
    """Writes a dataset with its records changed into `out`; returns its counts.

    Records stay in their parts, shards and order, so equal decisions give equal bytes. One that is
    rejected joins the rejects: inputs = records + rejects still holds.

    Args:
      dataset: folder of a prepared dataset.
      change: function from a record to the record that takes its place, with the same id and task,
        or to the reason why it is rejected. It is called part by part, in the order of the records.
      stage: name of the stage in the rejects, for example "dedup".
      out: an empty folder; `dataset.json` appears last.

    Raises:
      ValueError: if `change` gives a record another id or task.
    """
    opened, target = Dataset(dataset), Path(out)
    folder = opened.place.local_folder("")
    rejected, num_changed, parts = list[Reject](), 0, {}
    licence_counts: list[LicenceCount] = []
    for name, part in opened.info.parts.items():
        counts = []
        for shard in part.shards:
            source, writer = Shard(folder / shard), ShardWriter(target / shard)
            licences = LicenceRuns()
            for position in range(len(source)):
                data = source[position]
                record = example.decode_example(data)
                changed = change(record)
                if isinstance(changed, str):
                    rejected.append(
                        Reject(
                            id=record.id,
                            stage=stage,
                            reason=changed,
                            source=record.source,
                            source_sha256=record.source_sha256,
                        )
                    )
                    continue
                if (changed.id, changed.task) != (record.id, record.task):
                    raise ValueError(
                        f"change must leave id and task of a record as they are, {record.id!r} and "
                        f"{record.task!r}, got {changed.id!r} and {changed.task!r}."
                    )
                # A record that stays is copied as bytes.
                num_changed += changed is not record
                writer.write(data if changed is record else example.encode_example(changed))
                licences.add(changed.licence)
            if licences.is_stated:
                licences_path(target / shard).write_bytes(licences.to_json())
            licence_counts += licences.counts
            counts.append(writer.commit())
        parts[name] = PartInfo(shards=part.shards, num_records=tuple(counts))
    rejects = sorted([*opened.rejects(), *rejected], key=lambda r: (r.id, r.stage, r.reason))
    write_json_lines(target / REJECTS, map(dataclasses.asdict, rejects))
    info = dataclasses.replace(
        opened.info,
        parts=parts,
        num_rejected=len(rejects),
        licences=stated_counts(licence_counts),
    )
    info.write(target)
    return {"records": info.num_records, "rejected": len(rejected), "changed": num_changed}


def write_json_lines(path: Path, rows: Iterable[dict]) -> None:
    """Writes one JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(row, sort_keys=True, ensure_ascii=False), file=file)
