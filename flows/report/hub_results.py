"""Writes scores as the Hugging Face Hub shows them on a model's page and in its leaderboards.

    METHOD/.eval_results/parcel.yaml    an entry per benchmark and budget, the mean over seeds

The folder `.eval_results` goes into the model's repository as it is.

Source: https://huggingface.co/docs/hub/eval-results.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.report.cells import Cell, Report
from flows.report.items_table import ScoreArtifacts
from infra.store.manifest import Manifest
from infra.yaml_text import dump_yaml
from pipelines.sources.registry import BENCHMARKS

HUB_TASKS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("ai2d", "test"): ("lmms-lab/ai2d", "default"),
    ("countbenchqa", "huggingface"): ("vikhyatk/CountBenchQA", "default"),
    ("docvqa", "val"): ("lmms-lab/DocVQA", "DocVQA"),
    ("gqa", "testdev_balanced"): ("lmms-lab/GQA", "testdev_balanced_instructions"),
    ("infovqa", "val"): ("lmms-lab/DocVQA", "InfographicVQA"),
    ("nocaps", "val"): ("lmms-lab/NoCaps", "default"),
    ("ocrvqa", "test"): ("howard-hou/OCR-VQA", "default"),
    ("okvqa", "val"): ("lmms-lab/OK-VQA", "default"),
    ("pope", "random+popular+adversarial"): ("lmms-lab/POPE", "default"),
    ("science_qa", "test"): ("lmms-lab/ScienceQA", "ScienceQA-IMG"),
    ("textcaps", "val"): ("lmms-lab/TextCaps", "default"),
    ("textvqa", "val"): ("lmms-lab/textvqa", "default"),
    ("vizwizvqa", "val"): ("lmms-lab/VizWiz-VQA", "default"),
}
"""(benchmark, split) -> the Hub's dataset that has this split whole, and its config, which stands
for the task."""

FILE = ".eval_results/parcel.yaml"
_DIGITS = 4


def write_hub_results(
    report: Report, scores: Iterable[ScoreArtifacts], out: Path, *, source: str = ""
) -> tuple[int, list[str]]:
    """Writes a file for each method; returns their number, and the benchmarks that none has.

    Left out are benchmarks that the Hub has not, or not this split of, those of which a study took
    a part, and those scored with another metric than their own.

    Args:
      report: the report.
      scores: its scores, of which the data and the time are read.
      out: folder to write to; created if it does not exist.
      source: page that the results come from [URL]; "" states none.

    Raises:
      OSError: if a file cannot be written.
    """
    by_key = {score.scores.key: score for score in scores}
    entries: dict[str, list[dict[str, Any]]] = {}
    left_out = []
    for section in report.sections:
        cells = [cell for cell in section.cells if cell.mean is not None and cell.scores]
        if not cells:
            continue
        task = _hub_task(by_key[cells[0].scores[0].artifact].data, section.metric)
        if task is None:
            left_out.append(section.benchmark)
            continue
        for cell in cells:
            behind = [by_key[score.artifact] for score in cell.scores]
            entries.setdefault(cell.method, []).append(
                _hub_result_entry(cell, task, behind, source)
            )
    for method, of_method in entries.items():
        path = out / method / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(of_method, sort_keys=False, allow_unicode=True), "utf-8")
    return len(entries), left_out


def _hub_task(data: Manifest, metric: str) -> tuple[str, str] | None:
    """Returns the Hub's dataset and task that evaluation data are; None for others."""
    config = data.config if isinstance(data.config, Mapping) else {}
    reader, split = config.get("reader"), config.get("split")
    if not isinstance(reader, str) or not isinstance(split, str):
        return None  # A benchmark of the user's own.
    limit = (config.get("prepare") or {}).get("limit")
    own = BENCHMARKS.get(reader)
    if limit is not None or own is None or metric not in (own.metric, own.zero_shot_metric):
        return None
    return HUB_TASKS.get((reader, split))


def _hub_result_entry(
    cell: Cell, task: tuple[str, str], behind: Iterable[ScoreArtifacts], source: str
) -> dict[str, Any]:
    # What the Hub has no field for is in the notes: a model has an entry for each budget.
    notes = [f"{cell.budget} soft tokens per image", cell.metric]
    if cell.low is not None and cell.high is not None:
        notes.append(f"95 % interval {cell.low:.2f} to {cell.high:.2f}")
    notes += [f"mean of {cell.n} seeds" if cell.n > 1 else "one seed", f"{cell.items} items"]
    dataset, task_id = task
    assert cell.mean is not None
    return {
        "dataset": {"id": dataset, "task_id": task_id},
        "value": round(cell.mean, _DIGITS),
        "date": max(score.predictions.started for score in behind)[:10],
        **({"source": {"url": source, "name": "PARCEL pipeline"}} if source else {}),
        "notes": "; ".join(notes),
    }
