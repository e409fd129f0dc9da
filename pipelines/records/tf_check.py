"""Reads a prepared dataset back as somebody with plain `tf.data` does: `check_with_tf_data`.

TensorFlow takes ten seconds to import, and memory and threads for as long as its process lives. So
it is imported in a process of its own: `python -m pipelines.records.tf_check`.
"""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pipelines.records.example as example
from infra.processes.module import module_command, python_path
from pipelines.records.dataset import Dataset
from pipelines.records.licence import NO_LICENCE
from pipelines.records.schema import Record
from pipelines.records.tf_data import read_shards
from pipelines.records.tfrecord import INDEX_ENDING, Shard

CURE = "pip install 'parcel-pipeline[tf]'"
"""What installs TensorFlow."""

_SAMPLE = 2000
"""Records after which no further shard is read, and pictures that are opened, unless all are."""

_NOT_READ = {"turns": (), "licence": NO_LICENCE}
"""Fields of a record that few records have, and no element of `as_tf_dataset`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfDataCheck:
    """What `tf.data` read of a dataset.

    Attributes:
      is_installed: whether TensorFlow is there; else nothing was read.
      shards: names of the shards that were read.
      num_shards: number of shards that hold records.
      num_records: number of records read, each equal to that of this project's reader.
      num_fields: number of fields of a record.
      num_images: number of pictures that `tf.io.decode_image` opened.
      failure: why a shard cannot be read, or how it differs; "" if it is as it should be.
    """

    is_installed: bool = True
    shards: tuple[str, ...] = ()
    num_shards: int = 0
    num_records: int = 0
    num_fields: int = 0
    num_images: int = 0
    failure: str = ""

    @property
    def text(self) -> str:
        """What was read, in one line."""
        if not self.is_installed:
            return f"not read with tf.data: TensorFlow is not installed ({CURE})"
        if self.failure:
            return f"tf.data: {self.failure}"
        if not self.num_records:
            return "tf.data: there are no records to read"
        names = self.shards[0] + (f" and {len(self.shards) - 1} more" if self.shards[1:] else "")
        return (
            f"tf.data read {names} (shards: {len(self.shards):,} of {self.num_shards:,}): "
            f"{self.num_records:,} records of {self.num_fields} fields, equal to those of our "
            f"reader; {self.num_images:,} pictures decoded"
        )


def check_with_tf_data(
    dataset: Dataset, *, read_all: bool = False, max_records: int = _SAMPLE
) -> TfDataCheck:
    """Reads shards of a dataset with TensorFlow, if it is installed, and compares the records.

    Args:
      dataset: the dataset; of one in a bucket, the shards that are read are copied to this machine.
      read_all: whether every shard is read and every picture opened.
      max_records: records after which no further shard is begun; at least one shard is read.
    """
    shards = _ordered_shards(dataset)
    ends = itertools.accumulate(shards.values())
    chosen = [
        name
        for (name, num), end in zip(shards.items(), ends, strict=True)
        if read_all or end - num == 0 or end <= max_records
    ]
    if not chosen:
        return TfDataCheck()
    folder = dataset.place.local_folder((*chosen, INDEX_ENDING))
    request = {"folder": str(folder), "shards": chosen, "images": None if read_all else _SAMPLE}
    child = subprocess.run(
        module_command("pipelines.records.tf_check"),
        input=json.dumps(request),
        capture_output=True,
        text=True,
        # No device: those of this machine may be in use. No messages about the processor.
        env={
            **os.environ,
            "PYTHONPATH": python_path(),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )
    if child.returncode:
        # The last line of a traceback is its error.
        lines = child.stderr.strip().splitlines()
        why = lines[-1] if child.returncode > 0 and lines else f"it ended by {child.returncode}"
        return TfDataCheck(failure=f"TensorFlow's process failed: {why}")
    found = json.loads(child.stdout.splitlines()[-1])
    if not found:
        return TfDataCheck(is_installed=False)
    return TfDataCheck(shards=tuple(chosen), num_shards=len(shards), **found)


def _ordered_shards(dataset: Dataset) -> dict[str, int]:
    """Returns shard -> number of records, the smallest of each part before the next of any."""
    # Parts differ in what their records hold, so that each comes as early as can be.
    ranked: list[tuple[int, int, str, int]] = []
    for part in dataset.info.parts.values():
        sizes = sorted(
            (dataset.place.size(name), name, num)
            for name, num in zip(part.shards, part.num_records, strict=True)
            if num
        )
        ranked += [(rank, *size) for rank, size in enumerate(sizes)]
    return {name: num for _, _, name, num in sorted(ranked)}


def _read_back(folder: Path, shards: Sequence[str], max_images: int | None) -> dict[str, Any]:
    """Returns fields of `TfDataCheck` for some shards as TensorFlow reads them; {} without it."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name == "tensorflow":
            return {}
        raise

    num_records = num_fields = num_images = 0
    for name in shards:
        num = 0
        try:
            ours = _records_of(folder / name)
            rows: Any = read_shards([str(folder / name)]).as_numpy_iterator()
            # TensorFlow's first, so that what it cannot read is told in its words.
            for row, record in itertools.zip_longest(rows, ours):
                if record is None or row is None:
                    reader = "our reader" if row is None else "tf.data"
                    raise ValueError(f"only {reader} finds it")
                if different := different_fields(record, row):
                    raise ValueError(
                        f"our reader and tf.data read {', '.join(different)} differently"
                    )
                for data in row["image"].tolist():
                    if max_images is None or num_images < max_images:
                        tf.io.decode_image(data)
                        num_images += 1
                num, num_fields = num + 1, len(row)
        # Whatever makes a record unreadable is told with its place.
        except (tf.errors.OpError, ValueError, OSError) as error:
            return {
                "failure": f"record {num} of {name} cannot be read: {_tensorflow_error_text(error)}"
            }
        num_records += num
    return {"num_records": num_records, "num_fields": num_fields, "num_images": num_images}


