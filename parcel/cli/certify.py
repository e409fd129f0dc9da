"""`parcel certify`: signs the table of a run, with what it was computed from, into one file."""

from pathlib import Path
from typing import Annotated

import typer

from parcel.cli.completion import complete_study
from parcel.cli.options import DEFAULT_STORE, StoreOption, open_existing_store
from parcel.studies import mention_larger_run

certify_app = typer.Typer()

_RUN = "A study's name, for its newest run; or a run's full name."
_ITEMS = "Hold the answers with their references, without which scores cannot be computed again."


@certify_app.command(epilog="Example: parcel certify demo --key author.pem --out demo.cert.json")
def certify(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help=_RUN, autocompletion=complete_study)
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private Ed25519 key, in PEM.")
    ] = None,
    new_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Make a key; goes without RUN.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file.", show_default="RUN.cert.json")
    ] = None,
    items: Annotated[bool, typer.Option(help=_ITEMS)] = True,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Writes a certificate of a run's table, which `parcel verify` checks anywhere.

    It is one signed file: the table with its comparisons, the manifests behind it, every run of
    the study's name with what it promised, and the answers. Nothing is sent anywhere.
    """
    from flows.lineage.certificate.envelope import make_key, public_line, read_key, write_envelope
    from infra.errors import ConfigError

    if new_key is not None and run is None and key is None:
        typer.echo(make_key(new_key))
        return
    if run is None or key is None or new_key is not None:
        raise ConfigError("certify needs RUN and --key FILE, or --new-key FILE alone.")
    from flows.lineage.certificate.statement import certify_run

    opened = open_existing_store(store)
    mention_larger_run(opened, run)
    signer = read_key(key)
    statement = certify_run(opened, run, items=items)
    path = out or Path(f"{statement['predicate']['suite']['version']}.cert.json")
    write_envelope(statement, signer, path)
    typer.echo(f"{path}: signed by {public_line(signer)}")
    if not items:
        typer.echo("without answers: `parcel verify` cannot compute its scores again")
