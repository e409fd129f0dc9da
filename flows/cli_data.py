"""`parcel data`: what there is to read. Heavy imports are inside the commands."""

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, help="What a folder of raw data holds.")


@data_app.callback()
def _data() -> None:
    """Keeps `check` a command of its own."""


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
