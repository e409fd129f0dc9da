"""Which of a record's texts one visit trains on: a pure function, so nothing is counted."""

import zlib

import numpy as np

from pipelines.records.schema import Record, SuffixSampling

_PREFIX, _WORDS = 1, 2
"""Ends of the entropy of one example's draws, so that they do not draw alike; the suffix's has
none."""


def choose_texts(
    record: Record, how: SuffixSampling, *, seed: int, visit: int, number: int
) -> tuple[str, int]:
    """Returns a prefix, and which of the record's suffixes follows it.

    Of several prefixes of a suffix each draw takes any.

    Source: big_vision `choice_no_replacement` (`pp/ops_general.py`); there a counter per record
    tells the visit, and is lost when a run is resumed.

    Args:
      record: what is visited.
      how: see `TrainConfig.sampling`.
      seed: of texts (see `seeds`).
      visit: how often the record was visited before.
      number: of the example in the stream of examples.

    Raises:
      ValueError: if it has no suffix.
    """
    count = len(record.suffixes)
    if not count:
        raise ValueError(f"record {record.id!r} has no suffix; only evaluation can use it.")
    if how != "without_replacement" or count == 1:
        chosen = _any_of(count, seed, number)
    else:
        walk, place = divmod(visit, count)
        entropy = [seed, zlib.crc32(record.id.encode()), walk]
        chosen = int(np.random.default_rng(entropy).permutation(count)[place])
    prefixes = record.prefixes_of(chosen)
    return prefixes[_any_of(len(prefixes), seed, number, _PREFIX)], chosen


def words_generator(seed: int, number: int) -> np.random.Generator:
    """Returns the generator that drops words of an example's suffix (see `choose_texts`)."""
    return np.random.default_rng([seed, number, _WORDS])


def _any_of(count: int, *entropy: int) -> int:
    return int(np.random.default_rng(entropy).integers(count)) if count > 1 else 0
