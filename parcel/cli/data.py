"""`parcel data`: commands for raw data and prepared datasets. Heavy imports are inside them."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption


class ExportFormat(enum.StrEnum):
    """File formats that `parcel data export` writes."""

    tfrecord = "tfrecord"
    webdataset = "webdataset"


data_app = typer.Typer(
    no_args_is_help=True,
    help="Raw data and prepared datasets: check, rejects, fetch, export, mend, show.",
)


@data_app.command(epilog="Example: parcel data check ~/data --source chartqa --split val")
def check(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A prepared dataset (folder, artifact); a data root with --source or --benchmarks."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="A corpus of the data root: its layout, or a reader of your own."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the corpus; join several as a+b.")] = "train",
    path: Annotated[str, typer.Option(help="Folder of the corpus, below the data root.")] = "",
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            help="Feature name in tfrecord and tfds, as image=image/encoded; repeatable.",
        ),
    ] = None,
    benchmarks: Annotated[
        bool, typer.Option("--benchmarks", help="Check every row of the benchmark tables.")
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Count training splits, too; some take minutes.")
    ] = False,
    open_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Open every picture and clip, not 200 pictures and 20 clips; read every shard of "
            "a dataset with tf.data, not some.",
        ),
    ] = False,
    with_tf_data: Annotated[
        bool,
        typer.Option(
            "--tf-data/--no-tf-data",
            help="Read shards of a dataset with tf.data, too, if TensorFlow is installed.",
        ),
    ] = True,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--prepare",
            metavar="KEY=VALUE",
            help="Setting to prepare the corpus with, as max_reject_rate=0.1; repeatable.",
        ),
    ] = None,
    licence: Annotated[
        str, typer.Option(help="Licence of a corpus, for the records that state none.")
    ] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LICENCE",
            help="Licence that the study allows, as in licences.allow; repeatable. Others drop.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Shows what a dataset or a corpus holds, and what it rejects; or which benchmarks it has.

    A corpus is read, decoded and rendered as in its preparation. Of a dataset every record is read,
    and some shards again with plain tf.data. Exit code 1: it cannot be prepared, or read.
    """
    from flows.lookup.data_check import check_benchmark_rows, check_dataset_or_source
    from infra.progress import progress_display

    # One dataset or corpus; or all rows of the benchmark tables, a line each, where an unreadable
    # row fails the command.
    if not benchmarks:
        with progress_display() as show_progress:
            text, is_accepted = check_dataset_or_source(
                what,
                source=source,
                split=split,
                path=path,
                features=features or (),
                settings=settings or (),
                licence=licence,
                allow=allow or (),
                open_all=open_all,
                with_tf_data=with_tf_data,
                on_progress=show_progress,
                store=store,
                as_json=as_json,
            )
        typer.echo(text, nl=False)
        if not is_accepted:
            raise typer.Exit(1)
        return
    text, is_complete = check_benchmark_rows(what, training=training, as_json=as_json)
    typer.echo(text, nl=False)
    if not is_complete:
        raise typer.Exit(1)


@data_app.command(
    "rejects", epilog="Example: parcel data rejects dataset-3f9a --reason truncated --limit 20"
)
def rejects(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A prepared dataset's folder, an artifact's key or its beginning; or the work "
            "folder of a preparation that failed."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Only reasons that have this text.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most rejects shown of each kind.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Shows what a dataset left out, by reason, with the ids and files of examples."""
    from flows.lookup.data_rejects import rejects_text

    text = rejects_text(dataset, store=store, reason=reason, limit=limit, as_json=as_json)
    typer.echo(text, nl=False)


@data_app.command(
    "fetch",
    epilog="Example: parcel data fetch textvqa paligemma2-3b-pt-224 --to ~/data --accept-licence",
)
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of data sets and weights, see --list; or weights on the Hugging Face Hub, "
            "ORG/NAME or ORG/NAME@REVISION."
        ),
    ] = None,
    to: Annotated[
        Path, typer.Option(help="The data root; each data set and model gets a folder there.")
    ] = Path("data"),
    list_all: Annotated[bool, typer.Option("--list", help="List all names and exit.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Show what would be fetched and exit.")] = False,
    catalogue: Annotated[
        Path | None, typer.Option(help="A catalogue of your own (YAML) instead of ours.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=32, help="Number of files fetched at a time.")
    ] = 4,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept the licence of the weights.")
    ] = False,
) -> None:
    """Downloads benchmarks, corpora and published weights from their publishers.

    A broken download resumes; digests are checked. Gated weights need a token in HF_TOKEN.
    """
    from pipelines.fetch.command import fetch_and_print

    fetch_and_print(
        tuple(names or ()),
        to,
        list_all=list_all,
        dry_run=dry_run,
        catalogue=catalogue,
        workers=workers,
        accept_licence=accept_licence,
        write_line=typer.echo,
    )


@data_app.command("export", epilog="Example: parcel data export dataset-3f9a --out plain")
def export(
    dataset: Annotated[
        str,
        typer.Argument(help="A prepared dataset's folder, or an artifact's key or its beginning."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, new or empty.")],
    form: Annotated[
        ExportFormat, typer.Option("--format", help="TFRecords, or webdataset archives.")
    ] = ExportFormat.tfrecord,
    part: Annotated[str | None, typer.Option(help="Only this part, such as caption.")] = None,
    records_per_file: Annotated[
        int, typer.Option(min=1, help="Most records in one file.")
    ] = 10_000,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Exports a prepared dataset for other tools; the same dataset gives the same bytes."""
    from flows.lookup.data_files import export_dataset

    counts = export_dataset(
        dataset, out, form.value, part=part, records_per_file=records_per_file, store=store
    )
    for name, count in counts.items():
        typer.echo(f"{name}: {count:,} records")


@data_app.command("mend", epilog="Example: parcel data mend dataset-3f9a --data-root ~/data")
def mend(
    dataset: Annotated[str, typer.Argument(help="A prepared dataset's key, or its beginning.")],
    data_root: Annotated[str, typer.Option(help="The folder with the raw files, some repaired.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Makes a dataset again after rejected inputs were repaired; unchanged shards are reused."""
    from parcel.cli.data_mend import mend_dataset as make_again

    for line in make_again(dataset, data_root=data_root, store=store):
        typer.echo(line)


@data_app.command("show", epilog="Example: parcel data show dataset-3f9a --out sheet.html")
def show(
    dataset: Annotated[
        str,
        typer.Argument(help="A prepared dataset's folder, or an artifact's key or its beginning."),
    ],
    out: Annotated[Path, typer.Option(help="The sheet to write: .html or .png.")],
    limit: Annotated[int, typer.Option(min=1, help="Most records shown.")] = 24,
    part: Annotated[str | None, typer.Option(help="Only this part, such as caption.")] = None,
    rejects: Annotated[int, typer.Option(min=0, help="Most rejects shown.")] = 20,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draws a contact sheet: pictures with boxes and masks, frames with times, texts, rejects."""
    from flows.lookup.data_files import show_records as write_sheet

    cards, lost = write_sheet(dataset, out, store=store, limit=limit, part=part, rejects=rejects)
    typer.echo(f"{out}: {cards} records, {lost} rejects")
