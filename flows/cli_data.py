"""`parcel data`: what there is to read, and what was made of it. Heavy imports are inside."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options import DEFAULT_STORE, StoreOption

data_app = typer.Typer(no_args_is_help=True, help="What the data hold.")


@data_app.command(epilog="Example: parcel data check --benchmarks ~/data")
def check(
    data_root: Annotated[
        Path | None,
        typer.Argument(help="Folder with a folder per benchmark; none: only what they need."),
    ] = None,
    benchmarks: Annotated[
        bool, typer.Option("--benchmarks", help="Every row of the benchmark tables.")
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Training splits, too; some take minutes to count.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects, a row each.")] = False,
) -> None:
    """Tells which benchmark files are there, and whether they hold what their authors published."""
    from flows.config.load import ConfigError
    from flows.data_check import as_json as json_of
    from flows.data_check import as_text
    from pipelines.sources.check import check_benchmarks

    if not benchmarks:
        raise ConfigError("data check needs what to check; --benchmarks is what there is.")
    if data_root is not None and not data_root.is_dir():
        raise ConfigError(f"data_root must be a folder, got {data_root}: there is none.")
    rows = list(check_benchmarks(data_root, training=training))
    typer.echo(json_of(rows) if as_json else as_text(rows, looked=data_root is not None), nl=False)
    if any(row.problem for row in rows):
        raise typer.Exit(1)


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
