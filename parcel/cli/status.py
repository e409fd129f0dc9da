"""`parcel status`: shows the runs and leases of a store."""

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, open_existing_store

status_app = typer.Typer()


@status_app.command(epilog="Example: parcel status --store gs://bucket/studies")
def status(store: StoreOption = DEFAULT_STORE) -> None:
    """Shows what runs now, how runs ended since yesterday, what comes next, and the studies.

    Runs and leases are those of every machine that uses the store; the steps of a run are shown
    only on the machine that runs it.
    """
    from flows.machine.status import status

    for line in status(open_existing_store(store)):
        typer.echo(line)
