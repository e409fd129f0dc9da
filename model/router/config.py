"""How the budget of an input is chosen, as configuration: no JAX comes with it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """A head that says the least budget that is enough for an input.

    Attributes:
      epsilon: a budget is enough if the suffix's loss is at most so far above that of the largest
        budget [nats per token].
      threshold: a budget is passed over if the chance that it is not enough is above this; 0 takes
        the largest budget always, 1 the least.
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
