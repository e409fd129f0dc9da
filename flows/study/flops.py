"""`parcel flops`: the cost of a prefill, for every connector and budget of a model."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from flows.config.load import load
from flows.config.own import connector_named
from flows.config.own_checkpoint import config_of
from flows.report.columns import in_columns
from infra.reason import ConfigError
from model.analysis import flops
from model.config import ModelConfig
from model.connector.routing import KINDS
from model.files import CONFIG
from model.presets import paligemma2_3b

PARTS = tuple(field.name for field in dataclasses.fields(flops.Flops))


def models(config: str | None, image_px: int | None, own: Sequence[str] = ()) -> list[ModelConfig]:
    """Returns a model once with each connector that its sizes allow.

    Args:
      config: a study's YAML file or a checkpoint's folder; None is PaliGemma 2 3B.
      image_px: side of the input instead of the model's own [pixels]; at the side of a study's
        Stage 2, the settings are those of Stage 2.
      own: connectors of the user's own, beside those of the study or the checkpoint.

    Raises:
      ConfigError: if `config` is neither, the size does not fit the model, or there is no such
        connector.
    """
    try:
        more = [connector_named("--connector", name) for name in own]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        model, settings = paligemma2_3b(), {}
        if config is not None and (Path(config) / CONFIG).is_file():
            model = config_of(Path(config))
            more.append(model.connector.kind)
        elif config is not None:
            views = {view.model.vision.image_px: view for view in load(config).resolutions}
            study = views.get(image_px or 0, next(iter(views.values())))
            model, settings = study.model, study.connectors
            more += map(study.connector_of, study.methods)
        if image_px is not None and image_px != model.vision.image_px:
            vision = dataclasses.replace(model.vision, image_px=image_px)
            model = dataclasses.replace(model, vision=vision)
            # Buckets are declared for one side; kept at another, they would rule out connectors.
            settings = {kind: dataclasses.replace(c, buckets=()) for kind, c in settings.items()}
        more = [kind for kind in dict.fromkeys(more) if kind not in KINDS]
        return list(flops.with_connectors(model, settings, more))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{config or '--image-px'}: {error}") from None


def as_json(models: Iterable[ModelConfig], at: Sequence[int] | None) -> str:
    """Returns the rows as a JSON list, unrounded; every budget where `at` is None."""
    rows = [dataclasses.asdict(row) for row in _rows(models, at)]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def as_text(models: Sequence[ModelConfig], at: Sequence[int] | None, *, parts: bool) -> str:
    """Returns a readable table; the paper's budgets where `at` is None.

    Args:
      models: the model with one connector each.
      at: the budgets to print.
      parts: whether to print the FLOPs of each part instead of totals and caches.
    """
    prompts = " + ".join(
        f"{m.name}: {m.num_images} x budget + {m.text_tokens} text tokens" for m in flops.MODALITIES
    ).replace(" + video", "; video")
    head = (
        f"Prefill of one prompt, {models[0].vision.image_px} px ({prompts}).\n"
        "A multiply-add is 2 FLOPs, TFLOPs are 1e12; KV cache in bfloat16, MB are 2**20 bytes.\n\n"
    )
    usual = (*flops.PAPER_BUDGETS, models[0].vision.num_patches)
    rows = _rows(models, at)
    if not at:
        rows = [row for row in rows if row.budget in usual]
    return head + (_parts_table(models, rows) if parts else _totals_table(rows))


def _rows(models: Iterable[ModelConfig], at: Sequence[int] | None) -> list[flops.Row]:
    rows = flops.efficiency(models, at=at or None)
    missing = sorted(set(at or ()) - {row.budget for row in rows})
    if missing:
        raise ConfigError(
            f"--budget must be soft tokens per image that some connector serves, got {missing}; "
            "`parcel flops --json` lists all."
        )
    return rows


def _totals_table(rows: Sequence[flops.Row]) -> str:
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
    return _lines(titles, lines)


def _parts_table(models: Sequence[ModelConfig], rows: Sequence[flops.Row]) -> str:
    of_kind = {cfg.connector.kind: cfg for cfg in models}
    modalities = {modality.name: modality for modality in flops.MODALITIES}
    lines = []
    for row in rows:
        cfg = of_kind[row.connector]  # type: ignore[index]
        cost = flops.prefill_flops(cfg, row.budget, modalities[row.modality])
        giga = [f"{getattr(cost, part) / 1e9:.3f}" for part in (*PARTS, "total")]
        lines.append([row.connector, str(row.budget), row.modality, *giga])
    return _lines(["connector", "budget", "GFLOPs of", *PARTS, "total"], lines)


def _lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(line + "\n" for line in in_columns(titles, rows, rule=True))
