"""The seeds of a stage: one for each thing that is drawn at random.

| purpose | what it controls                                                                      |
|---------|---------------------------------------------------------------------------------------|
| init    | fresh parameters: all of a first stage's, those of a new connector in a later one      |
| order   | the order of the examples: how each part is shuffled, on every pass over it            |
| texts   | which prefix and suffix a visit takes, and which words of a long "ocr" suffix it drops |
| budget  | soft tokens per image of each update                                                  |
| dropout | which elements each update drops                                                      |

Changing one seed changes nothing else: two runs that differ in `budget` alone start from the same
parameters and see the same examples in the same order.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np

Purpose = Literal["init", "order", "texts", "budget", "dropout"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def seed_of(seed: int, purpose: Purpose) -> int:
    """Returns the seed of one purpose, in 0 ... 2**32 - 1.

    Seeds of different purposes, and those of neighbouring stages, are unrelated: NumPy's
    `SeedSequence` mixes every bit of seed and purpose into every bit of the result.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose),))
    return int(sequence.generate_state(1)[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeds:
    """The seeds of one stage; see the table above."""

    init: int
    order: int
    texts: int
    budget: int
    dropout: int

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        """Returns the seeds of all purposes, derived from a stage's one seed."""
        return cls(**{purpose: seed_of(seed, purpose) for purpose in PURPOSES})
