"""Export of a prepared dataset for other programs: plain TFRecords, or webdataset archives.

    export.json                       name, format, parts, and the meaning of each feature
    caption-00000-of-00002.tfrecord   the records as `tf.train.Example`, without an index; or
    caption-00000-of-00002.tar        per record, numbered in order:
      000000012.jpg                     its picture; 000000012.0.jpg, .1.jpg, ... if it has several
      000000012.json                    every other field of `Record`
      000000012.txt                     of a caption, the text, for readers of image-text pairs

The same dataset gives the same bytes. `features` in export.json is the map that the source
`tfrecord` needs to read the records as a corpus again.
"""

import dataclasses
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pipelines.records.example as example
from pipelines.records.dataset import Dataset
from pipelines.records.schema import Record
from pipelines.records.tfrecord import ShardWriter, index_path

ExportFormat = Literal["tfrecord", "webdataset"]
EXPORT_FILE = "export.json"
EXPORT_FEATURES = {
    **{name: name for name in ("id", "image", "prefix", "suffix", "task", "lang", "answer")},
    "mask": "mask_rle",
}
"""The `features` with which the source `tfrecord` reads an export."""
_LICENCE_FEATURES = {field: name for name, field in example.LICENCE.items()}
"""Those of a dataset that states licences, besides."""

_HOLDS = {
    "id": "stable, unique in the dataset",
    "image": "encoded squares, JPEG or PNG: one, a pair, or the frames of a clip",
    "prefix": "what the model reads",
    "suffix": "texts that the model may write",
    "prefixes": "per suffix, a JSON list of what may be read before it, if that is not prefix",
    "turns": "further turns of a conversation: JSON lists of what is read and what is written",
    "task": "caption, ocr, ... or the benchmark's name",
    "lang": "language of the suffixes",
    "source": "file of the pixels, below the data root",
    "source_sha256": "digest of that file's bytes",
    "answer": "accepted answers",
    "mask_rle": "a COCO run-length mask per <mask> of the suffixes, in order",
    "frame_requested": "times asked for, per frame [s]",
    "frame_decoded": "times found, per frame [s]",
    "meta": "JSON, what a metric needs besides",
}
_LICENCE_HOLDS = {
    "licence": "SPDX identifier or other words; absent where none is stated",
    "licence_holder": "whose work it is",
    "licence_address": "where it is published",
}


def export_records(
    dataset: Dataset,
    out: Path,
    form: ExportFormat,
    *,
    part: str | None = None,
    records_per_file: int = 10_000,
) -> dict[str, int]:
    """Writes a dataset into an empty folder, and returns the records of each part.

    Args:
      dataset: the dataset to write.
      out: absent or empty folder; `export.json` appears last.
      form: "tfrecord" or "webdataset".
      part: the only part to write; None writes all.
      records_per_file: most records per file.

    Raises:
      ValueError: if `out` is not empty, or there is no such part.
    """
    if part is not None and part not in dataset.parts:
        raise ValueError(f"part must be one of {', '.join(dataset.parts)}, got {part!r}.")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"out must be an empty or absent folder, got {out}; choose another.")
    out.mkdir(parents=True, exist_ok=True)
    write, ending = _WRITERS[form]
    counts = {}
    for name in sorted(dataset.parts) if part is None else [part]:
        # One iterator for all files of a part: each file takes the next records from it.
        records, counts[name] = iter(dataset.parts[name]), len(dataset.parts[name])
        # At least one file, so that an empty part is seen as well.
        num_files = max(1, -(-counts[name] // records_per_file))
        for number in range(num_files):
            path = out / f"{name}-{number:05d}-of-{num_files:05d}{ending}"
            write(path, number * records_per_file, itertools.islice(records, records_per_file))
    # Written last, so that a folder with a description is a complete export.
    about: dict[str, object] = {"name": dataset.info.name, "format": form, "parts": counts}
    about["image_px"] = dataset.info.image_px
    if form == "tfrecord":
        has_licences = bool(dataset.info.licences)
        about["features"] = EXPORT_FEATURES | _LICENCE_FEATURES if has_licences else EXPORT_FEATURES
        about["holds"] = _HOLDS | _LICENCE_HOLDS if has_licences else _HOLDS
    (out / EXPORT_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return counts


def _write_tfrecord(path: Path, first: int, records: Iterator[Record]) -> None:
    del first
    writer = ShardWriter(path)
    for record in records:
        writer.write(example.encode_example(record))
    writer.commit()
    index_path(path).unlink()


def _write_webdataset(path: Path, first: int, records: Iterator[Record]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, record in enumerate(records, first):
            for ending, data in _archive_members(record):
                # A new entry has no times and no owners, so equal records give equal archives.
                info = tarfile.TarInfo(f"{number:09d}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    partial.replace(path)


def _archive_members(record: Record) -> Iterator[tuple[str, bytes]]:
    for number, image in enumerate(record.images):
        kind = "png" if image.startswith(b"\x89PNG") else "jpg"
        yield (kind if len(record.images) == 1 else f"{number}.{kind}"), image
    fields = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in ("images", "licence")
    }
    # Under the names that `features` of the source `web` may give; absent where not stated.
    fields |= {name: value for name, value in vars(record.licence).items() if value}
    yield "json", json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()
    if record.task == "caption" and record.suffixes:
        yield "txt", record.suffixes[0].encode()


_WRITERS: dict[ExportFormat, tuple[Callable[[Path, int, Iterator[Record]], None], str]] = {
    "tfrecord": (_write_tfrecord, ".tfrecord"),
    "webdataset": (_write_webdataset, ".tar"),
}
