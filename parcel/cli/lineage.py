"""`parcel lineage`: commands that show where an artifact or a number comes from."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from parcel.cli.completion import complete_cell, complete_target
from parcel.cli.options import (
    DEFAULT_STORE,
    StoreOption,
    apply_prefect,
    heed_signals,
    open_existing_store,
    open_store,
)
from parcel.studies import mention_larger_run

_NAME = "RUN, RUN/BENCHMARK/METHOD/BUDGET, the same with /SEED, or an artifact's key."

_SUMMARY_NAME = (
    "A step's name, such as 'stage1 vanilla'; an artifact's key; or RUN, "
    "RUN/BENCHMARK/METHOD/BUDGET, the same with /SEED."
)

lineage_app = typer.Typer(no_args_is_help=True, help="Where an artifact or a number comes from.")


@lineage_app.command("show", epilog="Example: parcel lineage show results-3f9a")
def lineage_show(
    key: Annotated[str, typer.Argument(help="An artifact's key, or its beginning.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints the manifest of an artifact."""
    typer.echo(open_existing_store(store).resolve(key).manifest.to_json(), nl=False)


@lineage_app.command("trace", epilog="Example: parcel lineage trace demo/chartqa/parcel/64")
def lineage_trace(
    run: Annotated[str, typer.Argument(metavar="NAME", help=_NAME, autocompletion=complete_target)],
    # Of earlier versions, and their notes: RUN --cell BENCHMARK/METHOD/BUDGET.
    cell: Annotated[str, typer.Option(hidden=True, autocompletion=complete_cell)] = "",
    samples: Annotated[int, typer.Option(help="Source samples shown per dataset.")] = 3,
    sample: Annotated[
        str,
        typer.Option(
            metavar="ID", help="Record id: show which steps saw it and which cells rest on it."
        ),
    ] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints everything a cell of the table was made from, down to the source samples.

    --sample goes the other way: from a record up to the steps that saw it, and to the cells.
    """
    from flows.lookup.target import find_target

    opened = open_existing_store(store)
    mention_larger_run(opened, run)
    target = find_target(opened, f"{run}/{cell}" if cell else run)
    # Down from a cell to its samples; or up, from one sample to what it had a part in.
    if sample:
        from flows.lineage.sample_trace import trace_sample

        print("\n".join(trace_sample(opened, target, sample).lines()))
        return
    from flows.lineage.trace import trace_lineage

    print("\n".join(trace_lineage(opened, target, samples=samples)))


@lineage_app.command("losses", epilog="Example: parcel lineage losses 'stage1 vanilla' --step 812")
def lineage_losses(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TRAINING",
            help="Key of a checkpoint, finished or not, or the name of a finished training's step.",
        ),
    ],
    step: Annotated[int, typer.Option(min=1, help="Number of the update, as its log counts.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints the loss of each example of one update of a training, the highest first.

    The training is computed again up to that update: from the last resumable checkpoint before it
    where it stopped or failed, else from its start. Nothing is kept.
    """
    heed_signals()
    from flows.lineage.step_losses import step_losses
    from infra.progress import Progress, progress_display

    losses = []
    with progress_display() as show:
        for item in step_losses(open_existing_store(store), name, step):
            if not isinstance(item, Progress):
                losses.append(item)
            elif item.happened:
                typer.echo(item.note, err=True)
            else:
                show(f"update {item.done:,} of {item.total:,}")
    # One that is no number is the highest.
    losses.sort(key=lambda row: math.inf if math.isnan(row.loss) else row.loss, reverse=True)
    for row in losses:
        typer.echo(f"{row.loss:9.4f}  {row.record}  {row.prefix!r} → {row.suffix!r}")


@lineage_app.command(
    "diff", epilog="Example: parcel lineage diff demo/chartqa/parcel/64 wider/chartqa/parcel/64"
)
def lineage_diff(
    first: Annotated[str, typer.Argument(metavar="A", help=_NAME, autocompletion=complete_target)],
    second: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The other side, in the same form.", autocompletion=complete_target
        ),
    ],
    patch: Annotated[bool, typer.Option("--patch", help="Show sources line by line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    other: Annotated[
        str, typer.Option(metavar="URI", help="The store of B.", show_default="the same")
    ] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Shows how two cells or artifacts differ, down to where they begin to differ.

    It compares data, config, seeds, code, versions of libraries and hardware.
    """
    from flows.lineage.diff import compare_lineages
    from flows.lookup.target import find_target

    opened = open_existing_store(store)
    others = open_existing_store(other) if other else opened
    mention_larger_run(opened, first)
    mention_larger_run(others, second)
    comparison = compare_lineages(
        opened, find_target(opened, first), find_target(others, second), others
    )
    print(comparison.as_json() if as_json else "\n".join(comparison.lines(patch=patch)))


@lineage_app.command(
    "replay", epilog="Example: parcel lineage replay demo/chartqa/parcel/64/56703 --from raw"
)
def lineage_replay(
    name: Annotated[
        str, typer.Argument(metavar="CELL", help=_NAME, autocompletion=complete_target)
    ],
    begin: Annotated[
        Literal["inputs", "raw"],
        typer.Option(
            "--from", help="inputs: use its direct inputs as they are; raw: make them again, too."
        ),
    ] = "inputs",
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Largest score difference on another kind of machine, in points."),
    ] = 0.5,
    into: Annotated[
        str, typer.Option(metavar="DIR", help="An empty folder in which to keep what is made.")
    ] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Makes a cell again with the code that made it, and compares bytes.

    On another kind of machine, or with other versions of libraries, bytes may differ; then the
    scores are compared. Exit code 1 if the result does not match.
    """
    heed_signals()
    import tempfile

    from flows.lineage.replay import replay_artifacts
    from flows.lookup.target import find_target
    from parcel.cli.run_steps import steps_of_run

    opened = open_existing_store(store)
    mention_larger_run(opened, name)
    target = find_target(opened, name)
    # Into a store of its own: in the old one the step would be found, and nothing made again.
    with tempfile.TemporaryDirectory(prefix="parcel-replay-") as temporary:
        fresh = open_store(into or temporary)
        if fresh.keys():
            raise typer.BadParameter(f"--into must be an empty folder, got {into}.")
        is_near = True
        # Only the run's own steps know settings such as where raw data lie.
        steps = steps_of_run(opened, target.artifacts[0].key)
        for outcome in replay_artifacts(
            opened, target, fresh, from_raw=begin == "raw", steps=steps
        ):
            typer.echo(outcome.line())
            is_near &= outcome.is_near(tolerance)
    if not is_near:
        raise typer.Exit(1)


@lineage_app.command(
    "summary", epilog="Example: parcel lineage summary demo/chartqa/parcel/64/56703 --json"
)
def lineage_summary(
    name: Annotated[str, typer.Argument(metavar="STEP|CHECKPOINT", help=_SUMMARY_NAME)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Counts what checkpoints really saw, through all their stages, by source and licence.

    Examples count with repeats, records once. Both come from the order of the batches up to the
    steps that were trained, not from the weights of a mixture.
    """
    from flows.lineage.data_summary import summarise_data
    from flows.lookup.target import find_training_target

    opened = open_existing_store(store)
    mention_larger_run(opened, name)
    summary = summarise_data(opened, find_training_target(opened, name))
    print(summary.to_json() if as_json else "\n".join(summary.lines()))


@lineage_app.command("export", epilog="Example: parcel lineage export demo > events.jsonl")
def lineage_export(
    name: Annotated[str, typer.Argument(metavar="RUN", help=_NAME, autocompletion=complete_target)],
    form: Annotated[
        Literal["openlineage", "croissant"],
        typer.Option(
            "--format", help="OpenLineage events of every step, or Croissant of every dataset."
        ),
    ] = "openlineage",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for a file per step or dataset; default: print them."
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Exports a lineage for other tools: OpenLineage events, or datasets in Croissant.

    Both are views of the manifests, so each export is the same.
    """
    from flows.lineage.export import export_lineage
    from flows.lookup.target import find_target

    opened = open_existing_store(store)
    mention_larger_run(opened, name)
    for file, text in export_lineage(opened, find_target(opened, name), form):
        if out is None:
            print(text)
        else:
            out.mkdir(parents=True, exist_ok=True)
            (out / file).write_text(f"{text}\n", encoding="utf-8")


@lineage_app.command("verify", epilog="Example: parcel lineage verify")
def lineage_verify(
    key: Annotated[
        str | None, typer.Argument(help="An artifact's key; default: all artifacts.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Checks the bytes of artifacts against their manifests."""
    from flows.lineage.certificate.traced import byte_problems

    opened = open_existing_store(store)
    keys = [opened.resolve(key).key] if key else opened.keys()
    problems = [*byte_problems(opened, keys)]
    for problem in problems:
        typer.echo(f"{problem.key} {problem.path}: {problem.reason}", err=True)
    typer.echo(f"{len(keys)} artifacts checked, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


@lineage_app.command("rebuild", epilog="Example: parcel lineage rebuild")
def lineage_rebuild(store: StoreOption = DEFAULT_STORE) -> None:
    """Makes the UI's lineage and results pages again from the manifests."""
    opened = open_existing_store(store)
    apply_prefect(opened)
    from flows.machine.start import sidecar_of
    from infra.prefect.server import reporting

    with reporting(opened.state, sidecar_of(opened)):
        from flows.pages.rebuild import rebuild

        typer.echo(f"{rebuild(opened)} pages published")
