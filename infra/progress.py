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
      resumable: whether there is a new point to go on from; what lies in the scratch folder with it
        is copied to a store elsewhere.
      happened: whether the note tells of something that happened, such as the loss of a worker.
    """

    done: int
    total: int
    note: str = ""
    loss: float = float("nan")
    resumable: bool = False
    happened: bool = False
