"""Writes the lines of a run's log, for people who look at the run's page later.

    42 steps, 9 of them there already; to make: prepare 2, intermediary 3, transfer 24 and 4 others
    intermediary parcel begins, with 100 updates of 32 examples; others like it took 41 s
    intermediary parcel: compiles
    intermediary parcel: 60 of 100, loss 2.31
    intermediary parcel: made in 39.8 s: steps 100
    33 made, 9 reused, in 4 min 10 s; the table is results-59ca…

Reused steps get no line: a study of thousands of steps may reuse most of them.
"""

import collections
from collections.abc import Callable, Collection, Sequence

from flows.graph.nodes import GraphNode, StudyGraph
from flows.report.durations import duration_text
from flows.report.text_lists import counted
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.scores import ScoreSpec
from infra.progress import Progress

LINE_EVERY = 60.0
"""Interval between two lines about one running step [s]."""
_MAX_NAMES = 5
"""Most sorts of steps that the first line names; the others are only counted."""


def opening_line(
    graph: StudyGraph,
    reused: Collection[GraphNode],
    is_made: Callable[[Step], bool] = lambda _: False,
) -> str:
    """Returns the first line: how many steps there are, and how many of each sort to make.

    Args:
      graph: the study's graph.
      reused: nodes of which nothing is to be made.
      is_made: whether a step of another node is there already: of a transfer that is only scored
        again, the scores are what is made.
    """
    total_text = f"{counted(len(graph.nodes), 'step')}, "
    total_text += f"{len(reused)} of them there already" if reused else "none of them there"
    firsts = [
        next((step for step in node.steps if not is_made(step)), node)
        for node in graph.nodes
        if node not in reused
    ]
    missing = [first.labels.action for first in firsts]
    if not missing:
        return f"{total_text}: nothing is to be made"
    sorts = collections.Counter(missing)
    sorts_text = ", ".join(f"{sort} {count}" for sort, count in list(sorts.items())[:_MAX_NAMES])
    others = sum(list(sorts.values())[_MAX_NAMES:])
    return f"{total_text}; to make: {sorts_text}{f' and {others} others' if others else ''}"


def beginning_line(node: GraphNode, steps: Sequence[Step], seconds: float | None) -> str:
    """Returns the line for a node that begins, with the work that it will do.

    Args:
      node: the node.
      steps: its steps that are not there yet.
      seconds: its estimated time, from similar nodes; None where there were none [s].
    """
    estimate_text = f"; others like it took {duration_text(seconds)}" if seconds else ""
    return f"{node.name} begins{describe_work(steps)}{estimate_text}"


def describe_work(steps: Sequence[Step]) -> str:
    """Returns the work that makes steps, as ", with 900 updates of 32 examples"."""
    work = ""
    for step in steps:
        if isinstance(step.config, FitSpec):
            train = step.config.train
            work = f", with {train.total_steps:,} updates of {train.batch_size:,} examples"
    num_evaluations = sum(isinstance(step.config, EvaluateSpec) for step in steps)
    num_scores = sum(isinstance(step.config, ScoreSpec) for step in steps)
    if num_evaluations:
        count = counted(num_evaluations, "evaluation")
        return f"{work} and {count}" if work else f", with {count} and no training"
    if num_scores and not work:
        return f", with {counted(num_scores, 'score')} of answers that are there, and no training"
    return work


def progress_line(name: str, progress: Progress) -> str:
    """Returns a line on the progress of a step."""
    note = f", {progress.note}" if progress.note else ""
    return f"{name}: {progress.done:,} of {progress.total:,}{note}"


def closing_line(summary: str, failed: Sequence[str], seconds: float, results: str | None) -> str:
    """Returns the last line, on the outcome of the run.

    Args:
      summary: what was made, in words.
      failed: "step: reason" for each step that failed.
      seconds: time that the run took [s].
      results: key of the results artifact; None where there is none.
    """
    wrong = f"; {failed[0]}" if failed else ""
    table = f"; the table is {results}" if results else ""
    return f"{summary}, in {duration_text(seconds)}{wrong}{table}"
