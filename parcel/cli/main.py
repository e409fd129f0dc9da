"""The `parcel` command. Heavy imports are inside the commands: `--help` must be instant."""

import errno
import os
import sys
from typing import Annotated

import typer

from infra.errors import DISK_FULL, MAKE_ROOM
from parcel.cli.accept import accept_app
from parcel.cli.check_connector import check_connector_app
from parcel.cli.convert import convert_app
from parcel.cli.data import data_app
from parcel.cli.deploy import deploy_app
from parcel.cli.doctor import doctor_app
from parcel.cli.flops import flops_app
from parcel.cli.gc import gc_app
from parcel.cli.lineage import lineage_app
from parcel.cli.plan import plan_app
from parcel.cli.predict import predict_app
from parcel.cli.release import release_app
from parcel.cli.results import results_app
from parcel.cli.run import run_app
from parcel.cli.schedule import schedule_app
from parcel.cli.score import score_app
from parcel.cli.serve import serve_app
from parcel.cli.spectral import spectral_app
from parcel.cli.status import status_app
from parcel.cli.store import store_app
from parcel.cli.sweep import sweep_app
from parcel.cli.watch import watch_app
from parcel.environment import print_any_character

_READ_ONLY = "; this command writes there: make it writable, or name another --store"
_CURES = {
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    **dict.fromkeys(DISK_FULL, MAKE_ROOM),
    errno.EMFILE: "; raise the limit of open files, such as by `ulimit -n 4096`",
}
"""Error of the system -> what to do about it."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Elastic visual-token studies: raw data to a results table, every cell traceable.",
)
for commands in (
    run_app,
    plan_app,
    sweep_app,
    results_app,
    serve_app,
    deploy_app,
    watch_app,
    status_app,
    doctor_app,
    accept_app,
    gc_app,
    convert_app,
    release_app,
    predict_app,
    score_app,
    flops_app,
    spectral_app,
    check_connector_app,
):
    app.add_typer(commands)
app.add_typer(lineage_app, name="lineage")
app.add_typer(data_app, name="data")
app.add_typer(schedule_app, name="schedule")
app.add_typer(store_app, name="store")


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option(help="Show tracebacks of errors.")] = False,
) -> None:
    if debug:
        os.environ["PARCEL_DEBUG"] = "1"


def main() -> None:
    """Runs the command; an error is one line, and the exit code says whose mistake it is."""
    print_any_character()
    try:
        # Not standalone, so that errors come here; `typer.Exit` then comes back as its code.
        code = app(standalone_mode=False) or 0
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except Exception as error:  # The last resort before the user.
        if os.environ.get("PARCEL_DEBUG"):
            raise
        code = _print_error(error)
    finally:
        _wait_if_stopping()
    _exit_without_server(code)
    raise SystemExit(code)


def _wait_if_stopping() -> None:
    """After a signal, waits for its listener to end the process with the right exit code."""
    if "infra.processes.signals" in sys.modules:
        from infra.processes.signals import wait_if_stopping

        wait_if_stopping()


def _exit_without_server(code: int) -> None:
    """Exits at once if Prefect would wait, for minutes, for a server that does not answer."""
    if "infra.prefect.published" in sys.modules:
        from infra.prefect.published import is_server_away
        from infra.processes.signals import exit_now

        if is_server_away():
            exit_now(code)


def _print_error(error: Exception) -> int:
    """Prints an error in one line and returns the exit code: 2 for a wrong request, else 1."""
    from typer.exceptions import TyperException

    from infra.errors import ConfigError, one_line, one_line_message

    # Exit code 2 says that the request was wrong, 1 that the work failed; a script can tell them
    # apart. A KeyError is a name that was not found, and its text is the argument.
    if isinstance(error, TyperException):
        tell = getattr(error, "format_message", error.__str__)
        message, code = tell() + _refused_value(error), 2
    elif isinstance(error, ConfigError):
        message, code = str(error), 2
    elif isinstance(error, KeyError):
        message, code = str(error.args[0]), 2
    elif isinstance(error, OSError) and error.filename and error.strerror:
        cure = _CURES.get(error.errno or 0, "")
        message, code = f"{error.filename}: {error.strerror}{cure}.", 1
    else:
        message, code = one_line_message(error), 1
    print(f"parcel: {one_line(message)}", file=sys.stderr)
    return code


def _refused_value(error: Exception) -> str:
    """Returns `, got 'x'` for a value of the wrong type, which Typer's message leaves out."""
    import pydantic

    cause = error.__cause__
    if not isinstance(cause, pydantic.ValidationError):
        return ""
    return f", got {cause.errors()[0]['input']!r}"


if __name__ == "__main__":
    main()
