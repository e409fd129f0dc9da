"""The `parcel` command. Heavy imports are inside the commands: `--help` must be instant."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.accept import accept_app
from flows.cli.data import data_app
from flows.cli.gc import gc_app
from flows.cli.model import model_app
from flows.cli.options import DEFAULT_STORE, StoreOption, apply_prefect, heed_signals, open_store
from flows.cli.run import run_app
from flows.cli.score import score_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Elastic visual-token studies: raw data to a results table, every cell traceable.",
)
lineage_app = typer.Typer(no_args_is_help=True, help="Where an artifact or a number comes from.")
app.add_typer(run_app)
app.add_typer(accept_app)
app.add_typer(lineage_app, name="lineage")
app.add_typer(data_app, name="data")
app.add_typer(gc_app)
app.add_typer(model_app)
app.add_typer(score_app)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show tracebacks of errors.")] = False,
) -> None:
    if debug:
        os.environ["PARCEL_DEBUG"] = "1"


@app.command(epilog="Example: parcel serve --port 4200")
def serve(
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="Beyond loopback it needs --auth.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; 4200 by default.")] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="PARCEL_AUTH",
            metavar="NAME:PASSWORD|@FILE",
            help="What browsers and clients must give; in the variable or a file nobody sees it.",
        ),
    ] = None,
    any_store: Annotated[bool, typer.Option(help="Let the form name another store.")] = False,
    any_runner: Annotated[bool, typer.Option(help="Let the form name a Beam runner.")] = False,
) -> None:
    """Starts the Prefect server and UI on loopback, with the study deployment registered."""
    heed_signals()
    from flows.study.serve import auth_of
    from flows.study.serve import serve as serve_forever

    serve_forever(
        open_store(store).root,
        host=host,
        port=port,
        auth=auth_of(auth),
        any_store=any_store,
        any_runner=any_runner,
    )


@app.command(epilog="Example: parcel results demo --format csv")
def results(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A study's name.")] = None,
    format: Annotated[str, typer.Option(help="md, csv, latex or json.")] = "md",
    scores: Annotated[
        Path | None, typer.Option(help="A score file instead of RUN: paper/detailed_scores.csv.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints a results table."""
    from flows.report.show import show_results

    typer.echo(show_results(open_store(store), run, format, scores), nl=False)


@lineage_app.command("show", epilog="Example: parcel lineage show results-3f9a")
def lineage_show(
    key: Annotated[str, typer.Argument(help="An artifact's key, or its beginning.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints the manifest of an artifact."""
    typer.echo(_resolve(store, key).manifest.to_json(), nl=False)


@lineage_app.command("trace", epilog="Example: parcel lineage trace demo --cell chartqa/parcel/64")
def lineage_trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A study's name, or an artifact.")],
    cell: Annotated[str, typer.Option(help="benchmark/method/budget")] = "",
    samples: Annotated[int, typer.Option(help="Source samples shown per dataset.")] = 3,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints everything a cell of the table was made from, down to the source samples."""
    from flows.lineage.trace import trace

    trace(open_store(store), run, cell, samples)


@lineage_app.command("verify", epilog="Example: parcel lineage verify")
def lineage_verify(
    key: Annotated[str | None, typer.Argument(help="An artifact; all of them by default.")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Checks the bytes of artifacts against their manifests."""
    from infra.store.graph import verify

    opened = open_store(store)
    keys = [opened.resolve(key).key] if key else opened.keys()
    logical = {kind: _params_digest for kind in ("checkpoint", "start")}
    problems = [problem for one in keys for problem in verify(opened, one, logical)]
    for problem in problems:
        typer.echo(f"{problem.key} {problem.path}: {problem.reason}", err=True)
    typer.echo(f"{len(keys)} artifacts checked, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


@lineage_app.command("rebuild", epilog="Example: parcel lineage rebuild")
def lineage_rebuild(store: StoreOption = DEFAULT_STORE) -> None:
    """Makes the UI's lineage and results pages again from the manifests."""
    opened = open_store(store)
    apply_prefect(opened)
    from infra.prefect.server import reporting

    with reporting(opened.root):
        from flows.lineage.rebuild import rebuild

        typer.echo(f"{rebuild(opened)} pages published")


def main() -> None:
    """Runs the command; errors are one line, and the exit code says whose they are."""
    try:
        # Not standalone, so that errors come here; `typer.Exit` then comes back as its code.
        raise SystemExit(app(standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except Exception as error:  # The last resort before the user.
        if os.environ.get("PARCEL_DEBUG"):
            raise
        raise SystemExit(_complain(error)) from None
    finally:
        _wait_if_stopping()


def _wait_if_stopping() -> None:
    """Leaves the end to the listener, if a signal came: it has the right exit code."""
    if "infra.processes.signals" in sys.modules:
        from infra.processes.signals import wait_if_stopping

        wait_if_stopping()


def _complain(error: Exception) -> int:
    """Prints an error in one line and returns the exit code: 2 for a wrong request, else 1."""
    from typer.exceptions import TyperException

    from flows.study.load import ConfigError

    if isinstance(error, TyperException):
        tell = getattr(error, "format_message", error.__str__)
        message, code = tell(), 2
    elif isinstance(error, ConfigError):
        message, code = str(error), 2
    elif isinstance(error, KeyError):
        message, code = str(error.args[0]), 2
    else:
        message, code = str(error) or type(error).__name__, 1
    print(f"parcel: {' '.join(message.split())}", file=sys.stderr)
    return code


def _params_digest(checkpoint: Path) -> str:
    from model.checkpoint.folder import params_digest_of

    return params_digest_of(checkpoint)


def _resolve(store: str, key: str) -> Any:
    return open_store(store).resolve(key)
