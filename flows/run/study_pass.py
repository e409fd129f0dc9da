"""The beginning and the end of one study's part of a run.

start_pass ─▶ session ─▶ its nodes, in order (`flows.run.node_tasks`) ─▶ finish_pass ─▶ StudyResult
"""

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.runtime import deployment, flow_run

from flows.config.keep import describe_disk_use
from flows.graph.eta import Forecast
from flows.graph.explain import Explanation
from flows.graph.nodes import GraphNode, StudyGraph
from flows.lookup.promise import promise_of
from flows.lookup.runs import begin_run_record, end_run_record, record_name
from flows.pages.overview import continuing_command, differences_text
from flows.pages.rebuild import publish_results
from flows.report.headline import headline_text
from flows.report.json_file import read_json
from flows.run import run_log
from flows.run.display import Display
from flows.run.limits import Admission
from flows.run.request import RunRequest
from flows.run.result import StudyResult
from flows.run.retry_policy import GIVEN_UP
from flows.run.session import RunSession, RunTraces
from flows.steps.worker import import_step_code
from flows.steps.workers import Workers, workers_of
from flows.study.paper_deviations import describe_paper_deviations
from flows.study.study import StudyConfig
from infra.prefect.approval import wait_for_approval
from infra.prefect.best_effort import best_effort, warn_only
from infra.prefect.deployed import name_run
from infra.prefect.page_queue import UIPage
from infra.prefect.progress import ProgressFile
from infra.processes.signals import end_with
from infra.store.records import read_run
from infra.store.redact import remember_secrets
from infra.store.store import Artifact, Store


def start_pass(
    explanation: Explanation,
    request: RunRequest,
    store: Store,
    traces: RunTraces,
    *,
    admission: Admission,
    workers: Workers | None,
) -> RunSession:
    """Opens the record of one study's run; returns the state that its nodes share.

    Args:
      explanation: the verdicts on the steps of the study. What they found in the store is only
        relied on once it is pinned, and is then looked up again.
      request: what is asked of the run.
      store: the store of the run.
      traces: pin, journal and pages of the run.
      admission: decides whether a node may begin.
      workers: processes for the steps that use JAX; None takes those that the study names.

    Raises:
      ConfigError: if changed code would repeat too much work.
      NotApprovedError: if approval is refused.
    """
    graph, config, rebuild = explanation.graph, explanation.study, request.rebuild
    pin, journal, compute = traces.pin, traces.journal, config.compute
    priority = request.limits.priority(graph)
    # In this order: whether it redoes too much work, and only then the first trace of the run:
    # pins, journal, page, a request for approval.
    explanation.check(compute.rebuild_limit, rebuild, admission.holds)
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
        tags=request.tags,
        note=request.note,
        promised=_promise_of_graph(graph),
        earlier=traces.previous_runs,
    )
    record = read_run(store.files, record_name(config.name, pin.run))
    if differences := differences_text(record):
        best_effort(name_run, f"{config.name}, {differences}")
    end_with(f"continue: {continuing_command({**record, 'state': 'cancelled'}, store.uri)}")
    upstream = graph.upstream.items()
    journal.plan(config.name, {node.name: [b.name for b in reads] for node, reads in upstream})
    page = explanation.markdown()
    traces.pages.put(UIPage(key=f"explain-{config.name}", text=page, description="Before the run"))
    reused = {node for node in graph.nodes if explanation.is_node_reused(node)}
    if request.approve and len(reused) < len(graph.nodes):
        print("waiting for somebody to resume the run in the UI …", flush=True)
        from flows.run.approval import approval_text  # The plan: few runs need it.

        wait_for_approval(journal.flow_run_id, approval_text(explanation))
    admission.expected = expected = explanation.estimates()
    forecast = Forecast(expected, graph.nodes)
    _log_beginning(explanation, reused)
    for node in graph.nodes:
        if node not in reused:
            # Import now the code of steps that run in this process: an edit of the sources
            # during the run must not reach them.
            for step in (s for job in node.jobs if not job.cpus for s in job.steps):
                import_step_code(step.kind, step.config)
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
        workers=workers
        or workers_of(
            store,
            ray_address=compute.ray_address,
            num_cpus=compute.num_cpus,
            num_gpus=compute.num_gpus,
            device=compute.device,
            node_wait=compute.node_wait,
        ),
        display=Display(len(graph.nodes), time_left=forecast.seconds),
        traces=traces,
        progress=ProgressFile(store.state, journal.flow_run_id),
        expected=expected,
        forecast=forecast,
        retries=compute.retries,
        rebuild=rebuild,
        rework_costs=explanation.rework_costs(but=rebuild),
        rebuild_seconds=3600 * compute.rebuild_limit,
        admission=admission,
    )


