"""The graph of a study as data: nodes, each of jobs, each of steps.

A *node* is what a person regards as one task: one row of the run's page, one Prefect task. Most
nodes make one artifact. A transfer makes a checkpoint, and for all its rows and budgets the
predictions and their scores:

    transfer parcel chartqa seed=48213
      job 1   checkpoint    transfer parcel chartqa seed=48213
      job 2   predictions   evaluate parcel chartqa:test_human seed=48213 budget=16
                            evaluate parcel chartqa:test_human seed=48213 budget=64  …
      job 3   scores        score parcel chartqa:test_human seed=48213 budget=16
                            score parcel chartqa:test_human seed=48213 budget=64  …
      job 4   cast          cast parcel chartqa seed=48213, with `keep.transfers: bfloat16`

What a stage's checkpoint is scored on without a transfer is a node for each method and pretraining,
with jobs 2 and 3: `zero-shot parcel seed=48213`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase

from flows.report.cells import CellKey
from flows.steps.kind import Step
from flows.steps.labels import Labels
from flows.study.study import StudyConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepJob:
    """Steps that run one after the other in one process.

    Attributes:
      steps: the steps; none reads the artifact of another one.
      cpus: cores on the cluster; 0 runs the steps in the study's own process.
      gpus: GPUs on the cluster, where it has any; below 1, several jobs share one.
      processes: number of processes that share a training, and its cores and GPUs.
      launcher: command that starts these processes on other hosts, each with as many cores and GPUs
        of its own; "" starts them on one machine.
      pieces: number of parallel jobs that share the items; above 1, their pieces are made first and
        this job puts them together.
    """

    steps: tuple[Step, ...]
    cpus: int = 0
    gpus: float = 0.0
    processes: int = 1
    launcher: str = ""
    pieces: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GraphNode:
    """One task, as a person sees it: one row of the run's page.

    Attributes:
      labels: those of its first step, unless it is of zero-shot scores.
      jobs: jobs in the order in which they run; a later one may read an earlier one's artifacts.
    """

    labels: Labels
    jobs: tuple[StepJob, ...]

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.labels.name

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every step, in order."""
        return tuple(step for job in self.jobs for step in job.steps)

    @property
    def needs_worker(self) -> bool:
        """Whether any of its jobs runs outside the study's own process."""
        return any(job.cpus for job in self.jobs)

    def matches(self, pattern: str) -> bool:
        """Whether a pattern, which may hold `*`, matches the name of the node or of its steps."""
        return any(
            fnmatchcase(name, pattern) for name in (self.name, *(s.name for s in self.steps))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyGraph:
    """The nodes of a study up to a phase; every node comes after those that it reads.

    Attributes:
      nodes: the nodes, each after those that it reads.
      cells: cell of the results table -> the step that scores it.
      results: the step that makes the table; None where the graph ends before the report.
      datasets: name of a dataset, as `datasets_of` has it -> the step that prepares it.
      study: the study; None for a graph of other steps.
    """

    nodes: tuple[GraphNode, ...]
    cells: Mapping[CellKey, Step]
    results: Step | None
    datasets: Mapping[str, Step] = dataclasses.field(default_factory=dict)
    study: StudyConfig | None = None

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every step, in order."""
        return tuple(step for node in self.nodes for step in node.steps)

    def without(self, steps: set[Step]) -> "StudyGraph":
        """Returns the graph without some steps, which are whole jobs and which no step reads."""
        nodes = []
        for node in self.nodes:
            jobs = tuple(job for job in node.jobs if not steps.issuperset(job.steps))
            nodes.append(node if jobs == node.jobs else dataclasses.replace(node, jobs=jobs))
        return dataclasses.replace(self, nodes=tuple(nodes))

    @functools.cached_property
    def owner(self) -> Mapping[Step, GraphNode]:
        """Step -> the node that makes it."""
        return {step: node for node in self.nodes for step in node.steps}

    @functools.cached_property
    def upstream(self) -> Mapping[GraphNode, tuple[GraphNode, ...]]:
        """Node -> the nodes whose artifacts it reads."""
        # By node, not by step: an evaluation reads the checkpoint of its own node, which is no
        # edge, and all evaluations of a node read the same dataset, which is one.
        return {
            node: tuple(
                dict.fromkeys(
                    self.owner[read]
                    for step in node.steps
                    for read in step.inputs.values()
                    if self.owner[read] is not node
                )
            )
            for node in self.nodes
        }
