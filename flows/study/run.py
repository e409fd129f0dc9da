"""Runs a study from the terminal: runs the flow, then prints the outcome."""

import logging
import time
from typing import Any

from prefect import Flow
from prefect.flow_engine import run_flow
from rich.console import Console
from rich.markdown import Markdown

from flows.lineage.overview import continuing_command
from flows.report.text_lists import abbreviate_list
from flows.study.flow import RESULTS, StudyResult
from infra.prefect.published import published
from infra.prefect.rows import begin, flush, settle_ended, wait_for_events
from infra.prefect.server import UI
from infra.store.records import read_run
from infra.store.store import Store

_MAX_NAMES = 3
"""Most held-back steps named in one line; the others are only counted."""


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
    console = Console(highlight=False)
    began = time.monotonic()
    published(settle_ended, store.state)  # The rows of runs that were killed before they could.
    row = published(begin, what, parameters)
    state: Any
    try:
        state = run_flow(what, flow_run=row, parameters=parameters, return_type="state")
    except Exception:
        if not RESULTS:
            raise
        state = None  # The server is gone, but the study has ended and left its result.
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
    published(settle_ended, store.state)
    if not result.is_success:
        # The last line: where a person looks, and what they would do next.
        again = continuing_command(read_run(store.files, result.run), store.uri)
        console.print(f"continue: {again}", markup=False, soft_wrap=True)
    return 0 if result.is_success else 1


def _print_summary(console: Console, store: Store, result: StudyResult, seconds: float) -> None:
    config = result.config
    # What went wrong comes first, and what to do next last, where a person looks:
    #
    #   failed: transfer m3 chartqa seed=48213: …
    #   17 steps in 160 s: 11 made, 5 re-used, 1 failed
    #   tables and plot: .parcel/artifacts/results-…
    #   next: parcel lineage trace demo --cell chartqa:test_human/parcel/64
    for failure in result.failed:
        console.print(f"failed: {failure}", markup=False, soft_wrap=True)
    steps = result.made + result.reused + len(result.failed)
    idle = not (result.made or result.failed or result.holds)
    summary = "everything re-used" if idle else f"{result.reused} re-used"
    failed = f", {len(result.failed)} failed" if result.failed else ""
    console.print(f"{steps} steps in {seconds:.0f} s: {result.made} made, {summary}{failed}")
    for why, steps_held in result.steps_by_hold_reason.items():
        console.print(
            f"not begun, {why}: {abbreviate_list(steps_held, _MAX_NAMES)}",
            markup=False,
            soft_wrap=True,
        )
    if result.results:
        console.print(result.disk_use, soft_wrap=True)
        folder = store.get(result.results).path
        console.print(f"tables and plot: {folder}", soft_wrap=True)
        # A cell that this study has: its first row, its last method, that method's last budget.
        study, method = config.pairs[0], config.methods[-1]
        cell = f"{next(iter(study.rows))}/{method}/{study.budgets_of(method)[-1]}"
        console.print(f"next: parcel lineage trace {config.name} --cell {cell}")


def run_url(flow_run_id: str, ui: UI | None) -> str:
    """Returns the address of a run's UI page; where its server ends with it, how to see it."""
    if ui is None:  # The port is that of the next `parcel serve`, which is not known yet.
        return f"{flow_run_id}  (`parcel serve` shows it)"
    return ui.link(f"/runs/flow-run/{flow_run_id}")
