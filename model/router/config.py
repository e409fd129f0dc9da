"""Settings of the router, which chooses an input's budget; they do not import JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """Settings of a head that predicts the least budget that is enough for an input.

    Attributes:
      epsilon: a budget is enough if the suffix's loss exceeds that at the largest budget by at most
        this [nats per token].
      threshold: a budget is skipped if the probability that it is not enough is above this; 0
        always takes the largest budget, 1 the least.
    """

    epsilon: float = 0.05
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be at least 0 [nats per token], got {self.epsilon}.")
        check_threshold(self.threshold)


def check_threshold(threshold: float) -> None:
    """Raises ValueError unless a threshold is a probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a probability in [0, 1], got {threshold}.")
