"""Options that several commands share, and the set-up of store, Prefect and signals."""

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


def open_store(uri: str) -> Any:
    """Returns the store at a URI.

    Raises:
      ConfigError: if no store can be opened at `uri`.
    """
    from flows.lineage.open_store import open_store

    return open_store(uri)


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


def heed_signals() -> None:
    """Makes a signal end this process and all it starts; call it before any heavy import."""
    from infra.processes.signals import install_signal_handlers

    install_signal_handlers()
