"""`parcel model spectral`: finds the checkpoints and images that are named, and writes spectra."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flows.lookup.predict import find_checkpoint, read_pixels
from flows.steps.registry import full_config
from infra.errors import ConfigError
from infra.store.store import Store
from model.analysis.spectra_files import open_checkpoint, write_spectra
from model.data.parts import open_parts
from model.data.pixels import decode_images
from pipelines.sheet.cards import spread_evenly

PAPER_SPLIT = ("chartqa", "test_human")
"""Benchmark and split whose pictures the paper's figures are of. Source: PARCEL, figure "Spectral
decoupling on ChartQA"; of the split's two kinds of questions, those of people."""


def draw_spectra(
    checkpoints: Sequence[str],
    paths: Sequence[str],
    *,
    out: Path,
    budget: int | None,
    data: str | None,
    limit: int | None,
    paper: bool,
    store: str,
) -> list[Path]:
    """Writes both figures, the numbers as JSON and as CSV, and returns the four files.

    Args:
      checkpoints: folders or artifacts of the store; all see the same images.
      paths: image files, or one video.
      out: folder of the results; made if absent.
      budget: see `open_checkpoint`.
      data: a prepared dataset, whose images come after those of `paths`.
      limit: most images taken from the dataset, at even distances; None takes all.
      paper: whether the dataset is the one that the paper's figures are of, instead of `data`.
      store: where artifacts are looked up.

    Raises:
      ConfigError: if a checkpoint, an image, the dataset or the budget is not usable.
    """
    chosen = [open_checkpoint(find_checkpoint(name, store), budget) for name in checkpoints]
    sides = sorted({checkpoint.model.vision.image_px for checkpoint in chosen})
    images = {
        px: _read_spectral_images(paths, _papers_dataset(store, px) if paper else data, limit, px)
        for px in sides
    }
    return write_spectra(chosen, images, out)


def _papers_dataset(store: str, image_px: int) -> str:
    """Returns the place of the newest dataset of `PAPER_SPLIT` at a size [pixels].

    Raises:
      ConfigError: if the store has none.
    """
    found = []
    for artifact in Store(store, make=False).artifacts("dataset"):
        spec = full_config(artifact.manifest)
        prepare = spec["prepare"]
        if (spec["reader"], spec["split"]) != PAPER_SPLIT or prepare["limit"] is not None:
            continue
        if prepare["image_px"] == image_px:
            found.append(artifact)
    if not found:
        raise ConfigError(
            f"--paper needs ChartQA's test_human at {image_px} px in {store}, and there is none: "
            f"prepare a study that is scored on it, or name a dataset by --data."
        )
    return max(found, key=lambda artifact: artifact.manifest.started).uri


def _read_spectral_images(
    paths: Sequence[str], data: str | None, limit: int | None, image_px: int
) -> list[np.ndarray]:
    images = list(read_pixels(paths, image_px)) if paths else []
    if data is not None:
        try:
            parts = open_parts([data])
        except (OSError, ValueError) as error:
            raise ConfigError(f"--data must be a prepared dataset, got {data}: {error}") from None
        # Twice evenly: records first, so that only few are read, then the images of these.
        places = [(part, i) for part in parts.values() for i in range(len(part))]
        limit = len(places) if limit is None else limit
        records = (part[i] for part, i in spread_evenly(places, limit))
        for image in spread_evenly([image for record in records for image in record.images], limit):
            images.extend(decode_images([image], 1, image_px))
    if not images:
        raise ConfigError("IMAGE... or --data must give at least one image, got none.")
    return images
