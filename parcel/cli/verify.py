"""`parcel verify`: checks the certificate of a table, as far as what is at hand allows."""

from pathlib import Path
from typing import Annotated

import typer

from parcel.cli.options import heed_signals, open_existing_store

verify_app = typer.Typer()


@verify_app.command(epilog="Example: parcel verify demo.cert.json --store copy --replay 5%")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Certificate of `parcel certify`.")],
    public_key: Annotated[
        str,
        typer.Option(
            metavar="LINE",
            help="The author's public key, ed25519:…, from the paper.",
            show_default="the one in FILE",
        ),
    ] = "",
    replay: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="With --store: make such a share of cells and trainings again."
        ),
    ] = "",
    seed: Annotated[
        int | None,
        typer.Option(help="With --replay: seed of the draw.", show_default="drawn, and printed"),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Largest score difference on another kind of machine, in points."),
    ] = 0.5,
    # Not `StoreOption`: PARCEL_STORE is the verifier's own store, which knows nothing of the table.
    store: Annotated[
        str, typer.Option(metavar="URI", help="The run's store, or a copy of it.")
    ] = "",
) -> None:
    """Checks a certificate: signed, consistent, traced, re-made; and says what none of it proves.

    With the file alone, its signature is checked, and its scores, table and intervals are computed
    again. With --store, the run's store or a copy, every digest is. Exit code 1 if a level fails.
    """
    heed_signals()
    from flows.lineage.certificate.verify import verify_certificate
    from parcel.cli.run_steps import steps_of_run

    verdict = verify_certificate(
        file,
        public_key=public_key,
        store=open_existing_store(store) if store else None,
        share=_share(replay),
        seed=seed,
        tolerance=tolerance,
        steps_of=steps_of_run,
        log=typer.echo,
    )
    typer.echo("\n".join(verdict.lines()))
    if failure := verdict.failure:
        typer.echo(f"failed first: {failure.name}: {failure.detail}", err=True)
        raise typer.Exit(1)


def _share(text: str) -> float:
    from infra.errors import ConfigError

    if not text:
        return 0.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--replay must be a share such as 5% or 0.05, got {text!r}.")
    return share
