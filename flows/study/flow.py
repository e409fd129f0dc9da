"""The Prefect flow `study`: raw data -> datasets -> stages -> transfers -> results table."""

import contextvars
import dataclasses
import json
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prefect import flow, get_run_logger
from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.config.compute import ComputeConfig
from flows.config.disk_use import describe_disk_use
from flows.config.paper_deviations import describe_paper_deviations
from flows.config.server_limits import check_served
from flows.config.study import StudyConfig
from flows.lineage.overview import continuing_command
from flows.lineage.runs import (
    Outcome,
    begin_run_record,
    close_dead_records,
    describe_ends,
    end_run_record,
    record_name,
    stop_run_record,
)
from flows.pages.rebuild import publish_results
from flows.report.headline import headline_text
from flows.report.json_file import read_json
from flows.steps.lookup import device_seconds
from flows.steps.worker import import_step_code
from flows.steps.workers import JobWorkers, LocalWorkers, Workers
from flows.study import run_log
from flows.study.display import Display
from flows.study.eta import Forecast, TimeEstimates
from flows.study.execute import RunSession, run_graph
from flows.study.explain import Explanation, explain_study
from flows.study.graph import Phase
from flows.study.retry_policy import (
    GIVEN_UP,
    NOT_FAILED,
    HoldRule,
    describe_failed_steps,
    failed_steps_of_last_run,
    hold_all_but,
    hold_none,
)
from flows.study.sweep_limits import ALWAYS, Admission, SweepLimits
from infra.errors import one_line_message
from infra.prefect.approval import NotApprovedError, wait_for_approval
from infra.prefect.ending import journal_of
from infra.prefect.journal import Journal
from infra.prefect.page_queue import PageQueue, UIPage
from infra.prefect.progress import ProgressFile
from infra.prefect.published import warn_only
from infra.processes.signals import end_with
from infra.ray.cluster import Cluster
from infra.ray.jobs import JobServer
from infra.references import load_reference
from infra.source_code import checkout
from infra.store.pins import Pin
from infra.store.records import read_run
from infra.store.redact import remember_secrets
from infra.store.store import Artifact, Store

_WAITING = 64
"""Nodes in flight beyond the workers' capacity, which wait for a worker."""

_APPROVAL = "flows.plan.approval:approval_text"
"""Function that writes what a run that waits for approval shows. It is named as a config names a
function, and not imported, because a plan stands on this room: Prefect starts a flow by its name
alone, so nobody above can hand the function in."""

RESULTS: "list[StudyResult]" = []
"""Results of the studies that this process ran; Prefect loses them if its server is gone."""

EXPLANATION = contextvars.ContextVar[Explanation | None]("EXPLANATION", default=None)
"""The verdicts that the caller of `study` has already; they cannot be a parameter of a flow, since
Prefect sends those to its server."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The outcome of a run of a study.

    Attributes:
      results: key of the results artifact; None where the run stopped before the report.
      failed: "step: reason" for each step that failed.
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
    outcome: Outcome
    run: str
    flow_run_id: str
    holds: Mapping[str, str]
    config: StudyConfig
    disk_use: str

    def then(self, later: "StudyResult") -> "StudyResult":
        """Returns the outcome of this run and a wider study's after it, counted as one run."""
        # The later study holds the earlier one: what the first made is reused by the second, so
        # only what was made adds up.
        return dataclasses.replace(later, made=self.made + later.made)

    @property
    def steps_by_hold_reason(self) -> dict[str, list[str]]:
        """Reason for not running steps -> names of these steps."""
        steps_by_reason: dict[str, list[str]] = {}
        for step, why in self.holds.items():
            steps_by_reason.setdefault(why, []).append(step)
        return steps_by_reason

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
            f"{len(steps)} not run, {why}" for why, steps in self.steps_by_hold_reason.items()
        ]
        return ", ".join(counts)

    @property
    def why(self) -> str:
        """Reason why the run failed, in one line; "" if it did not."""
        return describe_ends(self.failed, self.holds) if self.failed else ""


@flow(
    name="study",
    flow_run_name="{config.name}",
    persist_result=False,
)
def study(
    config: StudyConfig,
    store: str = ".parcel",
    until: Phase = "report",
    rebuild: tuple[str, ...] = (),
    approve: bool = False,
    failed: bool = False,
) -> Any:
    """Runs a study, reusing every step that a store already holds.

    Args:
      config: the study to run.
      store: the artifact store, a folder or gs://bucket/prefix (s3:// and az:// alike).
      until: the last phase to run.
      rebuild: steps to make again at any cost if their code has changed; may hold `*`.
      approve: wait for somebody's approval in the UI before anything is made.
      failed: run only the steps that failed in the last run of the study, and what they need.
    """
    check_served(config, store)
    explanation = EXPLANATION.get()
    opened = explanation.store if explanation else Store(store)
    return run_once(config, opened, until, rebuild, approve=approve, failed=failed)


