"""Writes the lines of a run's log, for people who look at the run's page later.

    42 steps, 9 of them there already; to make: prepare 2, intermediary 3, transfer 24 and 4 others
    intermediary parcel begins, with 100 updates of 32 examples; others like it took 41 s
    intermediary parcel: compiles
    intermediary parcel: 60 of 100, loss 2.31
    intermediary parcel: made in 39.8 s: steps 100
    33 made, 9 re-used, in 4 min 10 s; the table is results-59ca…

Re-used steps get no line: a study of thousands of steps may re-use most of them.
"""

import collections
from collections.abc import Collection

from flows.report.durations import duration_text
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.study.nodes import GraphNode, StudyGraph
from infra.progress import Progress

LINE_EVERY = 60.0
"""Interval between two lines about one running step [s]."""
_MAX_NAMES = 5
"""Most sorts of steps that the first line names; the others are only counted."""


def opening_line(graph: StudyGraph, reused: Collection[GraphNode]) -> str:
    """Returns the first line: how many steps there are, and how many of each sort to make."""
    total_text = f"{len(graph.nodes)} steps, "
    total_text += f"{len(reused)} of them there already" if reused else "none of them there"
    missing = [node.name.partition(" ")[0] for node in graph.nodes if node not in reused]
    if not missing:
        return f"{total_text}: nothing is to be made"
    sorts = collections.Counter(missing)
    sorts_text = ", ".join(f"{sort} {count}" for sort, count in list(sorts.items())[:_MAX_NAMES])
    others = sum(list(sorts.values())[_MAX_NAMES:])
    return f"{total_text}; to make: {sorts_text}{f' and {others} others' if others else ''}"


def beginning_line(node: GraphNode, seconds: float | None) -> str:
    """Returns the line for a node that begins, with the work that it will do.

    Args:
      node: the node.
      seconds: its estimated time, from similar nodes; None where there were none [s].
    """
    work = ""
    for step in node.steps:
        if isinstance(step.config, FitSpec):
            train = step.config.train
            work = f", with {train.total_steps:,} updates of {train.batch_size:,} examples"
    num_evaluations = sum(isinstance(step.config, EvaluateSpec) for step in node.steps)
    scored = (
        f"{' and' if work else ', with'} {num_evaluations} evaluation{'s'[: num_evaluations != 1]}"
    )
    estimate_text = f"; others like it took {duration_text(seconds)}" if seconds else ""
    return f"{node.name} begins{work}{scored if num_evaluations else ''}{estimate_text}"


def progress_line(name: str, progress: Progress) -> str:
    """Returns a line on the progress of a step."""
    note = f", {progress.note}" if progress.note else ""
    return f"{name}: {progress.done:,} of {progress.total:,}{note}"


def closing_line(summary: str, failed: Collection[str], seconds: float, results: str | None) -> str:
    """Returns the last line, on the outcome of the run.

    Args:
      summary: what was made, in words.
      failed: "step: reason" for each step that failed.
      seconds: time that the run took [s].
      results: key of the results artifact; None where there is none.
    """
    wrong = f"; {len(failed)} failed, such as {next(iter(failed))}" if failed else ""
    table = f"; the table is {results}" if results else ""
    return f"{summary}, in {duration_text(seconds)}{wrong}{table}"
