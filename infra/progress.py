"""The progress of long work: yielded by the code that does it, shown by the code that waits."""

import dataclasses

COMPILING = "compiles"
"""Note of work whose programs are being compiled, before the next of its units is done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a piece of work.

    Attributes:
      done: number of units done so far: updates, records, files.
      total: number of all units.
      note: text to show beside them, such as the loss.
      loss: latest training loss; NaN where there is none.
      resumable: whether a new state to resume from was saved; the scratch folder is then copied to
        the store if that is elsewhere.
      happened: whether the note reports an event, such as the loss of a worker.
      devices: number of devices that compute, where other processes than the reader's do; 0 if
        they do not say.
    """

    done: int
    total: int
    note: str = ""
    loss: float = float("nan")
    resumable: bool = False
    happened: bool = False
    devices: int = 0
