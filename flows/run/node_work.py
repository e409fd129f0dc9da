"""The work of a node: its artifacts are found in the store, or made by workers."""

import contextvars
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, cast

from prefect.runtime import flow_run, task_run

from flows.graph.nodes import GraphNode, StepJob
from flows.pages.lineage_page import page as lineage_page
from flows.pages.links import page_key
from flows.run.job_progress import JobProgress
from flows.run.limits import NodeHeldError
from flows.run.repair import repair_inputs
from flows.run.session import InputFailedError, RunSession, StepFailedError
from flows.steps import worker
from flows.steps.kind import Step
from flows.steps.registry import kind_of
from flows.steps.step_lookup import StepLookup
from flows.steps.workers import AlreadyRunning
from infra.prefect.page_queue import UIPage
from infra.store.digest_check import DamagedArtifactError
from infra.store.manifest import Recipe
from infra.store.store import Artifact

Outcome = Literal["made", "reused"]


class Work(Protocol):
    """Finds or makes the artifacts of nodes."""

    def find(self, node: GraphNode) -> bool:
        """Finds the artifacts of a node that were there at the start; returns whether all are."""
        ...

    def make(self, node: GraphNode) -> Outcome:
        """Makes or finds every artifact of a node.

        If a step fails, the artifacts of the other steps of its job are kept.

        Raises:
          StepFailedError: if a step failed.
          NodeHeldError: if none did, but some lack an input, or may not begin.
          RayWorkerLostError: if a worker died; the next call finds what it had committed.
        """
        ...

    def describe(self, node: GraphNode, outcome: Outcome) -> tuple[str, float]:
        """Returns the counts of what was made or found, in words, and the time of the work [s]."""
        ...


