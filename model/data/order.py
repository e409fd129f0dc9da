"""The order in which the records of a part are visited: a pure function of its size and a seed.

A part that fits one window is shuffled as a whole. Of a larger one, blocks of neighbours are
shuffled over all of it, and records within windows of many blocks, so that whoever reads needs few
blocks at a time and reads each once a pass:

    10 records, blocks of 3, windows of 2 blocks
    blocks   [6 7 8] [9] [0 1 2] [3 4 5]
    windows  [6 7 8 9 0 1] [2 3 4 5]
    visits   [9 1 6 0 8 7] [4 2 5 3]

A large batch is read by several hosts. So that each has blocks of its own, the shuffled blocks are
cut into as many stretches as there are *lanes*, each with windows of its own, and visits take
turns: visit v is the next one of lane v modulo lanes.

    two lanes [6 7 8 9 0] [1 2 3 4 5] with windows of 3 records
    visits    8 2 6 1 7 3 0 5 9 4

Every pass is shuffled anew.
"""

import functools
import itertools
from collections.abc import Iterator

import grain
import numpy as np
from grain.experimental import index_shuffle

WINDOW_BLOCKS = 128
"""Blocks of a window: 128 MB of records or less, see `pipelines.records.blocks`."""

_LANE_EXAMPLES = 32
"""Examples of a batch that a lane has at least: as many hosts as there are lanes may share it."""

_LANE_BLOCKS = 32
"""Blocks of a window of one lane among many; together they have a block open for every example of
the batch, so one of 31 companions of a block is expected in an example's batch."""

_ROUNDS = 4
"""Of the permutation, as grain's own shuffle has them."""


def lanes_of(batch_size: int) -> int:
    """Returns how many lanes the batches of a size are read in: a power of two that divides it."""
    lanes = 1
    while batch_size % (2 * lanes) == 0 and batch_size // (2 * lanes) >= _LANE_EXAMPLES:
        lanes *= 2
    return lanes


def window_len(block: int, lanes: int, window_blocks: int = WINDOW_BLOCKS) -> int:
    """Returns how many records a window of one lane has; the arguments are those of `Order`."""
    return block * max(min(_LANE_BLOCKS, window_blocks), window_blocks // lanes)


class Order:
    """The order of visits, each found without those before it.

    Args:
      length: of the part [records].
      block: neighbours that are read together [records].
      seed: of every pass, in [0, 2**32).
      lanes: see above.
      window_blocks: blocks of the windows of all lanes together, where lanes are few.
    """

    def __init__(
        self,
        length: int,
        block: int,
        seed: int,
        *,
        lanes: int = 1,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        self._length, self._block, self._seed, self._lanes = length, block, seed, lanes
        self._is_small = length <= block * window_blocks
        self._window = window_len(block, lanes, window_blocks)
        self._whole = grain.MapDataset.range(length).seed(seed).shuffle()
        self._drawn = functools.lru_cache(maxsize=4)(self._draw)

    def position(self, visit: int) -> int:
        """Returns which record the visit of a number is to; passes are `length` visits long."""
        if self._is_small:
            return int(self._whole[visit])  # type: ignore[arg-type]
        number, turn = divmod(visit, self._length)
        short_at, blocks_seed, windows_seed = self._drawn(number)
        place = self._place(turn, windows_seed)
        # The last block of the part may be a short one; the others change places around it.
        full, short = divmod(self._length, self._block)
        after = place - short_at * self._block
        if 0 <= after < short:
            return full * self._block + after
        block, offset = divmod(place - short if after >= short else place, self._block)
        block = index_shuffle(block, max_index=full - 1, seed=blocks_seed, rounds=_ROUNDS)
        return block * self._block + offset

    def visits(self, position: int) -> Iterator[int]:
        """Yields the visits to a record, one of every pass, for ever.

        A shuffle is undone by looking through what it shuffles: the blocks of a pass and the
        records of a window, not the visits before.
        """
        for number in itertools.count():
            yield number * self._length + self._turn(position, number)

    def _turn(self, position: int, number: int) -> int:
        """Returns which visit of a pass is to a record; `position` the other way round."""
        if self._is_small:
            turns = range(number * self._length, (number + 1) * self._length)
            return next(turn for turn in turns if self._whole[turn] == position) - turns.start
        short_at, blocks_seed, windows_seed = self._drawn(number)
        full, short = divmod(self._length, self._block)
        block, offset = divmod(position, self._block)
        if block == full:
            place = short_at * self._block + offset
        else:
            place = _unshuffled(block, full - 1, blocks_seed) * self._block + offset
            place += short if place >= short_at * self._block else 0
        each, more = divmod(self._length, self._lanes)
        longer = more * (each + 1)
        lane = place // (each + 1) if place < longer else more + (place - longer) // each
        start = lane * each + min(lane, more)
        window, inside = divmod(place - start, self._window)
        first, last, seed = self._shuffle_of(lane, window, windows_seed)
        return (first + _unshuffled(inside, last, seed)) * self._lanes + lane

    def _place(self, turn: int, windows_seed: int) -> int:
        """Returns the place in the shuffled blocks of a visit of one pass."""
        step, lane = divmod(turn, self._lanes)
        each, more = divmod(self._length, self._lanes)  # The first `more` lanes have one more.
        start = lane * each + min(lane, more)
        window, inside = divmod(step, self._window)
        first, last, seed = self._shuffle_of(lane, window, windows_seed)
        return start + first + index_shuffle(inside, max_index=last, seed=seed, rounds=_ROUNDS)

    def _shuffle_of(self, lane: int, window: int, windows_seed: int) -> tuple[int, int, int]:
        """Returns a window's first record in its lane, its last one from there, and its seed."""
        each, more = divmod(self._length, self._lanes)
        first = window * self._window
        last = min(self._window, each + (lane < more) - first) - 1
        return first, last, (windows_seed + lane * (each // self._window + 1) + window) % 2**32

    def _draw(self, number: int) -> tuple[int, int, int]:
        """Returns, for one pass, full blocks before the short one, and seeds of both shuffles."""
        drawn = np.random.SeedSequence([self._seed, number]).generate_state(3).tolist()
        return drawn[0] % (self._length // self._block + 1), drawn[1], drawn[2]


def _unshuffled(place: int, last: int, seed: int) -> int:
    """Returns what `index_shuffle` takes to a place in 0..last."""
    shuffled = (
        index_shuffle(index, max_index=last, seed=seed, rounds=_ROUNDS) for index in range(last + 1)
    )
    return next(index for index, found in enumerate(shuffled) if found == place)
