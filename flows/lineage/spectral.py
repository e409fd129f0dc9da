"""`parcel spectral`: finds checkpoints and images that a person names, and writes their spectra."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flows.lineage.predict import find_checkpoint, read_pixels
from infra.errors import ConfigError
from model.analysis.spectra_files import open_checkpoint, write_spectra
from model.data.parts import open_parts
from model.data.pixels import decode_images
from pipelines.sheet.cards import spread_evenly


def draw_spectra(
    checkpoints: Sequence[str],
    paths: Sequence[str],
    *,
    out: Path,
    budget: int | None,
    data: str | None,
    limit: int,
    store: str,
) -> list[Path]:
    """Writes both figures, the numbers as JSON and as CSV, and returns the four files.

    Args:
      checkpoints: folders or artifacts of the store; all see the same images.
      paths: image files, or one video.
      out: folder of the results; made if absent.
      budget: see `open_checkpoint`.
      data: a prepared dataset, whose images come after those of `paths`.
      limit: most images taken from `data`, at even distances.
      store: where artifacts are looked up.

    Raises:
      ConfigError: if a checkpoint, an image, the dataset or the budget is not usable.
    """
    chosen = [open_checkpoint(find_checkpoint(name, store), budget) for name in checkpoints]
    sides = sorted({checkpoint.model.vision.image_px for checkpoint in chosen})
    images = {px: _images(paths, data, limit, px) for px in sides}
    return write_spectra(chosen, images, out)


def _images(paths: Sequence[str], data: str | None, limit: int, image_px: int) -> list[np.ndarray]:
    images = list(read_pixels(paths, image_px)) if paths else []
    if data is not None:
        try:
            parts = open_parts([data])
        except (OSError, ValueError) as error:
            raise ConfigError(f"--data must be a prepared dataset, got {data}: {error}") from None
        # Twice evenly: records first, so that only few are read, then the images of these.
        places = [(part, i) for part in parts.values() for i in range(len(part))]
        records = (part[i] for part, i in spread_evenly(places, limit))
        for image in spread_evenly([image for record in records for image in record.images], limit):
            images.extend(decode_images([image], 1, image_px))
    if not images:
        raise ConfigError("IMAGE... or --data must give at least one image, got none.")
    return images
