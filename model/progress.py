"""What long-running functions of this package yield while they work."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a function is.

    Attributes:
      step: units done so far.
      total: units in all.
      loss: latest training loss; NaN where there is none.
      seconds: time since the function was called [s].
      compile_seconds: of these, time spent compiling [s].
    """

    step: int
    total: int
    loss: float = float("nan")
    seconds: float = 0.0
    compile_seconds: float = 0.0
