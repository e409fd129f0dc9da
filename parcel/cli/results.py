"""`parcel results`: prints the table of a run, or of a file of scores."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parcel.cli.completion import complete_study
from parcel.cli.options import DEFAULT_STORE, StoreOption, open_existing_store, open_store
from parcel.studies import mention_larger_run

results_app = typer.Typer()


@results_app.command(epilog="Example: parcel results demo --format html --out demo-results")
def results(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A study's name, for its newest run; or a run's full name.",
            autocompletion=complete_study,
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            help="md, csv, latex, json or html; comparisons, cells and asked are CSV; items "
            "(Parquet), eee (Every Eval Ever), hub (the Hub's .eval_results), png, svg and pdf are "
            "files."
        ),
    ] = "md",
    scores: Annotated[
        Path | None, typer.Option(help="A score file instead of RUN: paper/detailed_scores.csv.")
    ] = None,
    predictions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Item logs of lmms-eval or Every Eval Ever, alone or "
            "beside RUN; may be given repeatedly.",
        ),
    ] = None,
    same_metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=OURS",
            help="With --predictions beside RUN: a metric of the logs that is one of RUN's.",
        ),
    ] = None,
    mixed: Annotated[
        bool, typer.Option(help="Average scores of several library versions or accelerators, too.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="With --format html, eee or hub: a folder to write to; with items, png, svg or "
            "pdf: a file, for these three RUN-FIGURE.pdf by default.",
        ),
    ] = None,
    items: Annotated[
        int, typer.Option(min=1, help="With --format html: items shown in each list.")
    ] = 100,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file of names to show and their order: methods, benchmarks; and the "
            "baseline that LaTeX and CSV have differences to."
        ),
    ] = None,
    figure: Annotated[
        str,
        typer.Option(help="With --format png, svg or pdf: scores, pareto, retention or curves."),
    ] = "",
    organization: Annotated[
        str, typer.Option(help="With --format eee: who made the models, as the Hub names them.")
    ] = "",
    source: Annotated[
        str, typer.Option(metavar="URL", help="With --format hub: page of the results.")
    ] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Prints a results table; or writes it for other programs, or as pages with its items."""
    from flows.lookup.results import (
        IN_FILES,
        OwnRun,
        show_logs,
        show_results,
        write_results,
    )
    from flows.report.plot import FORMS
    from infra.errors import ConfigError

    if predictions:
        others = {
            "--scores": scores,
            "--out": out,
            "--organization": organization,
            "--source": source,
        }
        if given := [name for name, value in others.items() if value]:
            raise ConfigError(f"--predictions goes with RUN alone, got {', '.join(given)}.")
        if run is None and (mixed or same_metric):
            raise ConfigError("--mixed and --same-metric need RUN beside --predictions.")
        beside = None
        if run is not None:
            same = _same_metrics(same_metric or [])
            opened = open_existing_store(store)
            mention_larger_run(opened, run)
            beside = OwnRun(store=opened, run=run, mixed=mixed, same_metrics=same)
        typer.echo(show_logs(predictions, format, labels=labels, beside=beside), nl=False)
        return
    if same_metric:
        raise ConfigError("--same-metric needs --predictions.")
    if format in FORMS:
        if run is None or scores is not None:
            raise ConfigError(f"--format {format} needs RUN, a study's name.")
        from flows.pages.figures import write_figure

        opened = open_existing_store(store)
        mention_larger_run(opened, run)
        name = figure or "scores"
        out = out or Path(f"{run}-{name}.{format}")
        write_figure(opened, run, format, out, name, mixed=mixed, labels=labels)
        typer.echo(f"{name}: {out}")
        return
    if figure:
        raise ConfigError(f"--figure needs --format {', '.join(FORMS)}, got --format {format}.")
    if format in IN_FILES:
        if run is None or out is None or scores is not None:
            raise ConfigError(f"--format {format} needs RUN, a study's name, and --out PATH alone.")
        if labels is not None:
            raise ConfigError("--labels needs a format that prints, such as latex.")
        opened = open_existing_store(store)
        mention_larger_run(opened, run)
        lines = write_results(
            opened, run, format, out, mixed=mixed, organization=organization, source=source
        )
        typer.echo("\n".join(lines))
        return
    if organization or source:
        option, of = ("--organization", "eee") if organization else ("--source", "hub")
        raise ConfigError(f"{option} needs --format {of}, got --format {format}.")
    # Pages are a folder of files; everything else is one text, printed.
    if format == "html":
        if mixed:
            raise ConfigError(
                "--mixed needs a format that prints: the pages show a run's own table."
            )
        if labels is not None:
            raise ConfigError("--labels needs a format that prints, such as latex.")
        _write_pages(run, out, items, open_existing_store(store))
        return
    if out is not None:
        raise ConfigError(
            f"--out needs --format html, {', '.join((*IN_FILES, *FORMS))}, got --format {format}; "
            f"use > for a file."
        )
    opened = open_existing_store(store) if scores is None else open_store(store, make=False)
    if run is not None:
        mention_larger_run(opened, run)
    text = show_results(opened, run, format, scores, mixed=mixed, labels=labels)
    typer.echo(text, nl=False)


def _same_metrics(texts: list[str]) -> dict[str, str]:
    from infra.errors import ConfigError

    # The name in a log may have a sign of its own; ours has none.
    pairs = {theirs: ours for theirs, _, ours in (text.rpartition("=") for text in texts)}
    if not all(theirs and ours for theirs, ours in pairs.items()):
        raise ConfigError(
            f"--same-metric must be THEIRS=OURS, such as relaxed_overall=relaxed_accuracy, got "
            f"{', '.join(texts)}."
        )
    return pairs


def _write_pages(run: str | None, out: Path | None, items: int, store: Any) -> None:
    from flows.pages.folder import write_folder
    from infra.errors import ConfigError

    if run is None or out is None:
        raise ConfigError("--format html needs RUN, a study's name, and --out DIR, a folder.")
    # An old folder would keep pages that the new run does not have.
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"--out must be a new or empty folder, got {out}; name another one.")
    mention_larger_run(store, run)
    try:
        pages = write_folder(store, run, out, max_items=items)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None
    typer.echo(f"{pages} pages: {out / 'index.html'}")
