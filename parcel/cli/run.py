"""`parcel run`: a study, whole or up to one of its phases."""

import json
from typing import Annotated, Any, Literal

import typer

from infra.errors import ConfigError
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
Phase = Literal["prepare", "train", "transfer", "evaluate", "report"]
UntilOption = Annotated[Phase, typer.Option(help="Last phase that is run.")]
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
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORD",
        help="A word to find the run by; may be given repeatedly.",
        show_default=False,
    ),
]
NoteOption = Annotated[
    str, typer.Option(help="A line about the run, for its page.", show_default=False)
]


@run_app.command(epilog="Example: parcel run configs/small.yaml num_seeds=2 --store ~/studies")
def run(
    arguments: StudyArguments = None,
    until: UntilOption = "report",
    explain: ExplainOption = False,
    rebuild: RebuildOption = None,
    approve: ApproveOption = False,
    failed: FailedOption = False,
    profile: ProfileOption = None,
    tag: TagOption = None,
    note: NoteOption = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Runs a study: prepare, train, transfer, evaluate, report; --until stops after one of them.

    `parcel train ...` is short for `parcel run --until train ...`, and so are the other four words.
    """
    if profile and until == "prepare":
        raise ConfigError("--profile must be without --until prepare, which trains nothing.")
    # An option that is a key of the config becomes an override.
    words = list(arguments or ())
    if profile:  # In quotes: of digits alone YAML makes a number.
        words.append(f"compute.profile={json.dumps(profile)}")
    heed_signals(repeat=True)
    config = load_study(words, store)
    opened = open_store(store, make=not explain)
    from flows.graph.explain import explain_study
    from flows.study.choices_of_ours import choices_of_ours
    from flows.study.paper_deviations import describe_paper_deviations

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
        from flows.run.retry_policy import only_failed

        rule, line = only_failed(opened, config.name)
        if rule is None or explain:
            typer.echo(line)
        if rule is None:
            if not explain:
                from flows.machine.start import settle_earlier_runs

                settle_earlier_runs(opened)
            return
        holds = rule(explanation)
    if explain:
        for line in explanation.lines(config.keep):
            typer.echo(line)
        return
    explanation.check(config.compute.rebuild_limit, rebuild or (), holds)
    if line := explanation.describe_remakes():
        typer.echo(line)
    from flows.machine.start import run_in_terminal, start_study
    from flows.run.request import RunRequest

    request = RunRequest(
        config=config,
        until=until,
        rebuild=tuple(rebuild or ()),
        approve=approve,
        failed=failed,
        tags=tuple(tag or ()),
        note=note,
    )
    raise typer.Exit(run_in_terminal(start_study(request, opened, explanation), opened))


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
