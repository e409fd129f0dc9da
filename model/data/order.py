"""The order in which the records of a part are visited: a pure function of its size and a seed.

A part that fits one window is shuffled as a whole. In a larger one, blocks of neighbours are
shuffled over the whole part, then records within windows of many blocks. A reader thus needs few
blocks at a time, and reads each block once per pass:

    10 records, blocks of 3, windows of 2 blocks
    blocks   [6 7 8] [9] [0 1 2] [3 4 5]
    windows  [6 7 8 9 0 1] [2 3 4 5]
    visits   [9 1 6 0 8 7] [4 2 5 3]

A large batch is read by several hosts. So that hosts read different blocks, the sequence of
shuffled blocks is cut into stretches of equal length, the *lanes*, each with its own windows. Lanes
take turns: visit v is the next visit of lane v modulo the number of lanes.

    two lanes [6 7 8 9 0] [1 2 3 4 5] with windows of 3 records
    visits    8 2 6 1 7 3 0 5 9 4

Every pass has its own shuffle.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int

from model.data.shuffle import shuffled, unshuffled

WINDOW_BLOCKS = 128
"""Blocks per window: 128 MB of records or less, see `pipelines.records.blocks`."""

_LANE_EXAMPLES = 32
"""Fewest examples of a batch per lane; as many hosts as there are lanes may share the batch."""

_LANE_BLOCKS = 32
"""Blocks per window of a lane, if there are many lanes. All lanes together then have a block open
for every example of the batch, so of the 31 other examples of its lane in the batch, about one is
expected to come from the same block as an example."""

_MAX_PASSES = 4096
"""Most passes in which a record is looked for at a time; arrays then have 32 kB."""


def lanes_of(batch_size: int) -> int:
    """Returns the number of lanes for batches of a size: a power of two that divides the size."""
    lanes = 1
    while batch_size % (2 * lanes) == 0 and batch_size // (2 * lanes) >= _LANE_EXAMPLES:
        lanes *= 2
    return lanes


def window_len(block: int, lanes: int, window_blocks: int = WINDOW_BLOCKS) -> int:
    """Returns how many records a window of one lane has; the arguments are those of `Order`."""
    return block * max(min(_LANE_BLOCKS, window_blocks), window_blocks // lanes)


class Order:
    """The order of visits; any visit is found without computing those before it.

    Args:
      length: length of the part [records].
      block: number of neighbours that are read together [records].
      seed: seed of the shuffles of all passes, in [0, 2**32).
      lanes: number of lanes; see the module's docstring.
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
        # The seed that `grain.MapDataset.range(length).seed(seed).shuffle()` uses.
        self._grain_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
        self._cached_draw = functools.lru_cache(maxsize=4)(self._draw_shuffle_seeds)
        # Room for all blocks that are open at a time, so that the place of each is computed once,
        # not once for every record.
        open_blocks = lanes * (self._window // block + 1)
        self._shuffled = functools.lru_cache(maxsize=2 * open_blocks)(self._shuffle_block)

    def position(self, visit: int) -> int:
        """Returns the index of the record that a visit reads; a pass is `length` visits long."""
        number, turn = divmod(visit, self._length)
        if self._is_small:
            seed = (self._grain_seed + number) % 2**32
            return shuffled(turn, self._length - 1, seed)
        return self._at_place(number, self._place_among_blocks(turn, self._cached_draw(number)[2]))[
            0
        ]

    def _at_place(self, number: int, place: int) -> tuple[int, int]:
        """Returns the record at a place in the shuffled blocks of a pass, and how many follow it.

        Those that follow are its neighbours in its block, at the next places.
        """
        short_at, blocks_seed, _ = self._cached_draw(number)
        # The part's last block may be short. A pass puts it after `short_at` full blocks and
        # shuffles the full ones around it.
        full, short = divmod(self._length, self._block)
        past_short = place - short_at * self._block
        if 0 <= past_short < short:
            return full * self._block + past_short, short - past_short - 1
        block, offset = divmod(place - short if past_short >= short else place, self._block)
        first = self._shuffled(block, blocks_seed) * self._block
        return first + offset, self._block - offset - 1

    def visit_counts(self, num_visits: int) -> Int[np.ndarray, " N"]:
        """Returns how often each record is read by the first visits.

        It takes a step per block, and one per visit only for the windows that are not complete.
        """
        number, turns = divmod(num_visits, self._length)
        counts = np.full(self._length, number, np.int32)
        if self._is_small:
            for turn in range(turns):
                counts[self.position(number * self._length + turn)] += 1
            return counts
        # A complete window has read all its places, in whatever order:
        #
        #     lane 0   [complete] [complete] [in progress …
        #     lane 1   [complete] [complete] [in progress …
        lane_len, more = divmod(self._length, self._lanes)
        for lane in range(self._lanes):
            steps = turns // self._lanes + (lane < turns % self._lanes)
            in_windows = steps // self._window * self._window
            place = start = lane * lane_len + min(lane, more)
            while place < start + in_windows:
                position, following = self._at_place(number, place)
                num = min(following + 1, start + in_windows - place)
                counts[position : position + num] += 1
                place += num
            for step in range(in_windows, steps):
                turn = step * self._lanes + lane
                counts[self.position(number * self._length + turn)] += 1
        return counts

    def visits(self, position: int) -> Iterator[int]:
        """Yields the numbers of the visits to a record, one per pass, without end."""
        first, count = 0, 1
        while True:
            passes = np.arange(first, first + count)
            yield from (
                passes * self._length + self._record_visit_by_pass(position, passes)
            ).tolist()
            first, count = first + count, min(2 * count, _MAX_PASSES)

    def _record_visit_by_pass(
        self, position: int, passes: Int[np.ndarray, " N"]
    ) -> Int[np.ndarray, " N"]:
        """Returns, for each pass, the visit that reads a record; the inverse of `position`."""

        def unshuffled_places(places: Any, lasts: Any, seeds: np.ndarray) -> np.ndarray:
            places, lasts, seeds = np.broadcast_arrays(places, lasts, seeds % 2**32)
            return unshuffled(places, lasts, seeds)

        if self._is_small:
            return unshuffled_places(position, self._length - 1, self._grain_seed + passes)
        # Undoes `position` from its end: the block's place, then lane and window, then the turn.
        draws = [self._draw_shuffle_seeds(number) for number in passes.tolist()]
        short_at, blocks_seed, windows_seed = np.array(draws, np.int64).T
        full, short = divmod(self._length, self._block)
        block, offset = divmod(position, self._block)
        if block == full:
            place = short_at * self._block + offset
        else:
            place = unshuffled_places(block, full - 1, blocks_seed) * self._block + offset
            place += np.where(place >= short_at * self._block, short, 0)
        # Lanes differ in length by at most one record: 14 records in 4 lanes are 4 4 3 3. Places
        # below `longer` are in a lane with one more.
        lane_len, more = divmod(self._length, self._lanes)
        longer = more * (lane_len + 1)
        lane = np.where(
            place < longer, place // (lane_len + 1), more + (place - longer) // max(lane_len, 1)
        )
        start = lane * lane_len + np.minimum(lane, more)
        window, inside = np.divmod(place - start, self._window)
        shuffles = zip(lane.tolist(), window.tolist(), windows_seed.tolist(), strict=True)
        first, last, seed = np.array(
            [self._shuffle_of(*shuffle) for shuffle in shuffles], np.int64
        ).T
        return (first + unshuffled_places(inside, last, seed)) * self._lanes + lane

    def _place_among_blocks(self, turn: int, windows_seed: int) -> int:
        """Returns a visit's place in the sequence of shuffled blocks of its pass."""
        step, lane = divmod(turn, self._lanes)
        lane_len, more = divmod(self._length, self._lanes)  # The first `more` lanes have one more.
        # Visits 0 1 2 3 4 … of two lanes are steps 0 0 1 1 2 … of lanes 0 1 0 1 0 …
        start = lane * lane_len + min(lane, more)
        window, inside = divmod(step, self._window)
        first, last, seed = self._shuffle_of(lane, window, windows_seed)
        return start + first + shuffled(inside, last, seed)

    def _shuffle_of(self, lane: int, window: int, windows_seed: int) -> tuple[int, int, int]:
        """Returns a window's start in its lane, its last index counted from there, and its seed."""
        lane_len, more = divmod(self._length, self._lanes)
        first = window * self._window
        last = min(self._window, lane_len + (lane < more) - first) - 1
        return first, last, (windows_seed + lane * (lane_len // self._window + 1) + window) % 2**32

    def _shuffle_block(self, block: int, seed: int) -> int:
        """Returns which full block of the part comes at place `block` in one pass."""
        last = self._length // self._block - 1
        return shuffled(block, last, seed)

    def _draw_shuffle_seeds(self, number: int) -> tuple[int, int, int]:
        """Returns, for one pass, the full blocks before the short one, and both shuffles' seeds."""
        numbers = np.random.SeedSequence([self._seed, number]).generate_state(3).tolist()
        return numbers[0] % (self._length // self._block + 1), numbers[1], numbers[2]
