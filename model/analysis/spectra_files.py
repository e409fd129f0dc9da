"""Checkpoints and images -> spectra, as two figures and their numbers."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infra.errors import ConfigError
from model.analysis.figures import LabelledCurves, draw_concentration, draw_profiles
from model.analysis.measure import Curve, measure_spectra
from model.checkpoint.folder import load_config, load_params, stated_digest
from model.config import ModelConfig
from model.connector import budgets

CONCENTRATION, PROFILES = "concentration.png", "profiles.png"
NUMBERS, TABLE = "spectra.json", "spectra.csv"

PAPER_POOLED_BUDGET = 64
"""Budget of the figure on pooled tokens; the other shows all tokens. Source: PARCEL, figure
"Spectral decoupling on ChartQA"."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, and the budgets at which its pooled tokens and its queries are shown."""

    place: str
    model: ModelConfig
    pooled_budget: int
    query_budget: int


def open_checkpoint(place: str, budget: int | None) -> Checkpoint:
    """Returns a checkpoint with the budgets of its figures.

    Args:
      place: the checkpoint: a folder, or a place in a bucket.
      budget: budget of both figures; None takes, for pooled tokens, the budget nearest to the
        paper's that the checkpoint serves, and for queries its largest.

    Raises:
      ConfigError: if it does not serve the budget.
    """
    model = load_config(place)
    supported = budgets.supported_budgets(model)
    if budget is not None:
        try:
            budgets.check_budget(model, budget)
        except ValueError as error:
            raise ConfigError(f"--{error}") from None
        return Checkpoint(place, model, budget, budget)
    pooled = min(supported, key=lambda b: abs(b - PAPER_POOLED_BUDGET))
    return Checkpoint(place, model, pooled, supported[-1])


def write_spectra(
    checkpoints: Sequence[Checkpoint], images: Mapping[int, Sequence[np.ndarray]], out: Path
) -> list[Path]:
    """Writes both figures, the numbers as JSON and as CSV, and returns the four files.

    Args:
      checkpoints: the checkpoints.
      images: side of a checkpoint's images -> the images at this size; the same at all sizes.
      out: folder of the results; made if absent.
    """
    labels = _checkpoint_labels(checkpoints)
    measured, entries = [], []
    # Each checkpoint is measured once, at both budgets; the figures then choose among its curves.
    for label, checkpoint in zip(labels, checkpoints, strict=True):
        shown_budgets = checkpoint.pooled_budget, checkpoint.query_budget
        params = load_params(checkpoint.place)
        curves = measure_spectra(
            checkpoint.model, params, images[checkpoint.model.vision.image_px], shown_budgets
        )
        measured.append((checkpoint, LabelledCurves(label, curves)))
        entries.append(_checkpoint_spectra_entry(label, checkpoint, curves))
    num_images = len(next(iter(images.values())))
    out.mkdir(parents=True, exist_ok=True)
    # One budget in each figure. The features' curve has no budget and is in both.
    at_pooled = [
        _curves_at_budget(entry, checkpoint.pooled_budget) for checkpoint, entry in measured
    ]
    at_queries = [
        _curves_at_budget(entry, checkpoint.query_budget) for checkpoint, entry in measured
    ]
    draw_concentration(at_pooled, num_images, out / CONCENTRATION)
    draw_profiles(at_queries, num_images, out / PROFILES)
    report = {"num_images": num_images, "checkpoints": entries}
    (out / NUMBERS).write_text(json.dumps(report, indent=1) + "\n")
    _write_table(entries, out / TABLE)
    return [out / name for name in (CONCENTRATION, PROFILES, NUMBERS, TABLE)]


def _checkpoint_labels(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Names checkpoints by their connector, and by their folder too where that is not enough."""
    kinds = [checkpoint.model.connector.kind for checkpoint in checkpoints]
    return [
        kind if kinds.count(kind) == 1 else f"{kind} ({Path(checkpoint.place).name})"
        for kind, checkpoint in zip(kinds, checkpoints, strict=True)
    ]


def _curves_at_budget(entry: LabelledCurves, budget: int) -> LabelledCurves:
    return LabelledCurves(entry.label, [c for c in entry.curves if c.budget in (None, budget)])


def _checkpoint_spectra_entry(
    label: str, checkpoint: Checkpoint, curves: Sequence[Curve]
) -> dict[str, Any]:
    return {
        # All that it takes to draw the figures again without the checkpoint. The digest says which
        # parameters were measured: folders may be renamed.
        "label": label,
        "connector": checkpoint.model.connector.kind,
        "image_px": checkpoint.model.vision.image_px,
        "digest": stated_digest(checkpoint.place),
        "curves": [
            {
                **dataclasses.asdict(curve),
                "radius": curve.radii,
                "normalized_power": curve.shares,
                "cumulative_power": curve.cumulative,
            }
            for curve in curves
        ],
    }


def _write_table(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes a row per checkpoint, curve and radius."""
    columns = ("radius", "mean_power", "normalized_power", "cumulative_power")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", "connector", "what", "budget", "grid", *columns])
        for entry in entries:
            for curve in entry["curves"]:
                head = [entry["label"], entry["connector"]]
                head += [curve["what"], curve["budget"], curve["grid"]]
                for values in zip(*(curve[name] for name in columns), strict=True):
                    writer.writerow([*head, *values])
