"""`parcel sweep`: adds seeds, methods, benchmarks or budgets to a study, now or on a schedule."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parcel.cli.options import (
    DEFAULT_STORE,
    StoreOption,
    heed_signals,
    open_store,
    use_running_server,
)
from parcel.cli.run import ApproveOption, ExplainOption, StudyArguments
from parcel.studies import mention_larger_run

sweep_app = typer.Typer()


def _list_option(text: str, help: str) -> Any:
    return typer.Option(metavar=text, help=help, show_default=False)


# Options of `parcel sweep` and `parcel schedule change`; None where one is not stated, so that
# defaults have one place, the dataclasses.
MethodsOption = Annotated[str | None, _list_option("M,M…", "Methods to add to the study's.")]
BenchmarksOption = Annotated[
    str | None, _list_option("B,B…", "Benchmarks to add, with the paper's recipes.")
]
BudgetsOption = Annotated[
    str | None, _list_option("N,N…", "Budgets to add, in soft tokens per frame.")
]
SeedsOption = Annotated[int | None, _list_option("N", "Total number of transfer seeds.")]
PretrainSeedsOption = Annotated[int | None, _list_option("N", "Total number of pretrainings.")]
AddSeedsOption = Annotated[
    int | None,
    _list_option("N", "Transfer seeds to add once the present ones have every cell."),
]
AddPretrainSeedsOption = Annotated[
    int | None, _list_option("N", "Pretrainings to add, under the same condition.")
]
MaxSeedsOption = Annotated[int | None, _list_option("N", "Largest total number of transfer seeds.")]
MaxPretrainSeedsOption = Annotated[
    int | None, _list_option("N", "Largest total number of pretrainings.")
]
UntilOption = Annotated[
    str | None,
    _list_option("decided", "Add seeds until it is settled which method is better."),
]
CompareOption = Annotated[
    str | None,
    _list_option(
        "M,M…",
        "Methods to compare: the first with each of the others; default: the study's last with "
        "all others.",
    ),
]
LeastSeedsOption = Annotated[
    int | None,
    _list_option(
        "N",
        "Seeds below which nothing is settled; default: 17, which show nearly always what happens "
        "in a fifth of seeds.",
    ),
]
StartOption = Annotated[
    str | None,
    typer.Option("--from", help="Begin no cell before this time, HH:MM.", show_default=False),
]
EndOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="Begin no cell after this time, HH:MM; running cells finish.",
        show_default=False,
    ),
]
MaxHoursOption = Annotated[
    float | None,
    _list_option("HOURS", "Most device-hours of work; with --cron, of each firing."),
]
FirstOption = Annotated[
    list[str] | None, _list_option("STEP", "Steps to run first, in this order; may hold *.")
]


@sweep_app.command(
    epilog="Example: parcel sweep mine.yaml --add-seeds 1 --max-seeds 10 --cron '0 20 * * *' "
    "--from 20:00 --to 08:00"
)
def sweep(
    arguments: StudyArguments = None,
    methods: MethodsOption = None,
    benchmarks: BenchmarksOption = None,
    budgets: BudgetsOption = None,
    seeds: SeedsOption = None,
    pretrain_seeds: PretrainSeedsOption = None,
    add_seeds: AddSeedsOption = None,
    add_pretrain_seeds: AddPretrainSeedsOption = None,
    max_seeds: MaxSeedsOption = None,
    max_pretrain_seeds: MaxPretrainSeedsOption = None,
    until: UntilOption = None,
    compare: CompareOption = None,
    least_seeds: LeastSeedsOption = None,
    start: StartOption = None,
    end: EndOption = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --from, --to and --cron.")] = "UTC",
    max_hours: MaxHoursOption = None,
    first: FirstOption = None,
    cron: Annotated[
        str | None,
        typer.Option(
            help="Schedule on which the sweep fires; `parcel serve` or a worker runs it.",
            metavar="CRON",
        ),
    ] = None,
    explain: ExplainOption = False,
    approve: ApproveOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Adds seeds, methods, benchmarks or budgets to a study, and runs what is missing."""
    heed_signals(repeat=True)
    words = list(arguments or [])
    # `parcel sweep num_seeds=5` changes the demo; a first word without `=` is a study.
    study = words.pop(0) if words and "=" not in words[0] else "demo"
    from flows.run.limits import SweepLimits
    from flows.sweep.form_values import check_values, sweep_of_form
    from flows.sweep.sweep import Sweep

    add = sweep_settings(
        methods=methods,
        benchmarks=benchmarks,
        budgets=budgets,
        seeds=seeds,
        pretrain_seeds=pretrain_seeds,
        add_seeds=add_seeds,
        add_pretrain_seeds=add_pretrain_seeds,
        max_seeds=max_seeds,
        max_pretrain_seeds=max_pretrain_seeds,
        until=until,
        compare=compare,
        least_seeds=least_seeds,
    )
    when = limit_settings(start=start, end=end, timezone=timezone, max_hours=max_hours, first=first)
    sweep_and_limits = check_values(Sweep, add, "sweep"), check_values(SweepLimits, when, "sweep")
    opened = open_store(store, make=not explain and cron is None)
    mention_larger_run(opened, study, with_table=False)
    sweep_run = sweep_of_form(study, opened, words, sweep_and_limits[0])
    # A schedule is registered and nothing runs now.
    if cron is not None:
        use_running_server(opened)
        from flows.sweep.schedule import schedule_sweep

        for line in schedule_sweep(sweep_run, sweep_and_limits[1], cron):
            typer.echo(line)
        return
    for line in sweep_run.describe_redundant_settings():
        typer.echo(line)
    # What the first pass would do is shown before it begins; the flow draws the passes again.
    explanation = next(sweep_run.passes(), None)
    if explanation is None:
        typer.echo(sweep_run.why_nothing())
        if not explain:
            from flows.machine.start import settle_earlier_runs

            settle_earlier_runs(opened)
        return
    from flows.run.retry_policy import failures_by_node
    from flows.sweep.sweep import describe_sweep

    for line in explanation.study.describe_budgets():
        typer.echo(line, err=True)
    for line in describe_sweep(explanation, failures_by_node(opened, explanation)):
        typer.echo(line)
    if explain:
        for line in explanation.lines(explanation.study.keep):
            typer.echo(line)
        return
    # Dear stale steps stop the sweep here, before a server or a cluster is started.
    explanation.check(explanation.study.compute.rebuild_limit, ())
    if line := explanation.describe_remakes():
        typer.echo(line)
    from flows.machine.start import run_in_terminal, start_sweep

    begin = start_sweep(study, opened, words, *sweep_and_limits, approve=approve)
    raise typer.Exit(run_in_terminal(begin, opened))


