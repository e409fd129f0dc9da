"""What a person asks of a run, by a command, a notebook or a form."""

import dataclasses

from flows.graph.graph import Phase
from flows.run.limits import ALWAYS, SweepLimits
from flows.study.study import StudyConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is asked to do.

    Attributes:
      config: the study; of a sweep, the widest one.
      until: the last phase to run.
      rebuild: steps to make again at any cost if their code has changed; may hold `*`.
      approve: wait for somebody's approval in the UI before anything is made.
      failed: run only the steps that failed in the last run of the study, and what they need.
      limits: when steps may begin, and how much work they may do.
    """

    config: StudyConfig
    until: Phase = "report"
    rebuild: tuple[str, ...] = ()
    approve: bool = False
    failed: bool = False
    limits: SweepLimits = ALWAYS
