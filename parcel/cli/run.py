"""`parcel run`, and a command for each of its phases."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from parcel.cli.completion import complete_config
from parcel.cli.options import DEFAULT_STORE, StoreOption, heed_signals, open_store
from parcel.studies import load_named_study

run_app = typer.Typer()

StudyArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [key.path=value …]",
        help="A YAML file, or the name of a study that ran; default: the demo. Then overrides.",
        autocompletion=complete_config,
        show_default=False,
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option("--explain", help="Show for each step whether and why it would run, and exit."),
]
ApproveOption = Annotated[
    bool, typer.Option("--approve", help="Wait until somebody resumes the run in the UI.")
]
RebuildOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STEP",
        help="Make this step again if its code has changed, whatever it costs; may hold *.",
        show_default=False,
    ),
]

FailedOption = Annotated[
    bool,
    typer.Option(
        "--failed", help="Run only the steps that failed in the study's last run, and their inputs."
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST:LAST",
        help="Trace these steps of every training that runs, for XProf or TensorBoard.",
        show_default=False,
    ),
]

_COMMANDS = {
    "run": (
        "report",
        "Runs a whole study: prepare, train, transfer, evaluate, report.",
        "configs/small.yaml num_seeds=2 --store ~/studies",
    ),
    "prepare": ("prepare", "Prepares a study's datasets, and stops.", "configs/small.yaml"),
    "train": (
        "train",
        "Trains Stage 1 and the intermediary of every method, and stops.",
        "configs/small.yaml stage1.total_steps=200",
    ),
    "transfer": (
        "transfer",
        "Fine-tunes on every benchmark with every seed, and stops.",
        "configs/small.yaml",
    ),
    "evaluate": (
        "evaluate",
        "Evaluates every transferred checkpoint at every budget, and stops.",
        "configs/small.yaml",
    ),
    "report": (
        "report",
        "Makes the results table of a study, running whatever of it is missing.",
        "configs/small.yaml",
    ),
}
"""Command -> the last phase that it runs, its help, and the arguments of its example."""


def _study_command(until: Any) -> Callable[..., None]:
    def command(
        arguments: StudyArguments = None,
        explain: ExplainOption = False,
        rebuild: RebuildOption = None,
        approve: ApproveOption = False,
        failed: FailedOption = False,
        profile: ProfileOption = None,
        store: StoreOption = DEFAULT_STORE,
    ) -> None:
        # The commands differ in `until` alone; an option that is a key of the config becomes an
        # override.
        words = list(arguments or ())
        if profile:  # In quotes: of digits alone YAML makes a number.
            words.append(f"compute.profile={json.dumps(profile)}")
        heed_signals(repeat=True)
        config = load_study(words, store)
        opened = open_store(store, make=not explain)
        from flows.config.choices_of_ours import choices_of_ours
        from flows.config.paper_deviations import describe_paper_deviations
        from flows.study.explain import explain_study

        deviations = describe_paper_deviations(config, listed=explain)
        for line in (*config.describe_budgets(), *deviations):
            typer.echo(line, err=True)
        # Before anything is opened, so that they can be read where there are no data yet.
        for subject, why in choices_of_ours(config) if explain else ():
            typer.echo(f"[ours]    {subject}: {why}")
        # Explained here, and handed on to the flow: a refusal does not wait for Prefect and Ray.
        explanation = explain_study(config, opened, until)
        explanation.check_rebuild(rebuild or ())
        holds = {}
        if failed:
            from flows.study.retry_policy import (
                describe_failed_steps,
                failed_steps_of_last_run,
                hold_all_but,
            )

            names = failed_steps_of_last_run(opened, config.name)
            if not names:
                typer.echo(f"nothing to run: no step failed in {config.name}'s last run")
                if not explain:
                    from flows.study.start import settle_earlier_runs

                    settle_earlier_runs(opened)
                return
            holds = hold_all_but(names)(explanation)
            if explain:
                typer.echo(describe_failed_steps(config.name, names))
        if explain:
            for line in explanation.lines(config.keep):
                typer.echo(line)
            return
        explanation.check(config.compute.rebuild_limit, rebuild or (), holds)
        if line := explanation.describe_remakes():
            typer.echo(line)
        from flows.study.start import start_study

        code = start_study(
            config, opened, until, rebuild or (), explanation, approve=approve, failed=failed
        )
        raise typer.Exit(code)

    return command


def _without_profile(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command of a study without the option that only trainings have."""

    def other(**options: Any) -> None:
        command(**options)

    # Typer reads a command's options from these two.
    signature = inspect.signature(command)
    kept = [option for option in signature.parameters.values() if option.name != "profile"]
    other.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportFunctionMemberAccess]
    other.__annotations__ = {option.name: option.annotation for option in kept}
    return other


for _name, (_until, _help, _words) in _COMMANDS.items():
    _command = _study_command(_until)
    if _name in ("prepare", "evaluate", "report"):
        _command = _without_profile(_command)
    _example = f"Example: parcel {_name} {_words}"
    run_app.command(_name, help=_help, epilog=_example)(_command)


def load_study(arguments: list[str] | None, store: str) -> Any:
    """Returns the config of the study that a command line names.

    Args:
      arguments: a YAML file, or the name of a study that ran; then overrides.
      store: the store that has studies by name; it is opened only for a name [URI].

    Raises:
      ConfigError: naming the file, the field, the value and what is accepted.
    """
    words = list(arguments or [])
    path = words.pop(0) if words and "=" not in words[0] else None
    return load_named_study(path, words, store)
