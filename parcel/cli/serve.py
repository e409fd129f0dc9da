"""`parcel serve`: serves the UI, and runs the studies that are started there."""

from typing import Annotated

import typer

from infra.errors import ConfigError
from parcel.cli.options import DEFAULT_STORE, StoreOption, heed_signals, open_store

serve_app = typer.Typer()


@serve_app.command(epilog="Example: parcel serve --port 4200")
def serve(
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[
        str, typer.Option(help="Host to listen on; any but loopback needs --auth.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; default: 4200. 0 takes one that is free."
        ),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="PARCEL_AUTH",
            metavar="NAME:PASSWORD|@FILE",
            help="Login that browsers and clients must give; default: one drawn for the store. The "
            "variable or a file hides it.",
        ),
    ] = None,
    any_store: Annotated[bool, typer.Option(help="Let the form name another store.")] = False,
    any_runner: Annotated[
        bool,
        typer.Option(help="Let a run name a Beam runner, a launcher, or code by file or module."),
    ] = False,
    root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="Folder, or a bucket's address, whose files a run may name, beside the current "
            "folder and the store; may be given again.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Start no server: tell the one at PREFECT_API_URL, within a minute, which runs of "
            "the store died. Run one for each store beside such a server.",
        ),
    ] = False,
) -> None:
    """Starts the Prefect server and UI on loopback, with the study deployment registered.

    They are for you alone: on a terminal, the links that are shown log your browser in, and your
    own commands find the password in the store.
    """
    # Before heavy imports: Ctrl-C during one of them must end this process, too.
    heed_signals()
    if watch:
        if port is not None or host != "127.0.0.1" or any_store or any_runner or root:
            raise ConfigError("--watch must be without a server's options; it takes --store alone.")
        opened = open_store(store)  # Made if need be: it is watched from before its first run on.
        from infra.prefect.settings import import_prefect

        import_prefect()
        from flows.machine.watch import watch_runs

        watch_runs(opened, typer.echo)
        return
    from flows.machine.serve import parse_auth
    from flows.machine.serve import serve_studies as serve_forever

    serve_forever(
        open_store(store),
        host=host,
        port=port,
        auth=parse_auth(auth),
        any_store=any_store,
        any_runner=any_runner,
        roots=root or (),
    )
