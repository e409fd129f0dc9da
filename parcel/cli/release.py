"""`parcel release`: writes an elastic checkpoint for transformers, with its card."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, open_existing_store
from parcel.studies import mention_larger_run

release_app = typer.Typer()


@release_app.command(
    epilog="Example: parcel release demo/chartqa/parcel/64/56703 --out parcel-chartqa"
)
def release(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CELL|CHECKPOINT",
            help="RUN/BENCHMARK/METHOD/BUDGET/SEED, a checkpoint's key, or its folder.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write, new or empty.")],
    licence: Annotated[
        str,
        typer.Option(
            "--license", metavar="ID", help="License stated on the card: gemma, apache-2.0, ..."
        ),
    ] = "",
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Dtype of the tensors.")
    ] = "float32",
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.PY:CLASS",
            help="Torch class of a connector of your own, for the release to hold; it is first "
            "compared as by `parcel model check --torch`.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Private key: certify the table, beside the weights; see `parcel certify`.",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Writes a checkpoint that transformers loads, at every budget, with a card of its lineage."""
    from flows.lineage.release import release_checkpoint as lines_of

    if "/" in checkpoint and not Path(checkpoint).is_dir():
        mention_larger_run(open_existing_store(store), checkpoint)
    lines = lines_of(
        checkpoint, out, licence=licence, dtype=dtype, torch=torch, store=store, key=key
    )
    for line in lines:
        typer.echo(line)
