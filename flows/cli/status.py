"""`parcel status`: what goes on in a store."""

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption, open_store

status_app = typer.Typer()


@status_app.command(epilog="Example: parcel status --store gs://bucket/studies")
def status(store: StoreOption = DEFAULT_STORE) -> None:
    """Tells which runs are under way, who holds which step since when, and what waits for what.

    Runs and leases of every machine that uses the store are told; the steps of a run are, where it
    runs on this one.
    """
    from flows.commands.status import status

    for line in status(open_store(store)):
        typer.echo(line)
