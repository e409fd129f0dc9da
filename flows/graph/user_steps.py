"""Adds the steps of the user's own classes to the graph of a study."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from flows.config.user_step import load_user_step
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.steps.kind import Step
from flows.steps.kinds.user_step import Makes, NewStep, UserStepSpec
from flows.steps.labels import labels_of_user_step
from flows.steps.registry import KINDS, kind_of
from flows.study.study import StudyConfig
from infra.errors import ConfigError, did_you_mean


class _NoSuchStepError(KeyError):
    """A step that the graph does not have; the argument is its name."""


class _StepsByName(Mapping[str, Step]):
    """The steps of a graph, by name."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = {step.name: step for step in steps}

    def __getitem__(self, name: str) -> Step:
        if name not in self.steps:
            raise _NoSuchStepError(name)
        return self.steps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def add_user_steps(graph: StudyGraph, config: StudyConfig) -> StudyGraph:
    """Returns a study's graph with the steps that its `steps` add.

    Raises:
      ConfigError: if a class adds what is no step, takes a name that there is, reads a step that
        there is not, or cannot replace the one that it names.
    """
    for i, entry in enumerate(config.steps):
        reference, user_step = load_user_step(f"steps.{i}", entry)
        where = f"steps.{i}: {reference}"
        spec = UserStepSpec(step=reference, settings=entry.settings)
        steps = _StepsByName(graph.steps)
        try:
            # What a class adds may read what it added before, so each is added as it is yielded.
            for new in user_step.nodes(config, steps):
                step = _new_step(new, spec, steps, where, f"steps.{i}")
                graph = _with_step(graph, step, new, config, where)
                steps.steps = {step.name: step for step in graph.steps}
        except _NoSuchStepError as error:
            (name,) = error.args
            hint = did_you_mean(name, steps) or "; `--explain` lists all names."
            raise ConfigError(
                f"{where} must read steps that stand before it, got {name!r}{hint}"
            ) from None
        except ConfigError:
            raise
        except Exception as error:  # The class's own code may raise anything.
            message = " ".join(str(error).split())
            raise ConfigError(f"{where}.nodes raised {type(error).__name__}: {message}") from error
    return graph


def cut_graph(graph: StudyGraph, phase: StudyGraph) -> StudyGraph:
    """Returns the part of a graph with users' steps that belongs to a phase.

    Args:
      graph: the whole graph, with users' steps.
      phase: the study's graph up to the phase, without users' steps.
    """
    # The steps of the phase, and all that they read; and every step of a user's that reads no
    # others. A step of the phase may read, through a user's step, one of a later phase.
    wanted = {step.name for step in phase.steps}
    kept = set[Step]()
    for step in graph.steps:
        if step.name in wanted:
            kept |= _step_and_ancestors(step)
    for step in graph.steps:
        if isinstance(step.config, UserStepSpec) and kept.issuperset(step.inputs.values()):
            kept.add(step)
    nodes = []
    for node in graph.nodes:
        jobs = tuple(job for job in node.jobs if kept.issuperset(job.steps))
        nodes += [dataclasses.replace(node, jobs=jobs)] if jobs else []
    return StudyGraph(
        nodes=tuple(nodes),
        cells={cell: step for cell, step in graph.cells.items() if step in kept},
        results=graph.results if graph.results in kept else None,
        datasets={name: step for name, step in graph.datasets.items() if step in kept},
        study=graph.study,
    )


def _new_step(
    new: Any, spec: UserStepSpec, steps: Mapping[str, Step], where: str, key: str
) -> Step:
    if not isinstance(new, NewStep):
        raise ConfigError(f"{where}.nodes must yield NewStep, got {new!r:.60}.")
    if not new.name.strip():
        raise ConfigError(f"{where} must give its step a name, got {new.name!r}.")
    if new.name in [*steps]:
        raise ConfigError(
            f"{where} must give its step a name that is free, got {new.name!r}, which the study "
            f"has already."
        )
    if new.makes not in get_args(Makes):
        raise ConfigError(
            f"{where} must make one of {', '.join(get_args(Makes))}, got makes={new.makes!r}."
        )
    for role, read in new.inputs.items():
        if not isinstance(read, Step):
            raise ConfigError(
                f"{where} must have steps as inputs, got {read!r:.60} as {role!r}; take them from "
                f"`steps`, by name."
            )
    replaced = new.replaces
    if replaced is not None and kind_of(replaced).holds != new.makes:
        replaceable = ", ".join(k.name for k in KINDS.values() if k.holds == new.makes)
        raise ConfigError(
            f"{where} makes {new.makes!r}, which can replace a step of the kind {replaceable}, got "
            f"{replaced.name!r}, of the kind {replaced.kind}."
        )
    return Step(
        kind=f"user_{new.makes}",
        labels=labels_of_user_step(spec.step, new.name),
        config=spec,
        seed=new.seed,
        # By name: a class may hold a step as it was before another one was replaced below it.
        inputs={role: steps[read.name] for role, read in new.inputs.items()},
        keys={"": key},
    )


