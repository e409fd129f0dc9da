"""Which of a record's suffixes one visit trains on: a pure function, so nothing is counted."""

import zlib

import numpy as np

from model.train.config import Sampling
from pipelines.records.schema import Record


def choose_suffix(record: Record, how: Sampling, *, seed: int, visit: int, number: int) -> str:
    """Returns one of a record's suffixes.

    Source: big_vision `choice_no_replacement` (`pp/ops_general.py`); there a counter per record
    tells the visit, and is lost when a run is resumed.

    Args:
      record: what is visited.
      how: see `TrainConfig.sampling`.
      seed: of the run.
      visit: how often the record was visited before.
      number: of the example in the stream of examples.

    Raises:
      ValueError: if it has no suffix.
    """
    count = len(record.suffixes)
    if not count:
        raise ValueError(f"record {record.id!r} has no suffix; only evaluation can use it.")
    if count == 1:
        return record.suffixes[0]
    if how != "without_replacement":
        return record.suffixes[int(np.random.default_rng([seed, number]).integers(count))]
    walk, place = divmod(visit, count)
    entropy = [seed, zlib.crc32(record.id.encode()), walk]
    return record.suffixes[int(np.random.default_rng(entropy).permutation(count)[place])]