def finish_pass(session: RunSession, config: StudyConfig) -> StudyResult:
    """Writes the record of one study's run, logs its outcome and publishes its table."""
    # The record first: whatever fails after it, what was made is known. Pages come last, and only
    # warn, since `parcel lineage rebuild` makes them again.
    store, traces, counts = session.store, session.traces, session.display.counts
    results = session.artifacts.get(session.graph.results) if session.graph.results else None
    holds = {node.name: why for node, why in session.holds.items()}
    failed = tuple(f"{name}: {why}" for name, why in session.failures.items())
    outcome = end_run_record(
        store,
        dataclasses.asdict(config),
        traces.pin.run,
        results=results.key if results else None,
        artifacts=[artifact.key for artifact in session.artifacts.values()],
        failed=failed,
        holes=holds,
        given_up=[name for name, why in holds.items() if why == GIVEN_UP],
        headline=_run_record_headline(results) if results else {},
        made=counts["made"],
        reused=counts["reused"],
    )
    result = StudyResult(
        results=results.key if results else None,
        failed=failed,
        made=counts["made"],
        reused=counts["reused"],
        outcome=outcome,
        run=record_name(config.name, traces.pin.run),
        flow_run_id=traces.journal.flow_run_id,
        holds=holds,
        config=config,
        disk_use=describe_disk_use(session.view, session.artifacts.values(), config.keep),
    )
    seconds = time.monotonic() - session.began
    get_run_logger().info(
        run_log.closing_line(result.summary, result.failed, seconds, result.results)
    )
    if results:
        with warn_only():
            publish_results(store, result.run, config.name, results.key, traces.pages)
    return result


def _promise_of_graph(graph: StudyGraph) -> dict[str, Any]:
    """Returns what a run that makes a graph is to report; {} if it ends before the report."""
    if graph.results is None:
        return {}
    scored = {
        cell.benchmark: (step.config.metric, step.inputs["data"].config)
        for cell, step in graph.cells.items()
    }
    return promise_of(graph.results.config.plan, scored)


def _log_beginning(explanation: Explanation, reused: Set[GraphNode]) -> None:
    """Logs on the run's page what is about to be made, and what is odd about the study."""
    log, config = get_run_logger(), explanation.study
    if line := explanation.describe_remakes():
        log.info(line)
    for line in config.describe_budgets():
        log.warning(line)
    for line in describe_paper_deviations(config):
        log.info(line)
    log.info(run_log.opening_line(explanation.graph, reused, explanation.is_reused))


def _run_record_headline(results: Artifact) -> dict[str, Any]:
    """Returns the counts and the best score of a table, for lists of runs."""
    report = read_json((results.path / "results.json").read_text(encoding="utf-8"))
    return {**results.manifest.counts, "score": headline_text(report)}


def _describe_request() -> str:
    """Returns the command as it was typed; for a run from a form, what it was filled with."""
    if deployment.id:
        filled = {name: value for name, value in flow_run.parameters.items() if value}
        return json.dumps(filled, default=str, sort_keys=True)
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
