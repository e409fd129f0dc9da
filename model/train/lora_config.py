"""The configuration of low-rank adapters."""

import dataclasses
from typing import Literal, get_args

Matrix = Literal["query", "key", "value", "out", "gate", "up", "down"]
MATRICES: tuple[Matrix, ...] = get_args(Matrix)
"""The matrices of a decoder block."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: a frozen matrix W is trained as W + alpha / rank * A B.

    Source: LoRA, arXiv:2106.09685, section 4.1. The paper on PARCEL trains all weights instead.

    Attributes:
      rank: columns of A and rows of B.
      alpha: factor on the product, before it is divided by the rank.
      matrices: matrices of every decoder block that have adapters.
    """

    rank: int = 16
    alpha: float = 16.0
    matrices: tuple[Matrix, ...] = MATRICES

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank must be at least 1, got {self.rank!r}.")
        # Written with `not`, so that NaN is refused as well.
        if not 0 < self.alpha < float("inf"):
            raise ValueError(
                f"lora.alpha must be positive and finite, got {self.alpha!r}; lora.rank, "
                f"{self.rank}, leaves A B as it is."
            )
        unknown = [name for name in self.matrices if name not in MATRICES]
        is_set = len(set(self.matrices)) == len(self.matrices)
        if not self.matrices or unknown or not is_set:
            raise ValueError(
                f"lora.matrices must be distinct ones of {', '.join(MATRICES)}, got "
                f"{list(self.matrices)!r}; leave it out for all of them."
            )

    @property
    def scale(self) -> float:
        """The factor on A B."""
        return self.alpha / self.rank
