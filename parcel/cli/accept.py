"""`parcel accept`: keeps an artifact although its code has changed since."""

from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, heed_signals, open_existing_store
from parcel.cli.run import StudyArguments, load_study

accept_app = typer.Typer()


@accept_app.command(
    epilog="Example: parcel accept 'transfer parcel *' configs/small.yaml --replay 20"
)
def accept(
    step: Annotated[
        str,
        typer.Argument(
            help="A step's name as --explain shows it, which may hold *; or an artifact's key."
        ),
    ],
    arguments: StudyArguments = None,
    replay: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Keep it only if the old code and today's agree to the last digit on the "
            "first N updates of a training, or on the whole of any other step.",
            show_default=False,
        ),
    ] = 0,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Keeps stale artifacts of a study: they count as made by today's code; their cells say so.

    `parcel run --rebuild STEP` undoes it.
    """
    heed_signals()
    opened = open_existing_store(store)
    config = load_study(arguments, store)
    from flows.graph.explain import explain_study
    from parcel.cli.accept_stale import accept_stale

    # The same verdicts that `parcel run --explain` prints: what is stale there can be kept here.
    for line in accept_stale(opened, explain_study(config, opened), step, units=replay):
        typer.echo(line)
