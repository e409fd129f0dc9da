"""What reading costs: requests of a bucket, and memory, told before anything is read."""

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
      num_records: of it.
      num_bytes: of its shards.
      num_shards: that it lies in.
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
    """What one training reads.

    Attributes:
      requests_per_record: ranged reads; one brings a block of neighbours.
      bytes_per_record: mean [bytes].
      window_bytes: what all its windows hold, over all hosts [bytes].
    """

    requests_per_record: float
    bytes_per_record: float
    window_bytes: int


def reading_of(parts: Mapping[str, PartSize], config: BatchConfig) -> Reading:
    """Returns requests and bytes that a training reads of the parts of its data.

    Args:
      parts: by name; those that a mixture does not name are left out.
      config: of its batches, whose mixture names only parts there are.
    """
    sizes = {name: part for name, part in parts.items() if part.num_records}
    mixture, counts = dict(config.mixture), {name: p.num_records for name, p in sizes.items()}
    weights = {name: float(weight) for name, weight in weights_of(mixture, counts).items()}
    total, lanes = math.fsum(weights.values()), lanes_of(config.batch_size)
    requests = read = window = 0.0
    for name, weight in weights.items():
        part = sizes[name]
        mean = part.num_bytes / part.num_records
        block = block_len(part.num_bytes, part.num_records)
        # A pass reads each block once; where a shard ends within one, it is two ranges.
        ranges = math.ceil(part.num_records / block) + part.num_shards - 1
        requests += weight / total * min(1.0, ranges / part.num_records)
        read += weight / total * mean
        window += min(part.num_bytes, mean * lanes * window_len(block, lanes))
    return Reading(requests_per_record=requests, bytes_per_record=read, window_bytes=round(window))
