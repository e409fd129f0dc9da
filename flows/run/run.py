"""A run of a study, or of the studies of a sweep, within a Prefect flow run."""

import contextlib
import dataclasses
import json
import shlex
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.config.compute import ComputeConfig
from flows.config.keep import describe_disk_use
from flows.graph.eta import Forecast, TimeEstimates
from flows.graph.explain import Explanation, explain_study
from flows.graph.nodes import GraphNode
from flows.lineage.runs import (
    begin_run_record,
    close_dead_records,
    end_run_record,
    record_name,
    stop_run_record,
)
from flows.pages.overview import continuing_command
from flows.pages.rebuild import publish_results
from flows.report.headline import headline_text
from flows.report.json_file import read_json
from flows.run import run_log
from flows.run.display import Display
from flows.run.limits import Admission
from flows.run.node_tasks import NodeTasks
from flows.run.node_work import NodeWork
from flows.run.request import RunRequest
from flows.run.result import StudyResult
from flows.run.retry_policy import (
    GIVEN_UP,
    HoldRule,
    describe_failed_steps,
    failed_steps_of_last_run,
    hold_all_but,
    hold_none,
)
from flows.run.run_order import run_in_order
from flows.run.session import RunSession
from flows.steps.lookup import device_seconds
from flows.steps.worker import import_step_code
from flows.steps.workers import JobWorkers, LocalWorkers, Workers
from flows.study.paper_deviations import describe_paper_deviations
from flows.study.study import StudyConfig
from infra.errors import one_line_message
from infra.prefect.approval import NotApprovedError, wait_for_approval
from infra.prefect.best_effort import warn_only
from infra.prefect.ending import journal_of
from infra.prefect.journal import Journal
from infra.prefect.page_queue import PageQueue, UIPage
from infra.prefect.progress import ProgressFile
from infra.processes.signals import end_with
from infra.ray.cluster import Cluster
from infra.ray.jobs import JobServer
from infra.source_code import checkout
from infra.store.pins import Pin
from infra.store.records import read_run
from infra.store.redact import remember_secrets
from infra.store.store import Artifact, Store

_WAITING = 64
"""Nodes in flight beyond the workers' capacity, which wait for a worker."""


