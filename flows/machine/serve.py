"""`parcel serve`: a Prefect server with its UI, and a runner for the runs started there."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.config.server_limits import limit_variables, save_limits
from flows.machine.start import sidecar_of
from infra.errors import ConfigError
from infra.prefect.server import auth_file, is_loopback, running, server_of, serving_alone
from infra.prefect.server_log import log_file
from infra.prefect.settings import apply, check_current_folder
from infra.processes.signals import add_exit_hook, install_signal_handlers
from infra.progress import wait_line
from infra.store.store import Store
from infra.terminal import terminal_console

DEFAULT_PORT = 4200
_CHILDREN_TIMEOUT = 3.2
"""Time that runs started from the UI have to settle their rows when `parcel serve` ends [s]."""


def serve_studies(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: str | None = None,
    any_store: bool = False,
    any_runner: bool = False,
    roots: Sequence[str] = (),
) -> None:
    """Serves until interrupted.

    Args:
      store: the store that runs started from the UI use.
      host: address that the server listens on; beyond loopback `auth` must be given.
      port: port of the server; None takes that of a server already running for the store, or the
        default one.
      auth: credentials that browsers and clients must give, "name:password"; None draws them.
      any_store: let the form name another store.
      any_runner: let the form name a Beam runner and its options, a launcher, and functions by file
        or module.
      roots: further folders, or addresses in buckets, whose files the form may name, beside the
        current folder and the store.

    Raises:
      ConfigError: if the host is beyond loopback without `auth`, or if the store already has a
        server with other settings.
    """
    install_signal_handlers()
    if not is_loopback(host) and auth is None:
        raise ConfigError(
            f"--auth must be given with --host {host}: everybody who reaches this machine could "
            f"start runs. Pass name:password in the variable PARCEL_AUTH, or a file, --auth @FILE."
        )
    # Both before anything imports Prefect, or a run that is started from here: settings and limits
    # are variables of the environment, which runs inherit.
    apply(store.state)
    limits = limit_variables(
        store.uri,
        any_store=any_store,
        any_runner=any_runner,
        roots=[Path.cwd(), store.uri, *roots],
    )
    # A run is a process that Prefect starts by `python -m` in this folder; see
    # `infra.processes.module`.
    os.environ |= {**limits, "PYTHONSAFEPATH": "1"}
    console = terminal_console(highlight=False, soft_wrap=True)
    console.print("starting Prefect …")
    # A server that runs for the store already is joined, at its own port.
    if port is None and running(store.state) is None:
        port = DEFAULT_PORT
    with contextlib.ExitStack() as kept:
        with wait_line("starting Prefect"):
            server = kept.enter_context(
                server_of(store.state, host=host, port=port, auth=auth, sidecar=sidecar_of(store))
            )
        kept.enter_context(serving_alone(store.state, server))
        check_current_folder()
        save_limits(store.state, limits)
        # Runs end before the server does: their last rows need somebody to take them.
        add_exit_hook(_end_runs)
        from flows.machine.watch import settle_runs_forever
        from flows.sweep.form import deployments_of

        deployments = deployments_of("demo", store.uri, any_store=any_store)

        # Only after these imports: Prefect's modules deadlock if two threads import them.
        def watch() -> None:
            try:
                settle_runs_forever(store, _write_line)
            finally:
                _write_line("the runs are not watched any more: end it, and start it again")

        threading.Thread(target=watch, daemon=True).start()
        console.print(f"start page: {server.pages.link()}  (store {store.uri}); end with Ctrl-C")
        console.print(f"UI: {server.ui.link()}")
        if not console.is_terminal and auth is None:
            console.print(f"name and password for a browser: {auth_file(store.state)}")
        try:
            _run_deployments(deployments, store.state / "prefect" / "runner")
        except httpx.HTTPError as error:
            raise RuntimeError(
                f"Prefect's server does not answer any more ({type(error).__name__}), its log is "
                f"{log_file(store.state)}; `parcel serve` starts it again, and what was made is "
                f"in the store."
            ) from error


def parse_auth(auth: str | None) -> str | None:
    """Returns an auth string, which is given literally or as "@FILE" with the file that holds it.

    Raises:
      ConfigError: if it is not "name:password", or the file cannot be read.
    """
    if auth is None or auth == "":
        return None
    if auth.startswith("@"):
        try:
            auth = Path(auth[1:]).expanduser().read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"--auth {auth}: {error.strerror}.") from None
    name, _, password = auth.partition(":")
    if not (name and password):
        raise ConfigError("--auth must be name:password, both not empty; it is not shown here.")
    return auth


def _write_line(line: str) -> None:
    print(f"parcel serve: {line}", file=sys.stderr, flush=True)


def _end_runs(number: signal.Signals) -> None:
    """Ends the runs by a signal of their own, while the server can still take their last rows."""
    children: list[psutil.Process] = []
    for process in install_signal_handlers().processes():  # Not the guardian: it ends last.
        with contextlib.suppress(psutil.Error):
            if process.ppid() == os.getpid():
                children.append(process)
                process.send_signal(signal.SIGTERM)
    psutil.wait_procs(children, timeout=_CHILDREN_TIMEOUT)


def _run_deployments(deployments: list[Any], folder: Path) -> None:
    """Registers the deployments and runs what is started of them; never returns.

    Args:
      deployments: the deployments.
      folder: folder for the temporary files of Prefect's runner, which is the user's alone.
    """
    from prefect import serve as serve_deployments

    # The runner takes `runner_storage` in the folder of temporary files, one name for all users of
    # a machine: the first makes it, and it is closed to the others. Of this process alone: the
    # variables, which runs inherit, stay.
    folder.mkdir(mode=0o700, exist_ok=True)
    tempfile.tempdir = str(folder)
    # Prefect's handler of SIGTERM makes a coroutine that nobody awaits: the process ends there.
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'", RuntimeWarning)
    serve_deployments(*deployments, print_starting_message=False)
