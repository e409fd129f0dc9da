"""`parcel sweep`: adds seeds, methods, benchmarks or budgets to a study, now or on a schedule."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, apply_prefect, heed_signals, open_store
from parcel.cli.run import ApproveOption, ExplainOption, StudyArguments

sweep_app = typer.Typer()


def _list_option(text: str, help: str) -> Any:
    return typer.Option(metavar=text, help=help, show_default=False)


@sweep_app.command(
    epilog="Example: parcel sweep mine.yaml --add-seeds 1 --max-seeds 10 --cron '0 20 * * *' "
    "--from 20:00 --to 08:00"
)
def sweep(
    arguments: StudyArguments = None,
    methods: Annotated[str, _list_option("M,M…", "Methods to add to the study's.")] = "",
    benchmarks: Annotated[
        str, _list_option("B,B…", "Benchmarks to add, with the paper's recipes.")
    ] = "",
    budgets: Annotated[str, _list_option("N,N…", "Budgets to add, in soft tokens per frame.")] = "",
    seeds: Annotated[int, _list_option("N", "Total number of transfer seeds.")] = 0,
    pretrain_seeds: Annotated[int, _list_option("N", "Total number of pretrainings.")] = 0,
    add_seeds: Annotated[
        int, _list_option("N", "Transfer seeds to add once the present ones have every cell.")
    ] = 0,
    add_pretrain_seeds: Annotated[
        int, _list_option("N", "Pretrainings to add, under the same condition.")
    ] = 0,
    max_seeds: Annotated[
        int | None, _list_option("N", "Largest total number of transfer seeds.")
    ] = None,
    max_pretrain_seeds: Annotated[
        int | None, _list_option("N", "Largest total number of pretrainings.")
    ] = None,
    until: Annotated[
        str, _list_option("decided", "Add seeds until it is settled which method is better.")
    ] = "",
    compare: Annotated[
        str,
        _list_option(
            "M,M…",
            "Methods to compare: the first with each of the others; default: the study's last "
            "with all others.",
        ),
    ] = "",
    start: Annotated[
        str, typer.Option("--from", help="Begin no cell before this time, HH:MM.")
    ] = "",
    end: Annotated[
        str,
        typer.Option("--to", help="Begin no cell after this time, HH:MM; running cells finish."),
    ] = "",
    timezone: Annotated[str, typer.Option(help="Time zone of --from, --to and --cron.")] = "UTC",
    max_hours: Annotated[
        float, _list_option("HOURS", "Most device-hours of work; with --cron, of each firing.")
    ] = 0.0,
    first: Annotated[
        list[str] | None, _list_option("STEP", "Steps to run first, in this order; may hold *.")
    ] = None,
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
    heed_signals()
    words = list(arguments or [])
    # `parcel sweep num_seeds=5` changes the demo; a first word without `=` is a study.
    study = words.pop(0) if words and "=" not in words[0] else "demo"
    from flows.study.form_values import check_values, sweep_of_form
    from flows.study.sweep import Sweep
    from flows.study.sweep_limits import SweepLimits
    from infra.errors import ConfigError

    if until not in ("", "decided"):
        raise ConfigError(f"--until must be decided, got {until!r}.")
    # Bounds that no option states are left out, so that their defaults stay in one place.
    bounds = {"max_seeds": max_seeds, "max_pretrain_seeds": max_pretrain_seeds}
    add = {
        "methods": _parse_methods(methods),
        "benchmarks": _split_words(benchmarks),
        "budgets": _split_words(budgets),
        "seeds": seeds,
        "pretrain_seeds": pretrain_seeds,
        "add_seeds": add_seeds,
        "add_pretrain_seeds": add_pretrain_seeds,
        **{name: bound for name, bound in bounds.items() if bound is not None},
        "until_decided": until == "decided",
        "compare": _parse_methods(compare),
    }
    when = {
        "start": start,
        "end": end,
        "timezone": timezone,
        "max_hours": max_hours,
        "first": tuple(first or ()),
    }
    sweep_and_limits = check_values(Sweep, add, "sweep"), check_values(SweepLimits, when, "sweep")
    opened = open_store(store)
    sweep_run = sweep_of_form(study, opened, words, sweep_and_limits[0])
    # A schedule is registered and nothing runs now.
    if cron is not None:
        apply_prefect(opened)
        from infra.prefect.server import connect

        if not connect(opened.state):
            raise ConfigError(
                f"--cron needs a server that fires the sweep: start `parcel serve --store "
                f"{store}`, or name one in PREFECT_API_URL and register the study there with "
                f"`parcel deploy`."
            )
        from flows.study.deploy import schedule_sweep

        for line in schedule_sweep(sweep_run, sweep_and_limits[1], cron):
            typer.echo(line)
        return
    for line in sweep_run.describe_redundant_settings():
        typer.echo(line)
    # What the first pass would do is shown before it begins; the flow draws the passes again.
    config = next(sweep_run.passes(), None)
    if config is None:
        typer.echo(sweep_run.why_nothing())
        return
    from flows.study.retry_policy import failures_by_node
    from flows.study.sweep import describe_sweep

    explanation = sweep_run.explain(config)
    for line in describe_sweep(explanation, config, failures_by_node(opened, explanation)):
        typer.echo(line)
    if explain:
        for line in explanation.lines(config.keep):
            typer.echo(line)
        return
    # Dear stale steps stop the sweep here, before a server or a cluster is started.
    explanation.check(config.compute.rebuild_limit, ())
    from flows.study.start import start_sweep

    code = start_sweep(study, opened, words, *sweep_and_limits, approve=approve)
    raise typer.Exit(code)


def _parse_methods(text: str) -> tuple[str, ...]:
    """Returns the methods; paths of the user's own files are resolved from the current folder."""
    from flows.config.load import anchor_reference

    return tuple(anchor_reference(method, Path.cwd()) for method in _split_words(text))


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(" ", ",").split(",") if word)
