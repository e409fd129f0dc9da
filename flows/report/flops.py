"""The efficiency table: the cost of a prefill, for every connector and budget of a model."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence

from flows.report.text_lists import align_columns
from infra.errors import ConfigError
from model.analysis import flops
from model.config import ModelConfig

FLOPS_COLUMNS = tuple(field.name for field in dataclasses.fields(flops.Flops))


def flops_json(models: Mapping[str, Iterable[ModelConfig]], at: Sequence[int] | None) -> str:
    """Returns the rows as a JSON list, unrounded; every budget where `at` is None.

    Args:
      models: backbone -> its model, with one connector each; rows of "" name no backbone.
      at: the budgets.
    """
    rows = [
        ({"backbone": backbone} if backbone else {}) | dataclasses.asdict(row)
        for backbone, of_backbone in models.items()
        for row in _flops_rows(of_backbone, at)
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def flops_text(models: Sequence[ModelConfig], at: Sequence[int] | None, *, parts: bool) -> str:
    """Returns a readable table; the paper's budgets where `at` is None.

    Args:
      models: the model with one connector each.
      at: the budgets to print.
      parts: whether to print the FLOPs of each part instead of totals and caches.
    """
    # What a prompt holds stands in the head, so that the table's numbers can be checked by hand.
    prompts = " + ".join(
        f"{m.name}: {m.num_images} x budget + {m.text_tokens} text tokens" for m in flops.MODALITIES
    ).replace(" + video", "; video")
    head = (
        f"Prefill of one prompt, {models[0].vision.image_px} px ({prompts}).\n"
        "A multiply-add is 2 FLOPs, TFLOPs are 1e12; KV cache in bfloat16, MB are 2**20 bytes.\n\n"
    )
    usual = (*flops.PAPER_BUDGETS, models[0].vision.num_patches)
    rows = _flops_rows(models, at)
    if not at:
        rows = [row for row in rows if row.budget in usual]
    return head + (_parts_table(models, rows) if parts else _totals_table(rows))


def _flops_rows(
    models: Iterable[ModelConfig], at: Sequence[int] | None
) -> list[flops.EfficiencyCell]:
    rows = flops.efficiency(models, at=at or None)
    missing = sorted(set(at or ()) - {row.budget for row in rows})
    if missing:
        raise ConfigError(
            f"--budget must be soft tokens per image that some connector serves, got {missing}; "
            "`parcel model flops --json` lists all."
        )
    return rows


def _totals_table(rows: Sequence[flops.EfficiencyCell]) -> str:
    # A toy model's costs would all print as 0.000.
    unit, scale = ("TFLOPs", 1.0) if rows[0].tflops >= 0.1 else ("GFLOPs", 1e3)
    titles = ["connector", "budget"]
    titles += [f"{m.name} {unit}" for m in flops.MODALITIES]
    titles += [f"{m.name} KV MB" for m in flops.MODALITIES]
    lines, step = [], len(flops.MODALITIES)
    for i in range(0, len(rows), step):
        group = rows[i : i + step]
        costs = [f"{row.tflops * scale:.3f}" for row in group] + [
            f"{row.kv_mb:.1f}" for row in group
        ]
        lines.append([group[0].connector, str(group[0].budget), *costs])
    return _flops_table_text(titles, lines)


def _parts_table(models: Sequence[ModelConfig], rows: Sequence[flops.EfficiencyCell]) -> str:
    of_kind = {cfg.connector.kind: cfg for cfg in models}
    modalities = {modality.name: modality for modality in flops.MODALITIES}
    lines = []
    for row in rows:
        cfg = of_kind[row.connector]  # type: ignore[index]
        cost = flops.prefill_flops(cfg, row.budget, modalities[row.modality])
        giga = [f"{getattr(cost, part) / 1e9:.3f}" for part in (*FLOPS_COLUMNS, "total")]
        lines.append([row.connector, str(row.budget), row.modality, *giga])
    return _flops_table_text(["connector", "budget", "GFLOPs of", *FLOPS_COLUMNS, "total"], lines)


def _flops_table_text(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(line + "\n" for line in align_columns(titles, rows, rule=True))
