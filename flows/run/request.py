"""What a person asks of a run, by a command, a notebook or a form."""

import dataclasses
import re

from flows.graph.graph import Phase
from flows.run.limits import ALWAYS, SweepLimits
from flows.study.study import StudyConfig
from infra.errors import ConfigError


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
      tags: words by which the run is found among others; like the note no part of any identity.
      note: what a person wants to remember of the run.

    Raises:
      ConfigError: if a tag is no single word.
    """

    config: StudyConfig
    until: Phase = "report"
    rebuild: tuple[str, ...] = ()
    approve: bool = False
    failed: bool = False
    limits: SweepLimits = ALWAYS
    tags: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not re.fullmatch(r"[^\s,]{1,60}", tag):
                raise ConfigError(
                    f"tag must be one word of at most 60 characters, without commas, got {tag!r}; "
                    f"give several as several tags, and sentences as a note."
                )
