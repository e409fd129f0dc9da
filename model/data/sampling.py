"""The choice of a record's texts and frames for one visit: pure functions, without counters."""

import zlib

import numpy as np

from pipelines.records.schema import Record, SuffixSampling

_PREFIX, _WORDS, _WINDOW = 1, 2, 3
"""Last number of the entropy of each kind of draw, so that the kinds draw independently; draws of a
suffix have none."""


def choose_texts(
    record: Record, sampling: SuffixSampling, *, seed: int, visit: int, number: int
) -> tuple[str, int]:
    """Returns a prefix, and which of the record's suffixes follows it.

    If a suffix has several prefixes, every visit draws one of them independently.

    Source: big_vision `choice_no_replacement` (`pp/ops_general.py`); there a counter per record
    knows the visit, and is lost when a run is resumed.

    Args:
      record: the record that is visited.
      sampling: see `TrainConfig.sampling`.
      seed: seed of texts (see `seeds`).
      visit: how often the record was visited before.
      number: index of the example in the stream of examples.

    Raises:
      ValueError: if the record has no suffix.
    """
    count = len(record.suffixes)
    if not count:
        raise ValueError(f"record {record.id!r} has no suffix; only evaluation can use it.")
    if sampling != "without_replacement" or count == 1:
        suffix_number = _random_index(count, seed, number)
    else:
        suffix_number = _index_in_walk(record, count, seed, visit)
    prefixes = record.prefixes_of(suffix_number)
    return prefixes[_random_index(len(prefixes), seed, number, _PREFIX)], suffix_number


def choose_window(record: Record, *, seed: int, visit: int) -> int:
    """Returns which window of a video one visit uses; each is used once before any repeats.

    Args:
      record: the record that is visited.
      seed: seed of texts (see `seeds`).
      visit: how often the record was visited before.
    """
    return _index_in_walk(record, record.num_windows, seed, visit, _WINDOW)


def words_generator(seed: int, number: int) -> np.random.Generator:
    """Returns the generator that drops words of an example's suffix (see `choose_texts`)."""
    return np.random.default_rng([seed, number, _WORDS])


def _index_in_walk(record: Record, count: int, seed: int, visit: int, *entropy: int) -> int:
    """Returns which of `count` items a visit takes; every `count` visits take each item once."""
    if count == 1:
        return 0
    # Three items: visits 0 1 2 are walk 0, visits 3 4 5 are walk 1, each in an order of its own,
    # such as b a c | c a b. The record's id makes orders of different records independent.
    walk, place = divmod(visit, count)
    rng = np.random.default_rng([seed, zlib.crc32(record.id.encode()), walk, *entropy])
    return int(rng.permutation(count)[place])


def _random_index(count: int, *entropy: int) -> int:
    return int(np.random.default_rng(entropy).integers(count)) if count > 1 else 0
