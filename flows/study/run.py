"""Runs a study from the terminal: the flow, then what came of it."""

import logging
import time

from rich.console import Console
from rich.markdown import Markdown

from flows.study.config import StudyConfig
from flows.study.flow import StudyResult, study
from flows.study.graph import Phase
from infra.store.store import Store


def run_study(
    config: StudyConfig, store: Store, until: Phase, rebuild: tuple[str, ...] = ()
) -> int:
    """Runs the flow, prints its URL, table and sums, and returns the exit code."""
    # Imports of Grain and Beam give the root logger a handler, which would put every library's
    # lines between ours; Prefect's still reach its server.
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    console = Console(highlight=False)
    console.print(f"study {config.name}: store {store.root}", soft_wrap=True)
    console.print("starting Prefect …")
    began = time.monotonic()
    result: StudyResult = study(config=config, store=str(store.root), until=until, rebuild=rebuild)
    if result.results:
        table = (store.get(result.results).path / "results.md").read_text()
        console.print(Markdown(table)) if console.is_terminal else print(table)
    _sum_up(console, config, store, result, time.monotonic() - began)
    return 1 if result.failed else 0


def _sum_up(
    console: Console, config: StudyConfig, store: Store, result: StudyResult, seconds: float
) -> None:
    for failure in result.failed:
        console.print(f"failed: {failure}", markup=False, soft_wrap=True)
    steps = result.made + result.reused
    summary = "everything re-used" if not result.made else f"{result.reused} re-used"
    console.print(f"{steps} steps in {seconds:.0f} s: {result.made} made, {summary}")
    if result.results:
        folder = store.get(result.results).path
        console.print(f"tables and plot: {folder}", soft_wrap=True)
        method = config.methods[-1]
        cell = f"{next(iter(config.rows))}/{method}/{config.budgets_of(method)[-1]}"
        console.print(f"next: parcel lineage trace {config.name} --cell {cell}")
    console.print(f"flow run: {run_url(result.flow_run_id)}", soft_wrap=True)


def run_url(flow_run_id: str) -> str:
    """Returns the UI page of a run: on the server in use, or on the one `parcel serve` starts."""
    from prefect.settings import PREFECT_API_URL

    api = PREFECT_API_URL.value()
    host = api.removesuffix("/api") if api else "http://127.0.0.1:4200"
    note = "" if api else "  (after `parcel serve`)"
    return f"{host}/v2/runs/flow-run/{flow_run_id}{note}"
