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
        help="The store: a folder, or gs://bucket/prefix.",
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


def heed_signals() -> None:
    """Makes a signal end this process and all it starts; call it before any heavy import."""
    from infra.processes.signals import install_signal_handlers

    install_signal_handlers()
