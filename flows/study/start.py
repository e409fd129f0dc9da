"""Starts a study or a sweep in this process, with a Prefect server to report to.

Prefect reads its settings when it is imported, so nothing here imports it before they are set.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infra.errors import one_line
from infra.prefect.settings import apply
from infra.progress import wait_line
from infra.store.store import Store

if TYPE_CHECKING:
    from flows.config.study import StudyConfig
    from flows.study.explain import Explanation
    from flows.study.graph import Phase
    from flows.study.sweep import Sweep
    from flows.study.sweep_limits import SweepLimits
    from infra.prefect.server import UI


_servers = contextlib.ExitStack()
"""Servers that this process keeps running; they end with it."""


def keep_server(store: Store) -> None:
    """Has the store's server run until this process ends, unless there is one to report to.

    For notebooks: the pages stay between two runs. And Prefect's client learns the address of its
    server once in a process, so that a second run would not find a server of its own.
    """
    apply(store.state)
    with wait_line("starting Prefect"):
        from flows.study.live_pages import beside
        from infra.prefect.server import server_of

        if not os.environ.get("PREFECT_API_URL"):
            _servers.enter_context(server_of(store.state, beside=beside(store)))


def start_study(
    config: "StudyConfig",
    store: Store,
    until: "Phase",
    rebuild: Sequence[str] = (),
    explanation: "Explanation | None" = None,
    *,
    approve: bool = False,
    failed: bool = False,
) -> int:
    """Runs a study, prints its progress, table and summary; returns the exit code.

    Args:
      config: the study.
      store: the study's store.
      until: as in `flows.study.flow.study`.
      rebuild: as in `flows.study.flow.study`.
      explanation: the verdicts on the study's steps up to `until`; None has the flow find them.
      approve: as in `flows.study.flow.study`.
      failed: as in `flows.study.flow.study`.
    """

    def run(ui: "UI | None") -> int:
        with wait_line("loading the steps"):
            from flows.study.flow import EXPLANATION, study
            from flows.study.run import run_flow_in_terminal

        parameters: dict[str, Any] = {
            "config": config,
            "store": store.uri,
            "until": until,
            "rebuild": tuple(rebuild),
            "approve": approve,
            "failed": failed,
        }
        EXPLANATION.set(explanation)
        return run_flow_in_terminal(study, parameters, store, ui)

    return _run_with_ui(store, f"study {config.name}: store {store.uri}\nstarting Prefect …", run)


def start_sweep(
    study: str,
    store: Store,
    overrides: Sequence[str],
    add: "Sweep",
    when: "SweepLimits",
    *,
    approve: bool = False,
) -> int:
    """Runs what a sweep is missing, and prints as `start_study` does; returns the exit code.

    Args:
      study: as in `flows.study.form_values.study_values`.
      store: the study's store.
      overrides: changes to the study as "key.path=value" texts.
      add: what the sweep adds to the study.
      when: when steps may begin, and how much work they may do.
      approve: as in `flows.study.flow.study`.
    """

    def run(ui: "UI | None") -> int:
        # Imported only now, after `apply` has set Prefect up; see the head of this file.
        with wait_line("loading the steps"):
            from flows.study.form import sweep
            from flows.study.run import run_flow_in_terminal

        parameters: dict[str, Any] = {
            "study": study,
            "add": add,
            "when": when,
            "overrides": tuple(overrides),
            "approve": approve,
            "store": store.uri,
        }
        return run_flow_in_terminal(sweep, parameters, store, ui)

    return _run_with_ui(store, "starting Prefect …", run)


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
    from flows.study.live_pages import beside
    from infra.prefect.published import published
    from infra.prefect.rows import settle_ended
    from infra.prefect.server import reporting

    with reporting(store.state, beside(store)):
        for line in published(settle_ended, store) or ():
            print(f"parcel: {one_line(line)}", file=sys.stderr)


def _run_with_ui(store: Store, head: str, run: "Callable[[UI | None], int]") -> int:
    """Calls `run` with the UI that outlives the run; None if it ends with it."""
    store.check_locks()
    apply(store.state)
    print(head, flush=True)
    with contextlib.ExitStack() as server:
        with wait_line("starting Prefect"):
            from flows.study.live_pages import beside
            from infra.prefect.server import reporting

            ui, stays = server.enter_context(reporting(store.state, beside(store)))
        print(f"UI: {ui.link()}", flush=True)
        return run(ui if stays else None)
