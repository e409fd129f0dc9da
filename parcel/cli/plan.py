"""`parcel plan`: estimates the machines that a study needs, before any is rented."""

from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, open_store
from parcel.cli.run import StudyArguments, load_study

plan_app = typer.Typer()


@plan_app.command(
    epilog="Example: parcel plan configs/paper_224.yaml --topology v4:8x8x4 --price 3"
)
def plan(
    arguments: StudyArguments = None,
    topology: Annotated[
        str | None,
        typer.Option(
            help="Chips: v4:8x8x4, v5e:16x16, v6e:16x16, …; h100:8, h200, a100, l4, a10, rtx4090."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Price of one chip per hour, in your currency.")
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            help="Share of their peak that chips are assumed to reach where no compiler tells "
            "their time; default: 0.4."
        ),
    ] = None,
    compiler: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Python whose environment has the chips' compilers; default: PARCEL_CHIP_PYTHON, "
            "else this one.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Compile every shape, not only each training's largest.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=10,
            metavar="COUNT",
            help="Number of inputs to prepare now from each unprepared dataset, to measure what "
            "the whole takes; kept for later plans. It reads the raw data.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; docs/howto/plan.md describes it.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Estimates a study: memory, time, cost of trainings and evaluations, core-hours of data.

    --topology, --price and --mfu override the study's `compute` section for this call.
    """
    import datetime
    import json

    from flows.plan.plan import PROGRAMS, plan_of, plan_text, topology_of
    from flows.plan.prepared import plan_data

    opened = open_store(store, make=False)
    # As overrides, so that they are checked, and spelt in errors, like any key of the config.
    overrides = {"topology": topology, "price": price, "mfu": mfu}
    words = [f"compute.{name}={value}" for name, value in overrides.items() if value is not None]
    config = load_study([*(arguments or []), *words], store)
    topology_of(config)  # A missing topology fails here, before minutes of sampling.
    data = plan_data(config, opened, count=sample, on_sample=_print_sampling)
    day = datetime.date.today()
    programs = opened.state / PROGRAMS
    study_plan = plan_of(config, programs, data, every=every, python=compiler, day=day)
    if as_json:
        typer.echo(json.dumps(study_plan.as_json(), indent=2))
    else:
        for line in plan_text(study_plan):
            typer.echo(line)


def _print_sampling(name: str) -> None:
    typer.echo(f"measuring a sample for: {name}", err=True)