def _with_step(
    graph: StudyGraph, step: Step, new: NewStep, config: StudyConfig, where: str
) -> StudyGraph:
    """Returns a graph with a user's step, and with those that read it instead of another one."""
    compute = config.compute
    gpus = compute.gpus_of_cell if new.accelerator else 0.0
    job = StepJob(steps=(step,), cpus=compute.cpus_per_cell, gpus=gpus)
    nodes, renewed = [*graph.nodes], dict[Step, Step]()
    if new.replaces is not None:
        # Every step that reads the replaced one is renewed, and so is every step that reads these.
        # What the user's step is made from stays as it is: there would be a circle.
        #
        #   prepare web ─▶ dedup web ─▶ stage1, tokenizer, …
        replaced = next(s for s in graph.steps if s.name == new.replaces.name)
        renewed[replaced] = step
        ancestors = _step_and_ancestors(step)
        for reader in graph.steps:
            if reader not in ancestors and not renewed.keys().isdisjoint(reader.inputs.values()):
                inputs = {role: renewed.get(read, read) for role, read in reader.inputs.items()}
                renewed[reader] = dataclasses.replace(reader, inputs=inputs)
        if len(renewed) == 1:
            raise ConfigError(
                f"{where} must replace a step that others read, got {replaced.name!r}: nothing but "
                f"what {step.name!r} is made from does."
            )
        del renewed[replaced]
        if replaced not in ancestors:  # Nothing reads it any more.
            nodes = [node for node in nodes if replaced not in node.steps]
        nodes = [part for node in nodes for part in _split_node(node, replaced)]
    nodes.append(GraphNode(labels=step.labels, jobs=(job,)))
    return StudyGraph(
        nodes=_sort_graph_nodes([_renewed_node(node, renewed) for node in nodes]),
        cells={cell: renewed.get(scores, scores) for cell, scores in graph.cells.items()},
        results=graph.results and renewed.get(graph.results, graph.results),
        datasets=graph.datasets,
        study=graph.study,
    )


def _step_and_ancestors(step: Step) -> set[Step]:
    """Returns a step with all that it is made from, directly or not."""
    found, queue = {step}, [step]
    while queue:
        new = [read for read in queue.pop().inputs.values() if read not in found]
        found.update(new)
        queue += new
    return found


def _split_node(node: GraphNode, step: Step) -> Iterator[GraphNode]:
    """Yields a node; in two if it makes a step that other jobs of it read."""
    # A transfer whose checkpoint a user's step replaces: its evaluations wait for that step.
    first = tuple(job for job in node.jobs if step in job.steps)
    rest = tuple(job for job in node.jobs if step not in job.steps)
    if not (first and rest):
        yield node
        return
    yield dataclasses.replace(node, jobs=first)
    yield GraphNode(labels=rest[0].steps[0].labels, jobs=rest)


def _renewed_node(node: GraphNode, renewed: Mapping[Step, Step]) -> GraphNode:
    if renewed.keys().isdisjoint(node.steps):
        return node
    jobs = tuple(
        dataclasses.replace(job, steps=tuple(renewed.get(step, step) for step in job.steps))
        for job in node.jobs
    )
    return dataclasses.replace(node, jobs=jobs)


def _sort_graph_nodes(nodes: Sequence[GraphNode]) -> tuple[GraphNode, ...]:
    """Returns the nodes, each after those that it reads, and else in the order that they had."""
    upstream = StudyGraph(nodes=tuple(nodes), cells={}, results=None).upstream
    ordered: dict[GraphNode, None] = {}

    def add(node: GraphNode) -> None:
        for read in upstream[node]:
            if read not in ordered:
                add(read)
        ordered[node] = None

    for node in nodes:
        if node not in ordered:
            add(node)
    return tuple(ordered)
