"""`parcel store`: looks after the store itself."""

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, heed_signals

store_app = typer.Typer(no_args_is_help=True, help="Looks after a store as a whole.")


@store_app.callback()
def _group() -> None:
    """Makes `upgrade` a word of its own, although it is the only one so far."""


@store_app.command(epilog="Example: parcel store upgrade --store ~/studies")
def upgrade(store: StoreOption = DEFAULT_STORE) -> None:
    """Gives the artifacts of an older version's store the keys of this one; makes nothing anew.

    No file of an artifact is read or written, on a bucket neither. Killed, it is run again.
    """
    heed_signals()
    from flows.lineage.upgrade import upgrade_store

    for line in upgrade_store(store):
        typer.echo(line)