def sweep_settings(
    *,
    methods: str | None,
    benchmarks: str | None,
    budgets: str | None,
    until: str | None,
    compare: str | None,
    **counts: int | None,
) -> dict[str, Any]:
    """Returns the fields of `Sweep` that options state.

    Raises:
      ConfigError: if `until` is not a state that a sweep can end with.
    """
    from infra.errors import ConfigError

    if until not in (None, "", "decided"):
        raise ConfigError(f"--until must be decided, got {until!r}.")
    settings: dict[str, Any] = {
        "methods": None if methods is None else _parse_methods(methods),
        "benchmarks": None if benchmarks is None else _split_words(benchmarks),
        "budgets": None if budgets is None else _split_words(budgets),
        "until_decided": None if until is None else until == "decided",
        "compare": None if compare is None else _parse_methods(compare),
        **counts,
    }
    return {name: value for name, value in settings.items() if value is not None}


def limit_settings(*, first: list[str] | None, **limits: Any) -> dict[str, Any]:
    """Returns the fields of `SweepLimits` that options state."""
    if first:
        limits["first"] = tuple(filter(None, first))  # `--first ''` ends an earlier order.
    return {name: value for name, value in limits.items() if value is not None}


def _parse_methods(text: str) -> tuple[str, ...]:
    """Returns the methods; paths of the user's own files are resolved from the current folder."""
    from flows.study.load import anchor_reference

    return tuple(anchor_reference(method, Path.cwd()) for method in _split_words(text))


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(" ", ",").split(",") if word)