def run_once(
    config: StudyConfig,
    store: Store,
    until: Phase,
    rebuild: tuple[str, ...],
    *,
    approve: bool,
    failed: bool,
) -> Any:
    """Runs a study within a flow run, with the arguments of `study`; returns the run's state."""
    hold_rule = hold_none
    if failed:
        names = failed_steps_of_last_run(store, config.name)
        if not names:
            return Completed(message=f"nothing to run: no step failed in {config.name}'s last run")
        print(describe_failed_steps(config.name, names), flush=True)
        hold_rule = hold_all_but(names)

    def only_pass() -> Iterator[Explanation]:
        yield EXPLANATION.get() or explain_study(config, store, until)

    return run_passes(only_pass(), store, rebuild, approve=approve, hold_rule=hold_rule)


def run_passes(
    passes: Iterator[Explanation],
    store: Store,
    rebuild: tuple[str, ...] = (),
    *,
    limits: SweepLimits = ALWAYS,
    approve: bool = False,
    hold_rule: HoldRule = hold_none,
) -> Any:
    """Runs studies one after the other, within one flow run; returns the run's state.

    Args:
      passes: the verdicts on the steps of each study; the next are drawn only if none before them
        failed or was held back, except for steps that were given up.
      store: the store of all these studies.
      rebuild: as in `study`.
      limits: when steps may begin, and how much work they may do.
      approve: wait for somebody's approval before the first study begins.
      hold_rule: function that names the nodes not to begin.
    """
    # Within one flow run:
    #
    #   pin, journal ─▶ pass 1: verdicts, run ─▶ pass 2: … ─▶ journal closed ─▶ pin released
    #
    # A study is one pass. A sweep until decided is many, each drawn from what the last one made.
    context = FlowRunContext.get()
    run_id = str(context.flow_run.id) if context and context.flow_run else ""
    workers: Workers | None = None

    def cancel() -> None:
        if workers is not None:
            workers.cancel()
        stop_run_record(store, pin.run, "cancelled")

    result: StudyResult | None = None
    admission = Admission(limits)
    # The pin encloses all else: its lease shows others that this run is alive (see
    # `infra.prefect.watch`), so it must still be held while the journal is closed.
    with (
        store.pin_run(run_id or uuid.uuid4().hex) as pin,
        journal_of(store.state, run_id, cancel=cancel) as journal,
        PageQueue(run_id) as pages,
    ):
        earlier = close_dead_records(store)
        try:
            # A generator: what comes next is decided only now, with the cells of the pass before.
            for explanation in passes:
                workers = _workers(explanation.study.compute, store)
                pass_result = run_study_graph(
                    explanation,
                    store,
                    workers,
                    pin,
                    journal,
                    pages,
                    rebuild,
                    admission=admission,
                    approve=approve and result is None,
                    earlier=earlier,
                    hold_rule=hold_rule,
                )
                result = result.then(pass_result) if result else pass_result
                # What was given up is a hole in the table: later passes do without it.
                if pass_result.failed or {*pass_result.holds.values()} - {GIVEN_UP}:
                    break
        except NotApprovedError as error:
            stop_run_record(store, pin.run, "cancelled")
            journal.close("cancelled", str(error))
            return Cancelled(message=str(error))
        except Exception as error:
            stop_run_record(store, pin.run, "ended", one_line_message(error))
            raise
        journal.close(*(("failed", result.why) if result and result.failed else ("completed", "")))
    if result is None:
        return Completed(message="nothing to run")
    RESULTS.append(result)
    if result.failed:
        return Failed(message=result.why, data=result)
    return Completed(message=result.summary, data=result)