class NodeWork:
    """Finds or makes the artifacts of the nodes of a run.

    Args:
      session: state of the run, which gets the artifacts.
    """

    def __init__(self, session: RunSession) -> None:
        self._session = session

    def find(self, node: GraphNode) -> bool:
        """See `Work.find`."""
        session = self._session
        if session.rebuilds(node):
            return False
        # All steps of a node, or none: they are gathered here first, in order, so that an
        # evaluation finds the checkpoint of its own node among them.
        artifacts: dict[Step, Artifact] = {}
        found_before = session.artifacts
        try:
            for step in node.steps:
                if any(s not in artifacts and s not in found_before for s in step.inputs.values()):
                    return False
                key = session.expected_keys[step]
                # A pruned checkpoint is still found: its manifest says what it was.
                artifact = session.view.find(key) or session.view.find_pruned(key)
                if artifact is None or self._is_damaged_table(node, step, artifact):
                    return False
                artifacts[step] = artifact
        except (OSError, ValueError):
            return False
        session.artifacts.update(artifacts)
        session.accepted.update(artifacts.keys() & session.accepted_at_start)
        return True

    def make(self, node: GraphNode) -> Outcome:
        """See `Work.make`."""
        # Job by job, since a later job reads what an earlier one made. What is missing goes to one
        # worker in one call, which makes together what it can.
        session, outcome = self._session, cast(Outcome, "reused")
        repaired, jobs = {*session.repaired}, [*node.jobs]
        while jobs:
            job = jobs.pop(0)
            missing, keys, errors, blocked = self._look_up_job(node, job)
            ends: dict[str, worker.StepOutcome] = {}
            try:
                if missing:
                    # A table of the results so far always passes the gate: its cells are made.
                    partial = any(step.partial for step in missing)
                    closes = math.inf if partial else session.admission.enter(node)
                    context, recipes = _context_of(job, closes), list(missing.values())
                    progress = JobProgress(session, node, job, recipes[0].key)
                    with session.admission.charge(node, session.store, recipes, ends):
                        if job.cpus and job.pieces > 1:
                            self._make_pieces(node, job, keys, recipes, context)
                        # Without cores of its own, a job is small and runs in this process.
                        stream = (
                            session.workers.make(
                                node.name, keys, recipes, context, cpus=job.cpus, gpus=job.gpus
                            )
                            if job.cpus
                            else worker.make(session.store.uri, recipes, context)
                        )
                        for item in stream:  # To its very end: leaving it early ends its worker.
                            if not isinstance(item, worker.StepOutcome):
                                progress.show(item)
                            elif not item.held:
                                ends[item.name] = item
                    # No step ended and the window is closed: the worker never started one.
                    if not ends and time.time() >= closes:
                        raise NodeHeldError(session.admission.outside_window)
                    for recipe in recipes:
                        if recipe.name not in ends:
                            errors[recipe.name] = "its worker ended without an artifact"
            finally:  # Even if the worker is lost, the steps that it committed before count.
                for step in missing:
                    end = ends.get(step.name)
                    if end and end.error:
                        session.log(f"{step.name}: {end.traceback}", True)
                        errors[step.name] = end.error
                    elif end:
                        self._note_worker_artifact(step, session.store.get(missing[step].key), end)
                        outcome = outcome if end.reused else "made"
            # After all steps of this job, so that one failed budget does not lose the others;
            # before the next job, which may read the step that failed.
            if errors:
                # The node's own name stands before all of it.
                messages = (v if k == node.name else f"{k}: {v}" for k, v in errors.items())
                error = StepFailedError("; ".join(messages))
                repair_inputs(session, node, error, repaired, self.make)
                repaired, jobs = {*session.repaired}, [*node.jobs]
            elif blocked:
                raise NodeHeldError(blocked)
        return outcome

    def describe(self, node: GraphNode, outcome: Outcome) -> tuple[str, float]:
        """See `Work.describe`."""
        session = self._session
        # Of a transfer that was only scored again, the scores, and not what its training was.
        steps = [step for step in node.steps if step in session.made or outcome == "reused"]
        counts = (
            kind_of(step).headline(step.config, session.artifacts[step].manifest.counts)
            for step in steps
        )
        seconds = sum(session.artifacts[step].manifest.seconds for step in steps)
        return ", ".join(filter(None, counts)), seconds

    def _look_up_job(
        self, node: GraphNode, job: StepJob
    ) -> tuple[dict[Step, Recipe], list[str], dict[str, str], str]:
        """Finds the steps of a job that are there; returns what a worker needs to make the others.

        Returns:
          The missing steps, the keys of all that have their inputs, step's name -> why it may not
          be made, and why some cannot be made yet ("" where all can).
        """
        # For the steps of a job:
        #
        #   the store has …            this run …
        #   nothing                    makes it
        #   one made by other code     makes it again, if `rebuild_seconds` allows
        #   one that was accepted      uses it, unless --rebuild names it
        #   one that was pruned        uses it, unless a step of this node needs its files
        #   a fresh one                uses it
        session, missing, keys = self._session, dict[Step, Recipe](), list[str]()
        errors, blocked = dict[str, str](), ""
        for step in job.steps:
            try:
                lookup = session.look_up(step)
                keys.append(lookup.recipe.key)
                remade = lookup.state == "accepted" and session.rebuilds(node)
                if lookup.is_pruned and lookup.state != "stale":
                    remade = remade or self._is_wanted(node, lookup)
                session.allow(node, step, lookup)
                artifact = None if lookup.state == "stale" or remade else lookup.artifact
                if artifact is None or self._is_damaged_table(node, step, artifact):
                    missing[step] = lookup.recipe
                else:
                    session.artifacts[step] = artifact
                    self._publish_lineage_page(step, artifact, reused=True)
            except InputFailedError as error:
                blocked = blocked or f"since {error} failed"
            except StepFailedError as error:
                errors[step.name] = str(error)
        return missing, keys, errors, blocked

    def _note_worker_artifact(
        self, step: Step, artifact: Artifact, end: worker.StepOutcome
    ) -> None:
        """Notes the artifact of a step that a worker has ended."""
        session = self._session
        session.artifacts[step] = artifact
        if not end.reused:
            session.made.add(step)
        session.expected.learn(artifact, step)
        session.traces.trackers.put(artifact)
        self._publish_lineage_page(step, artifact, reused=end.reused)

    def _is_damaged_table(self, node: GraphNode, step: Step, artifact: Artifact) -> bool:
        """Whether an artifact is the table that the run itself reads in the end, and damaged."""
        if not step.partial:
            return False
        try:
            _ = artifact.path
        except DamagedArtifactError as error:
            self._session.display.print_event(node.name, str(error))
            return True
        return False

    def _is_wanted(self, node: GraphNode, lookup: StepLookup) -> bool:
        """Whether a step of the node must be made and reads `lookup`, whose files were pruned.

        Predictions that can be decoded from its cast do not read it.
        """
        session = self._session
        # The readers can only be looked up once this step has an artifact, so it gets the old one.
        step = next(step for step in node.steps if step.name == lookup.recipe.name)
        pruned = session.artifacts[step] = cast(Artifact, lookup.artifact)
        lookups = (session.look_up(s) for s in node.steps if step in s.inputs.values())
        return any(
            reader.state in ("missing", "stale")
            and pruned.key in {entry.key for entry in reader.recipe.inputs.values()}
            for reader in lookups
        )

    def _make_pieces(
        self,
        node: GraphNode,
        job: StepJob,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
    ) -> None:
        """Makes all pieces of a job's steps in parallel; the steps themselves then read these.

        A piece that fails is only logged: the step then answers those items itself, or fails.

        Raises:
          RayWorkerLostError: if a worker died; the next attempt finds the pieces that other workers
            made.
        """
        session = self._session

        def make(number: int) -> None:
            # The piece is part of the keys: a cluster names its jobs by them, and pieces with one
            # name would all join the first one's job.
            piece = number, job.pieces
            name = f"{node.name} ({number + 1} of {job.pieces})"
            piece_keys = [keys[0], f"{piece}", *keys[1:]]
            for item in session.workers.make(
                name, piece_keys, recipes, {**context, "piece": piece}, cpus=job.cpus, gpus=job.gpus
            ):
                if isinstance(item, worker.StepOutcome):
                    if item.error:
                        session.log(f"{name}: {item.traceback}", True)
                elif not isinstance(item, AlreadyRunning):
                    session.display.update(node.name, item[1])

        #   piece 0 of 3 ──┐
        #   piece 1 of 3 ──┼─▶ the job itself, which finds the pieces in the store
        #   piece 2 of 3 ──┘
        #
        # `result` raises what a thread raised: here, that a worker was lost.
        with ThreadPoolExecutor(job.pieces, thread_name_prefix="piece") as pool:
            copies = [contextvars.copy_context() for _ in range(job.pieces)]
            for future in [pool.submit(copy.run, make, i) for i, copy in enumerate(copies)]:
                future.result()

    def _publish_lineage_page(self, step: Step, artifact: Artifact, *, reused: bool) -> None:
        """Publishes a page about an artifact in the UI."""
        session, task = self._session, task_run.id
        text, key = lineage_page(session.view, artifact, reused=reused), page_key(artifact.key)
        session.traces.pages.put(
            UIPage(key=key, text=text, description=step.name, task_run_id=task)
        )


def _context_of(job: StepJob, closes: float) -> dict[str, Any]:
    """Returns how a job is made, as `worker.make` takes it; it is no part of any recipe."""
    context: dict[str, Any] = {
        "prefect": {"task_run_id": task_run.id, "flow_run_id": flow_run.id},
    }
    if job.processes > 1:
        context["processes"] = job.processes
        if job.launcher:
            context["launcher"] = job.launcher
    if math.isfinite(closes):
        context["closes"] = closes
    return context
