"""How far a long piece of work is: yielded by whatever does it, shown by whoever waits for it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a piece of work is.

    Attributes:
      done: units so far: updates, records, files.
      total: units in all.
      note: whatever is worth seeing beside them, such as the loss [text].
      loss: latest training loss; NaN where there is none.
      resumable: whether the scratch folder has just got a point to go on from.
    """

    done: int
    total: int
    note: str = ""
    loss: float = float("nan")
    resumable: bool = False
