"""`parcel results`: the table of a run, or of a file of scores."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption, open_store

results_app = typer.Typer()


@results_app.command(epilog="Example: parcel results demo --format csv")
def results(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A study's name.")] = None,
    format: Annotated[str, typer.Option(help="md, csv, latex or json.")] = "md",
    scores: Annotated[
        Path | None, typer.Option(help="A score file instead of RUN: paper/detailed_scores.csv.")
    ] = None,
    mixed: Annotated[
        bool, typer.Option(help="Average scores of several library versions or accelerators, too.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints a results table."""
    from flows.report.show import show_results

    typer.echo(show_results(open_store(store), run, format, scores, mixed=mixed), nl=False)
