"""`parcel spectral`: draws the paper's two spectral figures."""

from pathlib import Path
from typing import Annotated

import typer

from infra.errors import ConfigError
from parcel.cli.options import DEFAULT_STORE, StoreOption

spectral_app = typer.Typer()


@spectral_app.command(
    epilog="Example: parcel spectral parcel-ckpt chart.png --compare m3-ckpt --out spectra"
)
def spectral(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's folder, or an artifact's key or its beginning.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers; created if missing.")],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE...]", help="Images, or one video.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another checkpoint; may be given repeatedly.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Soft tokens per image; default: 64 for pooled tokens, all for queries."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Prepared dataset to take images from, too."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most images taken from --data.")] = 64,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="The paper's setting: the picture of every question that people ask in ChartQA's "
            "test split, as a study of the store prepared it.",
        ),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draws the spatial spectra of features, pooled tokens and queries: the paper's figures."""
    from flows.lineage.spectral import draw_spectra

    if paper and (images or data is not None):
        raise ConfigError(
            "--paper must be without IMAGE... and --data: its pictures are ChartQA's."
        )
    # All checkpoints see the same images, so their spectra can be compared.
    written = draw_spectra(
        [checkpoint, *(compare or [])],
        images or [],
        out=out,
        budget=budget,
        data=data,
        limit=None if paper else limit,
        paper=paper,
        store=store,
    )
    for path in written:
        typer.echo(path)
