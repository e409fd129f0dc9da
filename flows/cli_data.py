"""`parcel data`: what is in prepared datasets. Heavy imports are inside the commands."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options import DEFAULT_STORE, StoreOption

data_app = typer.Typer(no_args_is_help=True, help="What is in the data.")


@data_app.callback()
def _data() -> None:
    """What is in the data."""


@data_app.command("show", epilog="Example: parcel data show dataset-3f9a --out sheet.html")
def show(
    dataset: Annotated[
        str, typer.Argument(help="A prepared dataset's folder, or an artifact's key, or its begin.")
    ],
    out: Annotated[Path, typer.Option(help="The sheet to write: .html or .png.")],
    limit: Annotated[int, typer.Option(min=1, help="Most records.")] = 24,
    part: Annotated[str | None, typer.Option(help="Only this part, such as caption.")] = None,
    rejects: Annotated[int, typer.Option(min=0, help="Most rejects.")] = 20,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draws a contact sheet: pictures with boxes and masks, frames with times, texts, rejects."""
    from flows.sheet.show import show as write_sheet

    cards, lost = write_sheet(dataset, out, store=store, limit=limit, part=part, rejects=rejects)
    typer.echo(f"{out}: {cards} records, {lost} rejects")
