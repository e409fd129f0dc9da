"""`parcel check-connector`: checks that a connector keeps the promises of every connector."""

from typing import Annotated

import typer

check_connector_app = typer.Typer()


@check_connector_app.command(epilog="Example: parcel check-connector connectors.py:Ripple")
def check_connector(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Connector: your own as file.py:Class, module:Class or an entry point; or parcel, "
            "mqt, ...",
        ),
    ],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG", help="A study's YAML, whose sizes are checked; default: the demo's."
        ),
    ] = None,
    vision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another tower, by family or published size: siglip2, clip-l-336, ...",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another decoder, likewise: gemma3-4b, vicuna-7b, ..."),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.PY:CLASS",
            help="Also compare it with a torch module on equal weights, at each budget; "
            "PARCEL_TORCH_PYTHON names a Python that has torch and transformers.",
        ),
    ] = None,
) -> None:
    """Checks a connector's promises on random features: a line each, exit code 1 if one fails."""
    from flows.study.check_connector import check_user_connector

    broken = False
    # All checks are run: who writes a connector sees every broken promise at once.
    for finding in check_user_connector(name, config, vision, text, torch):
        typer.echo(f"{finding.name:10} {'ok    ' if finding.holds else 'BROKEN'} {finding.detail}")
        broken |= not finding.holds
    raise typer.Exit(1 if broken else 0)
