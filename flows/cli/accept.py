"""`parcel accept`: keeps an artifact although its code has changed since."""

from typing import Annotated

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption, open_store

accept_app = typer.Typer()


@accept_app.command(epilog="Example: parcel accept 'transfer parcel *'")
def accept(
    step: Annotated[str, typer.Argument(help="A step's name, which may hold *, or a key.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Keeps stale artifacts: they count as made with the code of now, and cells say so."""
    from flows.commands.accept import accept_stale

    for line in accept_stale(open_store(store), step):
        typer.echo(line)
