"""Runs a study from the terminal: runs the flow, then prints the outcome."""

import logging
import sys
import time
from typing import Any

import httpx
from prefect import Flow
from prefect.flow_engine import run_flow
from rich.console import Console
from rich.markdown import Markdown

from flows.lineage.overview import continuing_command
from flows.lineage.runs import describe_ends
from flows.report.text_lists import abbreviate_list, counted
from flows.study.flow import RESULTS, StudyResult
from infra.errors import one_line
from infra.prefect.published import published
from infra.prefect.rows import begin, flush, settle_ended, wait_for_events
from infra.prefect.server import UI
from infra.processes.signals import wait_if_stopping
from infra.store.records import read_run
from infra.store.store import Store
from infra.terminal import terminal_console

_MAX_NAMES = 3
"""Most steps named in one line; the others are only counted."""


def run_flow_in_terminal(
    what: Flow[..., Any], parameters: dict[str, Any], store: Store, ui: UI | None
) -> int:
    """Runs a flow of ours in this process, prints its table and a summary; returns the exit code.

    Args:
      what: the flow, `study` or `sweep`.
      parameters: parameters of the flow.
      store: store of its artifacts.
      ui: UI that outlives the run; None if it ends with it.
    """
    # Importing Grain and Beam gives the root logger a handler, which would print every library's
    # lines between ours. Prefect's lines still reach its server.
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    logging.raiseExceptions = False  # A log line that Prefect's server did not take is no news.
    console = terminal_console(highlight=False)
    began = time.monotonic()
    # The rows of runs that were killed before they could.
    for line in published(settle_ended, store) or ():
        print(f"parcel: {one_line(line)}", file=sys.stderr)
    row = published(begin, what, parameters)
    state: Any
    try:
        state = run_flow(what, flow_run=row, parameters=parameters, return_type="state")
    except Exception as error:
        wait_if_stopping()
        if not RESULTS and isinstance(error, httpx.HTTPError):
            raise RuntimeError(
                f"Prefect's server does not answer any more ({type(error).__name__}); what was "
                f"made is in the store, and the same command goes on with it."
            ) from error
        if not RESULTS:
            raise
        state = None  # The server is gone, but the study has ended and left its result.
    wait_if_stopping()
    # A flow without a result had nothing to run, or failed before the study began.
    if not RESULTS:
        assert state is not None
        if not state.is_completed():
            state.result()  # Raises what the flow raised.
        console.print(state.message, markup=False, soft_wrap=True)
        return 0
    # From the process, not from Prefect: the result must not be lost with a server.
    result: StudyResult = RESULTS.pop()
    if result.results:
        table = (store.get(result.results).path / "results.md").read_text(encoding="utf-8")
        console.print(Markdown(table)) if console.is_terminal else print(table)
    _print_summary(console, store, result, time.monotonic() - began)
    console.print(f"flow run: {run_url(result.flow_run_id, ui)}", soft_wrap=True)
    # Before its server ends, all is sent; else Prefect sends log lines in its time.
    published(flush if ui is None else wait_for_events)
    published(settle_ended, store)
    if not result.is_success:
        # The last line: where a person looks, and what they would do next.
        again = continuing_command(read_run(store.files, result.run), store.uri)
        console.print(f"continue: {again}", markup=False, soft_wrap=True)
    return 0 if result.is_success else 1


def _print_summary(console: Console, store: Store, result: StudyResult, seconds: float) -> None:
    config = result.config
    # What went wrong comes first, each cause once, and what to do next last, where a person looks:
    #
    #   failed: stage1 m3, stage1 mqt: …
    #   17 steps in 160 s: 8 made, 5 reused, 2 failed, 2 not run
    #   not run, since stage1 m3 failed: transfer m3 chartqa seed=48213, …
    #   tables and plot: .parcel/artifacts/results-…
    #   next: parcel lineage trace demo/chartqa:test_human/parcel/64
    steps_by_failure: dict[str, list[str]] = {}
    for step, _, why in (failure.partition(": ") for failure in result.failed):
        steps_by_failure.setdefault(why, []).append(step)
    for why, failed in steps_by_failure.items():
        names = abbreviate_list(failed, _MAX_NAMES)
        console.print(f"failed: {names}: {why}", markup=False, soft_wrap=True)
    steps = result.made + result.reused + len(result.failed) + len(result.holds)
    idle = not (result.made or result.failed or result.holds)
    summary = "everything reused" if idle else f"{result.reused} reused"
    ends = describe_ends(result.failed, result.holds, cause=False)
    counts = ", ".join(filter(None, (f"{result.made} made", summary, ends)))
    console.print(f"{counted(steps, 'step')} in {seconds:.0f} s: {counts}")
    for why, steps_held in result.steps_by_hold_reason.items():
        console.print(
            f"not run, {why}: {abbreviate_list(steps_held, _MAX_NAMES)}",
            markup=False,
            soft_wrap=True,
        )
    if result.results:
        console.print(result.disk_use, soft_wrap=True)
        folder = store.get(result.results).path
        console.print(f"tables and plot: {folder}", soft_wrap=True)
        # A cell that this study has: its first row, its last method, that method's last budget.
        study, method = config.backbone_studies[0], config.methods[-1]
        if row := next(iter(study.rows), None):
            cell = f"{row}/{method}/{study.budgets_of(method)[-1]}"
            console.print(f"next: parcel lineage trace {config.name}/{cell}")


def run_url(flow_run_id: str, ui: UI | None) -> str:
    """Returns the address of a run's UI page; where its server ends with it, how to see it."""
    if ui is None:  # The port is that of the next `parcel serve`, which is not known yet.
        return f"{flow_run_id}  (`parcel serve` shows it)"
    return ui.link(f"/runs/flow-run/{flow_run_id}")
