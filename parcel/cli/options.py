"""Options that several commands share, and the set-up of store, Prefect and signals."""

import shlex
import sys
from typing import Annotated, Any

import typer

from parcel import studies

DEFAULT_STORE = studies.DEFAULT_STORE

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="PARCEL_STORE",
        metavar="URI",
        help="The store: a folder, or gs://bucket/prefix, s3://… or az://….",
    ),
]


def open_store(uri: str, *, make: bool = True) -> Any:
    """Returns the store at a URI; it is made where there is none, or reads as an empty one.

    Raises:
      ConfigError: if no store can be opened at `uri`.
    """
    from flows.lookup.open_store import open_store

    return open_store(uri, make=make)


def open_existing_store(uri: str) -> Any:
    """Returns the store at a URI, for commands that make none.

    Raises:
      ConfigError: if there is none, or it cannot be opened.
    """
    from flows.lookup.open_store import open_existing_store

    return open_existing_store(uri)


def apply_prefect(store: Any) -> None:
    """Sets Prefect up for a store; Prefect must be imported after."""
    from infra.prefect.settings import apply

    apply(store.state)


def use_running_server(store: Any) -> None:
    """Makes Prefect's client use the server that fires schedules; Prefect must be imported after.

    Raises:
      ConfigError: if neither the store nor `PREFECT_API_URL` has one.
    """
    apply_prefect(store)
    from infra.errors import ConfigError
    from infra.prefect.server import connect

    if not connect(store.state):
        raise ConfigError(
            f"a schedule needs a server that fires it: start `parcel serve --store {store.uri}`, "
            f"or name one in PREFECT_API_URL and register the study there with `parcel deploy`."
        )


def heed_signals(*, repeat: bool = False) -> None:
    """Makes a signal end this process and all it starts; call it before any heavy import.

    Args:
      repeat: whether the same command again goes on with what this one has begun; the last line
        after a signal then says so.
    """
    from infra.processes.signals import end_with, install_signal_handlers

    install_signal_handlers()
    if repeat:
        end_with(f"continue: {shlex.join(['parcel', *sys.argv[1:]])}")
