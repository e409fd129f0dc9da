"""`parcel watch`: reports the runs of a store that died."""

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, heed_signals, open_existing_store

watch_app = typer.Typer()


@watch_app.command(epilog="Example: parcel watch --store gs://lab/studies")
def watch(store: StoreOption = DEFAULT_STORE) -> None:
    """Tells the Prefect server at PREFECT_API_URL, within a minute, which runs of a store died.

    Run one per store beside the server; `parcel serve` watches its own store.
    """
    heed_signals()
    opened = open_existing_store(store)
    from infra.prefect.settings import import_prefect

    import_prefect()
    from flows.machine.watch import watch_runs as watch_forever

    watch_forever(opened, lambda line: typer.echo(line))
