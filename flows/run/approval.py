"""What a run that waits for approval shows: its plan, and the verdict on each step."""

import datetime

from flows.graph.explain import Explanation
from flows.plan.prepared import plan_data_of
from flows.report.markdown import plain


def approval_text(explanation: Explanation) -> str:
    """Returns the text shown above the form of a run that waits for approval: plan and verdicts."""
    config, table, expected = explanation.study, explanation.markdown(), {}
    above: list[str] = []
    if config.compute.topology is not None:
        from flows.plan.plan import PROGRAMS, plan_markdown, plan_of  # Which import JAX.

        data = plan_data_of(explanation)
        plan = plan_of(config, explanation.store.state / PROGRAMS, data, day=datetime.date.today())
        above, expected = [plan_markdown(plan), ""], data.expected
    lines = explanation.describe_storage(config.keep, expected)
    return "\n".join([*above, table, *(f"- {plain(line)}" for line in lines)])
