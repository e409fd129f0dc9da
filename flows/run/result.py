"""The outcome of a run of a study."""

import dataclasses
from collections.abc import Mapping

from flows.lookup.runs import RunOutcome, describe_ends
from flows.run.retry_policy import GIVEN_UP, NOT_FAILED
from flows.study.study import StudyConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The outcome of a run of a study.

    Attributes:
      results: key of the results artifact; None where the run stopped before the report.
      failed: "node: reason" for each node that failed.
      made: number of nodes that the run made.
      reused: number of nodes that it reused.
      outcome: how the run ended, in a word or two.
      run: full name of the run's record.
      flow_run_id: id of the Prefect flow run.
      holds: name of a node that was not run -> why; a later run begins it.
      config: the study.
      disk_use: a line on the size of its artifacts.
    """

    results: str | None
    failed: tuple[str, ...]
    made: int
    reused: int
    outcome: RunOutcome
    run: str
    flow_run_id: str
    holds: Mapping[str, str]
    config: StudyConfig
    disk_use: str

    def followed_by(self, later: "StudyResult") -> "StudyResult":
        """Returns the outcome of this run and a wider study's after it, counted as one run."""
        # The later study holds the earlier one: what the first made is reused by the second, so
        # only what was made adds up.
        return dataclasses.replace(later, made=self.made + later.made)

    @property
    def nodes_by_hold_reason(self) -> dict[str, list[str]]:
        """Reason for not running nodes -> names of these nodes."""
        nodes_by_reason: dict[str, list[str]] = {}
        for node, why in self.holds.items():
            nodes_by_reason.setdefault(why, []).append(node)
        return nodes_by_reason

    @property
    def is_success(self) -> bool:
        """Whether nothing failed and what was not run only waits for its turn."""
        lasting = (GIVEN_UP, NOT_FAILED)
        return not self.failed and not any(why in lasting for why in self.holds.values())

    @property
    def summary(self) -> str:
        """Summary of the outcome, in one line."""
        made_text = f"{self.made} made" if self.made else "nothing made"
        counts = [f"{self.outcome}: {made_text}", f"{self.reused} reused"]
        counts += [describe_ends(self.failed, (), cause=False)] * bool(self.failed)
        counts += [
            f"{len(nodes)} not run, {why}" for why, nodes in self.nodes_by_hold_reason.items()
        ]
        return ", ".join(counts)

    @property
    def why(self) -> str:
        """Reason why the run failed, in one line; "" if it did not."""
        return describe_ends(self.failed, self.holds) if self.failed else ""
