"""`parcel watch`: which runs of a store are dead."""

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption, heed_signals, open_store

watch_app = typer.Typer()


@watch_app.command(epilog="Example: parcel watch --store gs://lab/studies")
def watch(store: StoreOption = DEFAULT_STORE) -> None:
    """Tells the Prefect server at PREFECT_API_URL, within a minute, which runs of a store died.

    Run one beside the server for every store; `parcel serve` does it for its own.
    """
    heed_signals()
    opened = open_store(store)
    from flows.study.watch import watch as watch_forever

    watch_forever(opened, lambda line: typer.echo(line))
