"""`parcel results`: shows the table of a run, or of a file of scores."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from flows.config.validation import config_adapter, first_problem
from flows.logs.beside_own import add_logs
from flows.logs.item_log import ItemLog, ItemLogError
from flows.logs.logs_report import read_logs, report_logs
from flows.logs.own_questions import read_questions
from flows.lookup.runs import find_run, results_artifact
from flows.report.by_question_type import question_types_to_csv
from flows.report.cells import Plan, Report
from flows.report.cells_file import cells_to_csv
from flows.report.every_eval_ever_files import write_evaluations
from flows.report.hub_results import write_hub_results
from flows.report.items_table import scores_of, write_items_table
from flows.report.json_file import read_json
from flows.report.plot import FORMS
from flows.report.render import FORMATS, comparisons_to_csv, render_report
from flows.report.scores_file import ScoreFileError, read_scores
from flows.report.table_labels import TableLabels, label_report
from flows.steps.kinds.results import ResultsSpec
from flows.steps.registry import typed_config
from infra.errors import ConfigError
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from infra.yaml_text import load_yaml
from model import files
from model.data.parts import open_parts, records_by_id
from model.eval.metrics.scores import Fields
from model.eval.scorer import fields_of
from pipelines.sources.paper_groups import in_paper_order

OF_RUNS = ("comparisons", "cells", "asked")
"""Further formats, for runs only: CSV of every comparison, of every single score, of the scores by
what was asked."""

IN_FILES = ("items", "eee", "hub")
"""Formats of runs that are files for other programs, see `write_results`."""


def show_results(
    store: Store,
    run: str | None,
    form: str,
    scores: Path | None,
    *,
    mixed: bool = False,
    labels: Path | None = None,
) -> str:
    """Returns a results table as text.

    Args:
      store: the store that holds the runs.
      run: a study's name; None with `scores`.
      form: one of `FORMATS`, or of `OF_RUNS` with a run.
      scores: a score file, instead of a run.
      mixed: whether to average a run's scores over several library versions and accelerators.
      labels: a YAML file as in `TableLabels`.

    Raises:
      ConfigError: if the request or the score file is wrong.
    """
    if form not in (*FORMATS, *OF_RUNS):
        formats = ", ".join((*FORMATS, *OF_RUNS, *IN_FILES, *FORMS))
        raise ConfigError(f"--format must be one of {formats}, html, got {form!r}.")
    if labels is not None and form not in FORMATS:
        raise ConfigError(f"--labels needs one of {', '.join(FORMATS)}, got --format {form}.")
    # A score file has means only: no seeds, items or artifacts to list.
    if form in OF_RUNS and scores is not None:
        raise ConfigError(f"--format {form} needs RUN, got --scores; use --format csv.")
    if run is not None and scores is None:
        results = results_artifact(store, run)
        # Two forms are computed from the scores each time; the others lie in the artifact, unless
        # `mixed` asks for scores that it leaves out.
        if form == "cells":
            return cells_to_csv(*report_of(store, results, mixed=mixed), store.get_cached)
        if form == "asked":
            report, plan = report_of(store, results, mixed=mixed)
            return question_types_to_csv(report, plan, results.manifest.inputs, store.get)
        if mixed or labels is not None:
            report = labelled_report(store, results, labels, mixed=mixed)
            return (
                comparisons_to_csv(report) if form == "comparisons" else render_report(report, form)
            )
        if form == "comparisons":
            return (results.path / "comparisons.csv").read_text(encoding="utf-8")
        return (results.path / f"results.{form}").read_text(encoding="utf-8")
    if run is not None or scores is None:
        got = "neither" if run is None else "both"
        raise ConfigError(f"results needs either RUN or --scores FILE.csv, got {got}.")
    if mixed:
        raise ConfigError("--mixed needs RUN, got --scores: a score file has no platforms.")
    try:
        return render_report(_label_report_from_file(read_scores(scores), labels), form)
    except ScoreFileError as error:
        raise ConfigError(f"--scores: {error}") from None


def write_results(
    store: Store,
    run: str,
    form: str,
    out: Path,
    *,
    mixed: bool = False,
    organization: str = "",
    source: str = "",
) -> list[str]:
    """Writes the results of a run for other programs, and returns lines that say what was written.

    Args:
      store: the store that holds the runs.
      run: a study's name.
      form: "items" for one Parquet file, "eee" for a folder in the format of Every Eval Ever, "hub"
        for a folder with the Hub's evaluation results of each method.
      out: the file, or the folder; must not exist, or be an empty folder.
      mixed: whether scores of several library versions and accelerators are written.
      organization: with "eee": who made the models; "" takes the study's name.
      source: with "hub": page that the results come from [URL].

    Raises:
      ConfigError: if the request is wrong, or a file cannot be written.
    """
    for name, value, of in (("organization", organization, "eee"), ("source", source, "hub")):
        if value and form != of:
            raise ConfigError(f"--{name} needs --format {of}, got --format {form}.")
    if source and (urlsplit(source).scheme not in ("http", "https") or not urlsplit(source).netloc):
        raise ConfigError(f"--source must be a page as https://…, got {source!r}.")
    # An old file or folder would be mixed up with the new one, or lost.
    if out.is_file() or (out.is_dir() and (form == "items" or any(out.iterdir()))):
        kind = "file" if form == "items" else "or empty folder"
        raise ConfigError(f"--out must be a new {kind}, got {out}; name another one.")
    record = find_run(store, run)
    report, plan = report_of(store, store.get(record["results"]), mixed=mixed)
    scores = scores_of(report, plan, store.get_cached)
    try:
        if form == "items":
            return [f"items: {write_items_table(scores, out):,} in {out}"]
        if form == "eee":
            study = record["name"]
            num = write_evaluations(scores, out, study=study, organization=organization or study)
            return [f"evaluations with their items: {num} in {out}"]
        num, left_out = write_hub_results(report, scores, out, source=source)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}.") from None
    lines = [f"methods with results for the Hub: {num} in {out}"]
    if left_out:
        lines.append(
            f"left out, no dataset of the Hub is known to be what was scored: {', '.join(left_out)}"
        )
    return lines


def labelled_report(store: Store, results: Artifact, labels: Path | None, *, mixed: bool) -> Report:
    """Returns the report of a results artifact, or with `mixed` of its inputs, with labels."""
    if mixed:
        return _label_report_from_file(report_of(store, results, mixed=True)[0], labels)
    return _label_report_from_file(
        read_json((results.path / "results.json").read_text(encoding="utf-8")), labels
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnRun:
    """A run of our own that other systems' models are shown beside.

    Attributes:
      run: the study's name.
      mixed: as for `show_results`.
      same_metrics: name of a metric in the logs -> name of the same metric of ours.
    """

    store: Store
    run: str
    mixed: bool = False
    same_metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)


def show_logs(
    folders: Sequence[Path],
    form: str,
    *,
    labels: Path | None = None,
    beside: OwnRun | None = None,
) -> str:
    """Returns the results table of other systems' item logs as text.

    Args:
      folders: folders that hold logs, of any format of `logs_report.LOG_FORMATS`.
      form: one of `FORMATS`, or comparisons.
      labels: as for `show_results`.
      beside: a run whose table the logs' models are added to; None shows them alone.

    Raises:
      ConfigError: if the request is wrong, or a log is, or two cannot be compared.
    """
    if form not in (*FORMATS, "comparisons"):
        formats = ", ".join((*FORMATS, "comparisons"))
        raise ConfigError(f"--format with --predictions must be one of {formats}, got {form!r}.")
    if labels is not None and form not in FORMATS:
        raise ConfigError(f"--labels needs one of {', '.join(FORMATS)}, got --format {form}.")
    try:
        logs = read_logs(folders)
        report = report_logs(logs) if beside is None else _add_logs(beside, logs)
    except ItemLogError as error:
        raise ConfigError(f"--predictions: {error}") from None
    if form == "comparisons":
        return comparisons_to_csv(report)
    return render_report(_label_report_from_file(report, labels), form)


def _add_logs(beside: OwnRun, logs: Sequence[ItemLog]) -> Report:
    results = results_artifact(beside.store, beside.run)
    report, plan = report_of(beside.store, results, mixed=beside.mixed)
    # All scores of a benchmark are of the same questions: those of the first one do.
    keys = {
        section.benchmark: next(score.artifact for cell in section.cells for score in cell.scores)
        for section in report.sections
        if any(cell.scores for cell in section.cells)
    }
    questions = {name: read_questions(beside.store.get(key).path) for name, key in keys.items()}

    @functools.cache  # Several models may have answered one benchmark.
    def read_fields(benchmark: str) -> Mapping[str, Fields]:
        inputs = beside.store.get(keys[benchmark]).manifest.inputs
        codec = dict[str, Any]()
        if "mask_codec" in inputs:
            from model.masks.codec import MaskCodec  # Which imports JAX; few metrics read masks.

            path = beside.store.get(inputs["mask_codec"].key).path / files.MASK_CODEC
            codec["decode_mask"] = MaskCodec.load(path).decode
        parts = open_parts([beside.store.get(inputs["data"].key).uri])
        return {record.id: {**fields_of(record), **codec} for record in records_by_id(parts)}

    return add_logs(report, plan, logs, questions, beside.same_metrics, read_fields)


def _label_report_from_file(report: Report, path: Path | None) -> Report:
    """Returns the report with the labels of a file."""
    if path is None:
        return report
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
        return label_report(report, config_adapter(TableLabels).validate_python(values or {}))
    except OSError as error:
        raise ConfigError(f"--labels {path}: {error.strerror or error}.") from None
    except ValidationError as error:
        raise ConfigError(f"--labels {path}: {first_problem(error, TableLabels)}") from None
    except ValueError as error:
        raise ConfigError(f"--labels {path}: {' '.join(str(error).split())}") from None


def report_of(store: Store, results: Artifact, *, mixed: bool) -> tuple[Report, Plan]:
    """Returns the report of a results artifact's inputs, and its plan.

    With `mixed` the report holds the scores of every platform.
    """
    from flows.report.gather import gather_report

    spec = results_spec(results.manifest)
    artifacts = {role: store.get(entry.key) for role, entry in results.manifest.inputs.items()}
    report = gather_report(spec.plan, spec.accepted, artifacts, store.get_cached, mixed=mixed)
    return report, spec.plan


def results_spec(results: Manifest) -> ResultsSpec:
    """Returns the spec of a table from its manifest, with the plan's groups in their order."""
    spec: ResultsSpec = typed_config("results", results.config)
    plan, *also = (
        dataclasses.replace(view, groups=in_paper_order(view.groups)) for view in spec.plan.views
    )
    return dataclasses.replace(spec, plan=dataclasses.replace(plan, also=tuple(also)))
