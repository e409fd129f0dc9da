"""The `parcel` command. Heavy imports are inside the commands: `--help` must be instant."""

import difflib
import errno
import os
import sys
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from infra.errors import DISK_FULL, MAKE_ROOM
from infra.store.variables import check_xla_flags, leave_out_variables
from parcel.cli.accept import accept_app
from parcel.cli.certify import certify_app
from parcel.cli.data import data_app
from parcel.cli.deploy import deploy_app
from parcel.cli.doctor import doctor_app
from parcel.cli.gc import gc_app
from parcel.cli.lineage import lineage_app
from parcel.cli.model import model_app
from parcel.cli.plan import plan_app
from parcel.cli.release import release_app
from parcel.cli.results import results_app
from parcel.cli.run import Phase, run_app
from parcel.cli.schedule import schedule_app
from parcel.cli.serve import serve_app
from parcel.cli.status import status_app
from parcel.cli.sweep import sweep_app
from parcel.cli.verify import verify_app
from parcel.environment import use_utf8_output

_READ_ONLY = "; this command writes there: make it writable, or name another --store"
_CURES = {
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    **dict.fromkeys(DISK_FULL, MAKE_ROOM),
    errno.EMFILE: "; raise the limit of open files, such as by `ulimit -n 4096`",
}
"""Error of the system -> what to do about it."""

_SHORT = {
    **{phase: ["run", "--until", phase] for phase in get_args(Phase)},
    **{name: ["model", name] for name in ("convert", "flops", "spectral", "score", "predict")},
    "check-connector": ["model", "check"],
    "watch": ["serve", "--watch"],
}
"""First word of a command -> what it is short for: `parcel train` is `parcel run --until train`."""


class _Commands(TyperGroup):
    """The commands of `parcel`, and the words that are short for some of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *words = args
        names = {*self.commands, *_SHORT}
        if name not in names and (near := difflib.get_close_matches(name, names, 1)):
            ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, [*_SHORT.get(name, [name]), *words])


app = typer.Typer(
    cls=_Commands,
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
    status_app,
    doctor_app,
    accept_app,
    gc_app,
    release_app,
    certify_app,
    verify_app,
):
    app.add_typer(commands)
app.add_typer(lineage_app, name="lineage")
app.add_typer(data_app, name="data")
app.add_typer(model_app, name="model")
app.add_typer(schedule_app, name="schedule")


def _print_version(is_wanted: bool) -> None:
    """Prints version and commit as manifests have them, and ends the command."""
    if not is_wanted:
        return
    from infra.store.environment import git_state

    state = git_state()
    edited = ", edited since" if state["dirty"] else ""
    commit = f" (commit {state['commit']}{edited})" if state["commit"] else ""
    typer.echo(f"parcel {state['version'] or 'not installed'}{commit}")
    raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show version and commit."
        ),
    ] = False,
) -> None:
    if debug:
        os.environ["PARCEL_DEBUG"] = "1"
    if context.invoked_subcommand != "doctor":  # Which has a line on each.
        _check_command_python_path()
        check_xla_flags()


def _check_command_python_path() -> None:
    """Raises a `ConfigError` if PYTHONPATH has files that other processes would take for ours."""
    from infra.errors import ConfigError
    from infra.processes.module import PACKAGES, hiding_files, stated_path

    for package, file in hiding_files(PACKAGES, stated_path()):
        raise ConfigError(
            f"{file} hides the package {package} of parcel-pipeline: take its folder off "
            f"PYTHONPATH, or rename it; without PYTHONPATH a command may be given in its folder."
        )


def _hiding_file(error: Exception) -> str:
    """Returns ` (FILE hides the package NAME)` for an import that PYTHONPATH led to that file."""
    from infra.processes.module import hiding_files, stated_path

    name = getattr(error, "name", None)
    if isinstance(error, AttributeError):  # A module that lacks what the package of its name has.
        name = getattr(error.obj, "__name__", None)
    if not isinstance(error, ImportError | AttributeError) or not isinstance(name, str):
        return ""
    found = [*hiding_files([name.partition(".")[0]], stated_path())]
    return f" ({found[0][1]} hides the package {found[0][0]})" if found else ""


def main() -> None:
    """Runs the command; an error is one line, and the exit code says whose mistake it is."""
    use_utf8_output()
    leave_out_variables()
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
    if "infra.prefect.best_effort" in sys.modules:
        from infra.prefect.best_effort import is_server_away
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
        message, code = tell() + _refused_value(error) + _key_of_config(error), 2
    elif isinstance(error, ConfigError):
        message, code = str(error), 2
    elif isinstance(error, KeyError):
        message, code = str(error.args[0]), 2
    elif isinstance(error, OSError) and error.filename and error.strerror:
        cure = _CURES.get(error.errno or 0, "")
        message, code = f"{error.filename}: {error.strerror}{cure}.", 1
    else:
        message, code = one_line_message(error) + _hiding_file(error), 1
    print(f"parcel: {one_line(message)}", file=sys.stderr)
    return code


def _key_of_config(error: Exception) -> str:
    """Returns how to write a key of a study's config that was given as an option; "" if it is none.

    `parcel run --seeds 5` means `parcel run num_seeds=5`.
    """
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not option or not context or all(p.name != "arguments" for p in context.command.params):
        return ""
    from flows.config.validation import nearest_key
    from flows.study.study import StudyConfig

    key = nearest_key(option.lstrip("-").replace("-", "_"), StudyConfig)
    return f"; a study's keys have no dashes: {key}=VALUE" if key else ""


def _refused_value(error: Exception) -> str:
    """Returns `, got 'x'` for a value of the wrong type, which Typer's message leaves out."""
    import pydantic

    cause = error.__cause__
    if not isinstance(cause, pydantic.ValidationError):
        return ""
    return f", got {cause.errors()[0]['input']!r}"


if __name__ == "__main__":
    main()