def run_study_graph(
    explanation: Explanation,
    store: Store,
    workers: Workers,
    pin: Pin,
    journal: Journal,
    pages: PageQueue,
    rebuild: tuple[str, ...] = (),
    *,
    admission: Admission | None = None,
    approve: bool = False,
    hold_rule: HoldRule = hold_none,
    earlier: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> StudyResult:
    """Runs the graph of a study, within a flow run.

    Args:
      explanation: the verdicts on the steps of the study. What they found in the store is only
        relied on once it is pinned, and is then looked up again.
      store: the store.
      workers: processes for the steps that use JAX; released when all is done.
      pin: this run's protection of artifacts from garbage collection.
      journal: this run's journal.
      pages: this run's pages.
      rebuild: as in `study`.
      admission: decides when nodes may begin; None lets all begin.
      approve: wait for somebody's approval before any node begins.
      hold_rule: function that names the nodes not to begin.
      earlier: full name -> record of the runs before it, with which its own is compared.

    Raises:
      NotApprovedError: if approval is refused.
    """
    graph, config = explanation.graph, explanation.study
    admission = admission or Admission()
    ahead = admission.limits.ahead(graph)
    # In this order: who may begin, whether that redoes too much work, and only then the first
    # trace of the run: pins, journal, page, a request for approval.
    admission.holds = hold_rule(explanation)
    explanation.check(config.compute.rebuild_limit, rebuild, admission.holds)
    foreseen = {step: artifact.key for step, artifact in explanation.artifacts().items()}
    pin.add(*foreseen.values())  # All at once; look-ups during the run pin new keys one by one.
    remember_secrets(dataclasses.asdict(config))
    begin_run_record(
        store,
        dataclasses.asdict(config),
        pin.run,
        artifacts=foreseen.values(),
        given=_describe_request(),
        earlier=earlier,
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
    if approve and len(reused) < len(graph.nodes):
        print("waiting for somebody to resume the run in the UI …", flush=True)
        text = load_reference(_APPROVAL)(explanation)
        wait_for_approval(journal.flow_run_id, text)
    # Times and costs of what is there already are estimates of what is missing.
    expected = TimeEstimates()
    for step, artifact in explanation.artifacts().items():
        expected.learn(step, artifact.manifest.seconds)
        expected.learn_cost(step, device_seconds(artifact))
    admission.expected = expected
    forecast = Forecast(expected, graph.nodes)
    display, start_time = Display(len(graph.nodes), time_left=forecast.seconds), time.monotonic()
    log = get_run_logger()
    # What was foreseen is pinned now: unless gc deleted something between the listing and the pin,
    # that listing still holds for it. Steps made later, here or by other runs, are not in it, and
    # are looked up in the store itself.
    view = store.snapshot(explanation.view)
    with display:
        if line := explanation.describe_remakes():
            log.info(line)
            if EXPLANATION.get() is None:  # Who explained the study has said it.
                print(line, flush=True)
        for line in config.describe_budgets():
            log.warning(line)
        for line in describe_paper_deviations(config):
            log.info(line)
        log.info(run_log.opening_line(graph, reused, explanation.is_reused))
        session = RunSession(
            study=config.name,
            store=store,
            view=view,
            foreseen=foreseen,
            accepted_at_start=explanation.accepted,
            workers=workers,
            display=display,
            journal=journal,
            progress=ProgressFile(store.state, journal.flow_run_id),
            pages=pages,
            expected=expected,
            forecast=forecast,
            pin=pin,
            retries=config.compute.retries,
            prepare_at_once=config.compute.prepare_at_once,
            rebuild=rebuild,
            redone=explanation.costs_of_redoing(but=rebuild),
            rebuild_seconds=3600 * config.compute.rebuild_limit,
            admission=admission,
        )
        for node in graph.nodes:
            if node not in reused:
                # Import now the code of steps that run in this process: an edit of the sources
                # during the run must not reach them.
                for step in (s for job in node.jobs if not job.cpus for s in job.steps):
                    import_step_code(step.kind, step.config)
        # With a window, a bound or an order, no node is queued beyond the workers' capacity: a node
        # that has passed the gate should begin at once, and none before those that come first.
        queue_length = _WAITING if admission.limits.queues else 0
        run_graph(session, graph, reused, queue_length, ahead)
        results = session.artifacts.get(graph.results) if graph.results else None
        holds = {node.name: why for node, why in session.holds.items()}
        failed = tuple(f"{name}: {why}" for name, why in session.failures.items())
        ended_as = end_run_record(
            store,
            dataclasses.asdict(config),
            pin.run,
            results=results.key if results else None,
            artifacts=[artifact.key for artifact in session.artifacts.values()],
            failed=failed,
            holes=holds,
            given_up=[name for name, why in holds.items() if why == GIVEN_UP],
            headline=_headline(results) if results else {},
            made=display.counts["made"],
            reused=display.counts["reused"],
        )
        result = StudyResult(
            results=results.key if results else None,
            failed=failed,
            made=display.counts["made"],
            reused=display.counts["reused"],
            outcome=ended_as,
            run=record_name(config.name, pin.run),
            flow_run_id=journal.flow_run_id,
            holds=holds,
            config=config,
            disk_use=describe_disk_use(session.view, session.artifacts.values(), config.keep),
        )
        seconds = time.monotonic() - start_time
        log.info(run_log.closing_line(result.summary, result.failed, seconds, result.results))
    if results:
        with warn_only():
            publish_results(store, result.run, config.name, results.key, pages)
    return result


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
