"""What a run that waits for approval shows: its plan, and the verdict on each step."""

import datetime

from flows.config.study import StudyConfig
from flows.plan.prepared import plan_data_of
from flows.study.explain import Explanation
from infra.store.store import Store


def approval_text(config: StudyConfig, store: Store, explanation: Explanation) -> str:
    """Returns the text shown above the form of a run that waits for approval: plan and verdicts."""
    table, expected = explanation.markdown(), {}
    above: list[str] = []
    if config.compute.topology is not None:
        from flows.plan.plan import PROGRAMS, plan_markdown, plan_of  # Which import JAX.

        data = plan_data_of(config, store, explanation)
        plan = plan_of(config, store.state / PROGRAMS, data, day=datetime.date.today())
        above, expected = [plan_markdown(plan), ""], data.expected
    lines = explanation.describe_storage(config.keep, expected)
    return "\n".join([*above, table, *(f"- {line}" for line in lines)])