class Run:
    """A run: it starts the graph of each of its studies, runs it, and finishes with a record.

    A study is one pass. A sweep until decided is many, each drawn from what the last one made.

    Args:
      request: what is asked.
      store: the store of all passes.
      passes: the verdicts on the steps of each study; the next are drawn only if none before them
        failed or was held back, except for steps that were given up. None is the request's study.
      explanation: the verdicts on that study, where the caller has them already.
      hold_rule: function that names the nodes not to begin.
      workers: processes for the steps that use JAX; None takes those that the study names.

    Attributes:
      result: the outcome so far, also where the server is lost before it is told; None before the
        first pass has ended.
    """

    def __init__(
        self,
        request: RunRequest,
        store: Store,
        *,
        passes: Iterable[Explanation] | None = None,
        explanation: Explanation | None = None,
        hold_rule: HoldRule = hold_none,
        workers: Workers | None = None,
    ) -> None:
        self.request, self.store = request, store
        self.result: StudyResult | None = None
        self._passes = self._only_pass() if passes is None else passes
        self._explanation = explanation
        self._hold_rule, self._admission = hold_rule, Admission(request.limits)
        self._given_workers = self._workers = workers
        # With a window, a bound or an order, no node is queued beyond the workers' capacity: a node
        # that has passed the gate should begin at once, and none before those that come first.
        self._queue_length = _WAITING if request.limits.queues else 0
        self._previous_runs: Mapping[str, Mapping[str, Any]] = {}
        self._began = 0.0

    def execute(self) -> Any:
        """Runs all passes within this process's flow run; returns the state that it ends in."""
        # Within one flow run:
        #
        #   pin, journal ─▶ pass 1: verdicts, run ─▶ pass 2: … ─▶ journal closed ─▶ pin released
        request, store = self.request, self.store
        if request.failed:
            names = failed_steps_of_last_run(store, request.config.name)
            if not names:
                name = request.config.name
                return Completed(message=f"nothing to run: no step failed in {name}'s last run")
            print(describe_failed_steps(request.config.name, names), flush=True)
            self._hold_rule = hold_all_but(names)
        context = FlowRunContext.get()
        run_id = str(context.flow_run.id) if context and context.flow_run else ""

        def cancel() -> None:
            if self._workers is not None:
                self._workers.cancel()
            stop_run_record(store, pin.run, "cancelled")

        # The pin encloses all else: its lease shows others that this run is alive (see
        # `infra.prefect.watch`), so it must still be held while the journal is closed.
        with (
            store.pin_run(run_id or uuid.uuid4().hex) as pin,
            journal_of(store.state, run_id, cancel=cancel) as journal,
            PageQueue(run_id) as pages,
        ):
            self._previous_runs = close_dead_records(store)
            try:
                # A generator: what comes next is decided only now, with the cells of the last pass.
                for explanation in self._passes:
                    session = self._start(explanation, pin, journal, pages)
                    tasks = NodeTasks(session, NodeWork(session))
                    with session.display, contextlib.closing(session.workers):
                        run_in_order(
                            session.graph,
                            tasks.run,
                            expected=session.expected,
                            on_workers=session.workers.capacity + self._queue_length,
                            in_process=explanation.study.compute.prepare_at_once,
                            done=tasks.share_row(),
                            priority=session.priority,
                        )
                    result = self._finish(session, explanation.study)
                    self.result = self.result.followed_by(result) if self.result else result
                    # What was given up is a hole in the table: later passes do without it.
                    if result.failed or {*result.holds.values()} - {GIVEN_UP}:
                        break
            except NotApprovedError as error:
                stop_run_record(store, pin.run, "cancelled")
                journal.close("cancelled", str(error))
                return Cancelled(message=str(error))
            except Exception as error:
                stop_run_record(store, pin.run, "ended", one_line_message(error))
                raise
            why = self.result.why if self.result else ""
            journal.close("failed" if why else "completed", why)
        if self.result is None:
            return Completed(message="nothing to run")
        if why:
            return Failed(message=why, data=self.result)
        return Completed(message=self.result.summary, data=self.result)

    def _only_pass(self) -> Iterator[Explanation]:
        request = self.request
        yield self._explanation or explain_study(request.config, self.store, request.until)

    def _start(
        self, explanation: Explanation, pin: Pin, journal: Journal, pages: PageQueue
    ) -> RunSession:
        """Starts the run of one study; returns the state that its nodes share.

        Args:
          explanation: the verdicts on the steps of the study. What they found in the store is only
            relied on once it is pinned, and is then looked up again.
          pin: this run's protection of artifacts from garbage collection.
          journal: this run's journal.
          pages: this run's pages.

        Raises:
          ConfigError: if changed code would repeat too much work.
          NotApprovedError: if approval is refused.
        """
        request, store = self.request, self.store
        graph, config, rebuild = explanation.graph, explanation.study, request.rebuild
        priority = request.limits.priority(graph)
        # In this order: who may begin, whether that redoes too much work, and only then the first
        # trace of the run: pins, journal, page, a request for approval.
        admission = self._admission
        admission.holds = self._hold_rule(explanation)
        explanation.check(config.compute.rebuild_limit, rebuild, admission.holds)
        expected_keys = {step: artifact.key for step, artifact in explanation.artifacts().items()}
        # All in one call; look-ups during the run pin new keys one by one.
        pin.add(*expected_keys.values())
        remember_secrets(dataclasses.asdict(config))
        begin_run_record(
            store,
            dataclasses.asdict(config),
            pin.run,
            artifacts=expected_keys.values(),
            given=_describe_request(),
            earlier=self._previous_runs,
        )
        record = read_run(store.files, record_name(config.name, pin.run))
        end_with(f"continue: {continuing_command({**record, 'state': 'cancelled'}, store.uri)}")
        upstream = graph.upstream.items()
        journal.plan(config.name, {node.name: [b.name for b in reads] for node, reads in upstream})
        pages.put(
            UIPage(
                key=f"explain-{config.name}",
                text=explanation.markdown(),
                description="Before the run",
            )
        )
        reused = {node for node in graph.nodes if explanation.is_node_reused(node)}
        if request.approve and self.result is None and len(reused) < len(graph.nodes):
            print("waiting for somebody to resume the run in the UI …", flush=True)
            from flows.run.approval import approval_text  # The plan: few runs need it.

            wait_for_approval(journal.flow_run_id, approval_text(explanation))
        admission.expected = expected = _estimates(explanation)
        forecast = Forecast(expected, graph.nodes)
        self._began = time.monotonic()
        self._log_beginning(explanation, reused)
        for node in graph.nodes:
            if node not in reused:
                # Import now the code of steps that run in this process: an edit of the sources
                # during the run must not reach them.
                for step in (s for job in node.jobs if not job.cpus for s in job.steps):
                    import_step_code(step.kind, step.config)
        self._workers = self._given_workers or _workers(config.compute, store)
        return RunSession(
            graph=graph,
            reused=reused,
            priority=priority,
            store=store,
            # What was expected is pinned now: unless gc deleted something between the listing and
            # the pin, that listing still holds for it. Steps made later, here or by other runs, are
            # not in it, and are looked up in the store itself.
            view=store.snapshot(explanation.view),
            expected_keys=expected_keys,
            accepted_at_start=explanation.accepted,
            workers=self._workers,
            display=Display(len(graph.nodes), time_left=forecast.seconds),
            journal=journal,
            progress=ProgressFile(store.state, journal.flow_run_id),
            pages=pages,
            expected=expected,
            forecast=forecast,
            pin=pin,
            retries=config.compute.retries,
            rebuild=rebuild,
            rework_costs=explanation.rework_costs(but=rebuild),
            rebuild_seconds=3600 * config.compute.rebuild_limit,
            admission=admission,
        )

    def _log_beginning(self, explanation: Explanation, reused: Set[GraphNode]) -> None:
        """Logs on the run's page what is about to be made, and what is odd about the study."""
        log, config = get_run_logger(), explanation.study
        if line := explanation.describe_remakes():
            log.info(line)
            if self._explanation is None:  # Who explained the study has said it.
                print(line, flush=True)
        for line in config.describe_budgets():
            log.warning(line)
        for line in describe_paper_deviations(config):
            log.info(line)
        log.info(run_log.opening_line(explanation.graph, reused, explanation.is_reused))

    def _finish(self, session: RunSession, config: StudyConfig) -> StudyResult:
        """Writes the record of one study's run, logs its outcome and publishes its table."""
        store, counts = self.store, session.display.counts
        results = session.artifacts.get(session.graph.results) if session.graph.results else None
        holds = {node.name: why for node, why in session.holds.items()}
        failed = tuple(f"{name}: {why}" for name, why in session.failures.items())
        outcome = end_run_record(
            store,
            dataclasses.asdict(config),
            session.pin.run,
            results=results.key if results else None,
            artifacts=[artifact.key for artifact in session.artifacts.values()],
            failed=failed,
            holes=holds,
            given_up=[name for name, why in holds.items() if why == GIVEN_UP],
            headline=_headline(results) if results else {},
            made=counts["made"],
            reused=counts["reused"],
        )
        result = StudyResult(
            results=results.key if results else None,
            failed=failed,
            made=counts["made"],
            reused=counts["reused"],
            outcome=outcome,
            run=record_name(config.name, session.pin.run),
            flow_run_id=session.journal.flow_run_id,
            holds=holds,
            config=config,
            disk_use=describe_disk_use(session.view, session.artifacts.values(), config.keep),
        )
        seconds = time.monotonic() - self._began
        get_run_logger().info(
            run_log.closing_line(result.summary, result.failed, seconds, result.results)
        )
        if results:
            with warn_only():
                publish_results(store, result.run, config.name, results.key, session.pages)
        return result


def _estimates(explanation: Explanation) -> TimeEstimates:
    """Returns estimates of what is missing, from the times and costs of what is there already."""
    estimates = TimeEstimates()
    for step, artifact in explanation.artifacts().items():
        estimates.learn(step, artifact.manifest.seconds)
        estimates.learn_cost(step, device_seconds(artifact))
    return estimates


def _headline(results: Artifact) -> dict[str, Any]:
    """Returns the counts and the best score of a table, for lists of runs."""
    report = read_json((results.path / "results.json").read_text(encoding="utf-8"))
    return {**results.manifest.counts, "score": headline_text(report)}


def _describe_request() -> str:
    """Returns the command as it was typed; for a run from a form, its values as JSON."""
    if deployment.id:
        return json.dumps(flow_run.parameters, default=str, sort_keys=True)
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _workers(compute: ComputeConfig, store: Store) -> Workers:
    if compute.ray_address is None:
        return LocalWorkers(Cluster(num_cpus=compute.num_cpus, num_gpus=compute.num_gpus), store)
    server = JobServer(
        compute.ray_address,
        code=checkout().files,
        device=compute.device,
        node_wait=compute.node_wait,
    )
    return JobWorkers(server, store)
