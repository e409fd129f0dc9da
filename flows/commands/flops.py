"""The cost of a prefill, for every connector and budget of a model: `parcel flops`."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from flows.study.load import ConfigError, load
from model.analysis import flops
from model.checkpoint.folder import load_config
from model.config import ModelConfig
from model.files import CONFIG
from model.presets import paligemma2_3b

PARTS = tuple(field.name for field in dataclasses.fields(flops.Flops))


def models(config: str | None, image_px: int | None) -> list[ModelConfig]:
    """Returns a model with every connector its sizes allow.

    Args:
      config: a study's YAML file or a checkpoint's folder; None is PaliGemma 2 3B.
      image_px: side of the input instead of the model's own [pixels].

    Raises:
      ConfigError: if `config` is neither, or the size does not fit the model.
    """
    try:
        model, settings = paligemma2_3b(), {}
        if config is not None and (Path(config) / CONFIG).is_file():
            model = load_config(config)
        elif config is not None:
            study = load(config)
            model, settings = study.model, study.connectors
        if image_px is not None:
            vision = dataclasses.replace(model.vision, image_px=image_px)
            model = dataclasses.replace(model, vision=vision)
        return list(flops.with_connectors(model, settings))
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
      models: one per connector.
      at: budgets.
      parts: the FLOPs of each part instead of totals and caches.
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
    return _table(titles, lines)


def _parts_table(models: Sequence[ModelConfig], rows: Sequence[flops.Row]) -> str:
    of_kind = {cfg.connector.kind: cfg for cfg in models}
    modalities = {modality.name: modality for modality in flops.MODALITIES}
    lines = []
    for row in rows:
        cfg = of_kind[row.connector]  # type: ignore[index]
        cost = flops.prefill_flops(cfg, row.budget, modalities[row.modality])
        giga = [f"{getattr(cost, part) / 1e9:.3f}" for part in (*PARTS, "total")]
        lines.append([row.connector, str(row.budget), row.modality, *giga])
    return _table(["connector", "budget", "GFLOPs of", *PARTS, "total"], lines)


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns aligned columns; the first is set to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip() + "\n"

    return line(titles) + line(["-" * width for width in widths]) + "".join(map(line, lines))
