"""Starts a study or a sweep in this process, with a Prefect server to report to.

Prefect reads its settings when it is imported, so nothing here imports it before they are set.
"""

import contextlib
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from infra.errors import one_line
from infra.prefect.server import Sidecar, reporting, server_of
from infra.prefect.settings import apply
from infra.processes.signals import wait_if_stopping
from infra.progress import wait_line
from infra.store.records import read_run
from infra.store.store import Store
from infra.terminal import terminal_console

if TYPE_CHECKING:
    from prefect import Flow

    from flows.graph.explain import Explanation
    from flows.run.limits import SweepLimits
    from flows.run.request import RunRequest
    from flows.run.run import Run
    from flows.sweep.sweep import Sweep


_servers = contextlib.ExitStack()
"""Servers that this process keeps running; they end with it."""


class RunStart(NamedTuple):
    """A run that is about to start.

    Attributes:
      run: the run.
      flow: the Prefect flow that executes it; it takes no arguments.
      parameters: what the UI shows as the flow run's parameters.
    """

    run: "Run"
    flow: "Flow[[], Any]"
    parameters: dict[str, Any]


def sidecar_of(store: Store) -> Sidecar:
    """Returns the names of the functions that make a server's pages and check its forms."""
    return Sidecar(
        function="flows.machine.live_pages:server_pages",
        argument=store.uri,
        check="flows.sweep.form_values:served_form_problem",
        forms="flows.",
    )


def _import_pages() -> None:
    """Imports, of what a run needs later, what does not need Prefect: half of it."""
    import flows.pages.lineage_page  # noqa: F401


def keep_server(store: Store) -> None:
    """Has the store's server run until this process ends, unless there is one to report to.

    For notebooks: the pages stay between two runs. And Prefect's client learns the address of its
    server once in a process, so that a second run would not find a server of its own.
    """
    apply(store.state)
    with wait_line("starting Prefect"):
        if not os.environ.get("PREFECT_API_URL"):
            _servers.enter_context(server_of(store.state, sidecar=sidecar_of(store)))


def start_study(
    request: "RunRequest", store: Store, explanation: "Explanation | None" = None
) -> Callable[[], RunStart]:
    """Names the study; returns a function that makes its run, once Prefect is set up.

    Args:
      request: what the run is asked to do.
      store: the study's store.
      explanation: the verdicts on the study's steps up to `until`; None has the run find them.
    """
    name = request.config.name
    print(f"study {name}: store {store.uri}")

    def start() -> RunStart:
        from prefect import Flow

        from flows.run.run import Run

        run = Run(request, store, explanation=explanation)
        flow = Flow(run.execute, name="study", flow_run_name=name, persist_result=False)
        parameters = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
        return RunStart(run, flow, {**parameters, "store": store.uri})

    return start


def start_sweep(
    study: str,
    store: Store,
    overrides: Sequence[str],
    add: "Sweep",
    when: "SweepLimits",
    *,
    approve: bool = False,
) -> Callable[[], RunStart]:
    """Returns a function that makes the run of what a sweep is missing, once Prefect is set up.

    Args:
      study: as in `flows.sweep.form_values.study_values`.
      store: the study's store.
      overrides: changes to the study as "key.path=value" texts.
      add: what the sweep adds to the study.
      when: when steps may begin, and how much work they may do.
      approve: wait for somebody's approval in the UI before anything is made.
    """

    def start() -> RunStart:
        from prefect import Flow

        from flows.sweep.form import finish_sweep, run_of_sweep
        from flows.sweep.form_values import sweep_of_form

        sweep_run = sweep_of_form(study, store, overrides, add)
        run = run_of_sweep(sweep_run, when, approve=approve)
        name = sweep_run.config.name
        flow = Flow(
            lambda: finish_sweep(sweep_run, run.execute()),
            name="sweep",
            flow_run_name=name,
            persist_result=False,
        )
        values = {"study": study, "add": add, "when": when, "overrides": tuple(overrides)}
        return RunStart(run, flow, {**values, "approve": approve, "store": store.uri})

    return start


def run_in_terminal(start: Callable[[], RunStart], store: Store) -> int:
    """Runs a study or a sweep, prints its progress, table and summary; returns the exit code.

    Args:
      start: function that makes the run, called once Prefect is set up.
      store: store of its artifacts.
    """
    store.check_locks()
    apply(store.state)
    print("starting Prefect …", flush=True)
    with contextlib.ExitStack() as server:
        with wait_line("starting Prefect"):
            ui, outlives_run = server.enter_context(
                reporting(store.state, sidecar_of(store), _import_pages)
            )
        print(f"UI: {ui.link()}", flush=True)
        ui = ui if outlives_run else None
        with wait_line("loading the steps"):
            from prefect.flow_engine import run_flow

            from flows.pages.overview import continuing_command
            from flows.run.summary import print_result
            from infra.prefect.best_effort import best_effort
            from infra.prefect.rows import begin, flush, settle_ended, wait_for_events

            run, flow, parameters = start()
        # Importing Grain and Beam gives the root logger a handler, which would print every
        # library's lines between ours. Prefect's lines still reach its server.
        logging.getLogger().handlers[:] = [logging.NullHandler()]
        logging.raiseExceptions = False  # A log line that Prefect's server did not take is no news.
        console = terminal_console(highlight=False)
        began = time.monotonic()
        # The rows of runs that were killed before they could.
        for line in best_effort(settle_ended, store) or ():
            print(f"parcel: {one_line(line)}", file=sys.stderr)
        row = best_effort(begin, flow, parameters)
        state: Any
        try:
            state = run_flow(flow, flow_run=row, parameters={}, return_type="state")
        except Exception as error:
            wait_if_stopping()
            if run.result is None and isinstance(error, httpx.HTTPError):
                raise RuntimeError(
                    f"Prefect's server does not answer any more ({type(error).__name__}); what was "
                    f"made is in the store, and the same command goes on with it."
                ) from error
            if run.result is None:
                raise
            state = None  # The server is gone, but the study has ended and left its result.
        wait_if_stopping()
        result = run.result  # From the run, not from Prefect: it must not be lost with a server.
        # A run without a result had nothing to do, or failed before the study began.
        if result is None:
            assert state is not None
            if not state.is_completed():
                state.result()  # Raises what the flow raised.
            console.print(state.message, markup=False, soft_wrap=True)
            return 0
        print_result(console, store, result, time.monotonic() - began, ui)
        # Before its server ends, all is sent; else Prefect sends log lines in its time.
        best_effort(flush if ui is None else wait_for_events)
        best_effort(settle_ended, store)
        if not result.is_success:
            # The last line: where a person looks, and what they would do next.
            again = continuing_command(read_run(store.files, result.run), store.uri)
            console.print(f"continue: {again}", markup=False, soft_wrap=True)
        return 0 if result.is_success else 1


def settle_earlier_runs(store: Store) -> None:
    """Ends the rows of runs whose processes are gone, for commands that find nothing to run.

    A server is started only if there is such a run.

    Args:
      store: the store of the runs.
    """
    from infra.prefect.journal import has_unsettled

    if not has_unsettled(store):
        return
    apply(store.state)
    from infra.prefect.best_effort import best_effort
    from infra.prefect.rows import settle_ended

    with reporting(store.state, sidecar_of(store)):
        for line in best_effort(settle_ended, store) or ():
            print(f"parcel: {one_line(line)}", file=sys.stderr)
