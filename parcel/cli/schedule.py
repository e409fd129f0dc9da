"""`parcel schedule`: lists, stops and changes the schedules of studies and sweeps."""

import os
from typing import Annotated

import typer

from parcel.cli.options import (
    DEFAULT_STORE,
    StoreOption,
    heed_signals,
    open_existing_store,
    open_store,
    use_running_server,
)
from parcel.cli.sweep import (
    AddPretrainSeedsOption,
    AddSeedsOption,
    BenchmarksOption,
    BudgetsOption,
    CompareOption,
    EndOption,
    FirstOption,
    LeastSeedsOption,
    MaxHoursOption,
    MaxPretrainSeedsOption,
    MaxSeedsOption,
    MethodsOption,
    PretrainSeedsOption,
    SeedsOption,
    StartOption,
    UntilOption,
    limit_settings,
    sweep_settings,
)

schedule_app = typer.Typer(
    no_args_is_help=True,
    help="Schedules of studies and sweeps; `parcel sweep --cron` sets one.",
)

NameArgument = Annotated[
    str, typer.Argument(help="A schedule as `parcel schedule list` names it, or its study.")
]


def _use_server(store: str) -> None:
    """Makes Prefect's client use the server that fires schedules."""
    # A server that the user names has its schedules, whether or not there is a store here.
    named = os.environ.get("PREFECT_API_URL")
    use_running_server(open_store(store) if named else open_existing_store(store))


@schedule_app.command("list", epilog="Example: parcel schedule list --store gs://lab/studies")
def schedule_list(store: StoreOption = DEFAULT_STORE) -> None:
    """Shows each schedule with its study, its next firing and what that would run."""
    heed_signals()
    _use_server(store)
    from flows.sweep.schedule import list_schedules

    for line in list_schedules():
        typer.echo(line)


@schedule_app.command("stop", epilog="Example: parcel schedule stop sweep-mine")
def schedule_stop(name: NameArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Switches a schedule off; a run that is under way goes on."""
    heed_signals()
    _use_server(store)
    from flows.sweep.schedule import stop_schedule

    for line in stop_schedule(name):
        typer.echo(line)


@schedule_app.command(
    "change",
    epilog="Example: parcel schedule change sweep-mine --cron '0 22 * * *' --max-hours 20",
)
def schedule_change(
    name: NameArgument,
    cron: Annotated[
        str | None, typer.Option(help="Times at which it fires.", show_default=False)
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="Time zone of --cron, --from and --to.", show_default=False),
    ] = None,
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
    max_hours: MaxHoursOption = None,
    first: FirstOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Changes what is stated and leaves the rest; a stopped schedule starts again.

    An empty text or 0 takes an option back: --max-hours 0, --until ''.
    """
    heed_signals()
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
    when = limit_settings(start=start, end=end, max_hours=max_hours, first=first)
    _use_server(store)
    from flows.sweep.schedule import change_schedule

    for line in change_schedule(name, cron=cron, timezone=timezone, add=add, when=when):
        typer.echo(line)
