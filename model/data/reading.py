"""Estimates of the cost of reading, before anything is read: requests to a bucket, and memory."""

import dataclasses
import math
from collections.abc import Mapping

from model.data.config import BatchConfig
from model.data.mixing import weights_of
from model.data.order import lanes_of, window_len
from pipelines.records.dataset import block_len


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartSize:
    """A part, or all parts of one name together.

    Attributes:
      num_records: number of its records.
      num_bytes: size of its shards [bytes].
      num_shards: number of its shards.
    """

    num_records: int
    num_bytes: int
    num_shards: int

    def __add__(self, other: "PartSize") -> "PartSize":
        return PartSize(
            num_records=self.num_records + other.num_records,
            num_bytes=self.num_bytes + other.num_bytes,
            num_shards=self.num_shards + other.num_shards,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """The reads of one training.

    Attributes:
      requests_per_record: ranged reads per record; one read brings a block of neighbours.
      bytes_per_record: mean size of a record [bytes].
      window_bytes: size of all windows together, over all hosts [bytes].
    """

    requests_per_record: float
    bytes_per_record: float
    window_bytes: int


def reading_of(parts: Mapping[str, PartSize], config: BatchConfig) -> Reading:
    """Returns the requests and bytes that a training needs to read its data.

    Args:
      parts: sizes of the parts by name; those that a mixture does not name are left out.
      config: config of the batches, whose mixture names only parts that exist.
    """
    sizes = {name: part for name, part in parts.items() if part.num_records}
    mixture, counts = dict(config.mixture), {name: p.num_records for name, p in sizes.items()}
    weights = {name: float(weight) for name, weight in weights_of(mixture, counts).items()}
    total, lanes = math.fsum(weights.values()), lanes_of(config.batch_size)
    requests = read = window = 0.0
    for name, weight in weights.items():
        part = sizes[name]
        # The same arithmetic as the loader's, on sizes alone: nothing is opened.
        mean = part.num_bytes / part.num_records
        block = block_len(part.num_bytes, part.num_records)
        # A pass reads each block once; a block in which a shard ends takes two ranges.
        ranges = math.ceil(part.num_records / block) + part.num_shards - 1
        requests += weight / total * min(1.0, ranges / part.num_records)
        read += weight / total * mean
        window += min(part.num_bytes, mean * lanes * window_len(block, lanes))
    return Reading(requests_per_record=requests, bytes_per_record=read, window_bytes=round(window))
