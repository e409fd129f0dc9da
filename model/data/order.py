"""The order in which the records of a part are visited: a pure function of its size and a seed.

A part that fits one window is shuffled as a whole. Of a larger one, blocks of neighbours are
shuffled over all of it, and records within windows of many blocks, so that whoever reads needs few
blocks at a time and reads each once a pass:

    10 records, blocks of 3, windows of 2 blocks
    blocks   [6 7 8] [9] [0 1 2] [3 4 5]
    windows  [6 7 8 9 0 1] [2 3 4 5]
    visits   [9 1 6 0 8 7] [4 2 5 3]

Every pass is shuffled anew.
"""

import functools

import grain
import numpy as np
from grain.experimental import index_shuffle

WINDOW_BLOCKS = 128
"""Blocks of a window: 128 MB of records or less, see `pipelines.records.blocks`."""

_ROUNDS = 4
"""Of the permutation, as grain's own shuffle has them."""


class Order:
    """The order of visits, each found without those before it.

    Args:
      length: of the part [records].
      block: neighbours that are read together [records].
      seed: of every pass, in [0, 2**32).
      window_blocks: blocks of a window.
    """

    def __init__(
        self, length: int, block: int, seed: int, *, window_blocks: int = WINDOW_BLOCKS
    ) -> None:
        self._length, self._block, self._seed = length, block, seed
        self._window = block * window_blocks
        self._whole = grain.MapDataset.range(length).seed(seed).shuffle()
        self._drawn = functools.lru_cache(maxsize=4)(self._draw)

    def position(self, visit: int) -> int:
        """Returns which record the visit of a number is to; passes are `length` visits long."""
        if self._length <= self._window:
            return int(self._whole[visit])  # type: ignore[arg-type]
        number, place = divmod(visit, self._length)
        short_at, blocks_seed, windows_seed = self._drawn(number)
        window, inside = divmod(place, self._window)
        first = window * self._window
        last = min(self._window, self._length - first) - 1
        seed = (windows_seed + window) % 2**32
        place = first + index_shuffle(inside, max_index=last, seed=seed, rounds=_ROUNDS)
        # The last block of the part may be a short one; the others change places around it.
        full, short = divmod(self._length, self._block)
        after = place - short_at * self._block
        if 0 <= after < short:
            return full * self._block + after
        block, offset = divmod(place - short if after >= short else place, self._block)
        block = index_shuffle(block, max_index=full - 1, seed=blocks_seed, rounds=_ROUNDS)
        return block * self._block + offset

    def _draw(self, number: int) -> tuple[int, int, int]:
        """Returns, for one pass, full blocks before the short one, and seeds of both shuffles."""
        drawn = np.random.SeedSequence([self._seed, number]).generate_state(3).tolist()
        return drawn[0] % (self._length // self._block + 1), drawn[1], drawn[2]