def _records_of(path: Path) -> Iterator[Record]:
    """Yields the records of a shard as this project reads them."""
    shard = Shard(path)
    for position in range(len(shard)):
        yield example.decode_example(shard[position])


def different_fields(record: Record, row: Mapping[str, Any]) -> list[str]:
    """Returns the fields that differ between a record and an element of `as_tf_dataset`."""
    expected, found = dataclasses.replace(record, **_NOT_READ), _record_of_row(row)
    if example.encode_example(expected) == example.encode_example(found):
        return []
    # Compared by their texts, as NaN is no other than NaN.
    return [
        field.name
        for field in dataclasses.fields(Record)
        if repr(getattr(expected, field.name)) != repr(getattr(found, field.name))
    ]


def _record_of_row(row: Mapping[str, Any]) -> Record:
    values: dict[str, Any] = {}
    for name, field in example.BYTES.items():
        if name in example.SINGLE:
            values[field] = row[name].decode()
        else:
            items = row[name].tolist()
            values[field] = tuple(items if name == "image" else map(bytes.decode, items))
    for name, field in example.FLOATS.items():
        values[field] = tuple(row[name].tolist())
    return Record(
        **values,
        prefixes=tuple(tuple(json.loads(text)) for text in row["prefixes"].tolist()),
        num_windows=int(row["num_windows"]),
        meta=json.loads(row["meta"]),
    )


def _tensorflow_error_text(error: Exception) -> str:
    """Returns an error in one line, without what TensorFlow says of its own graph."""
    # {{function_node __wrapped__…}} Error in user-defined function passed to ParallelMapDatasetV2:2
    # transformation with iterator: Iterator::Root::ParallelMapV2: Key: id. … [Op:IteratorGetNext]
    own = r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:.*|Error in user-defined function .*?Iterator::\S+ "
    text = re.sub(own, " ", str(error), flags=re.DOTALL)
    return " ".join(text.split())


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(_read_back(Path(asked["folder"]), asked["shards"], asked["images"])))
