"""Draws an answer's boxes and masks on the image that it is about."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from infra.reason import ConfigError
from model.checkpoint.folder import mask_codec_path
from model.masks.codec import MaskCodec
from pipelines.images.square import ImageSpec, decode_image
from pipelines.records.boxes import OBJECT, paint_box, paint_mask, pixel_box
from pipelines.records.codes import numbers


def draw_answer(paths: Sequence[str], answer: str, checkpoint: Path, out: str) -> int:
    """Writes the image with the answer's boxes and masks; returns the answer's number of objects.

    Args:
      paths: path of the one image that the answer is about; the image keeps its size.
      answer: location tokens (ymin, xmin, ymax, xmax), with or without 16 segmentation tokens.
      checkpoint: checkpoint folder; without a mask codec in it, only boxes are drawn.
      out: PNG to write [path].

    Raises:
      ConfigError: if there are several images, or `out` cannot be written.
    """
    if len(paths) != 1:
        raise ConfigError(f"draw needs one image, got {len(paths)}.")
    bounds = ImageSpec()
    try:
        data = Path(paths[0]).read_bytes()
        image = decode_image(data, min_side=bounds.min_side, max_pixels=bounds.max_pixels)
    except ValueError as error:
        raise ConfigError(f"draw needs an image, got {paths[0]}: {error}.") from None
    codec_path = mask_codec_path(checkpoint)
    codec = MaskCodec.load(codec_path) if codec_path else None
    found = list(OBJECT.finditer(answer))
    for number, one in enumerate(found):
        x0, y0, x1, y1 = box = pixel_box(one[1], image.size)
        if y1 <= y0 or x1 <= x0:
            continue
        if one[2] and codec is not None:
            inside = Image.fromarray(codec.decode(numbers(one[2])))
            # Resized before the threshold at 0, so that a large mask has smooth edges.
            resized = inside.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)
            mask = Image.fromarray((np.asarray(resized) > 0).astype(np.uint8) * 255)
            paint_mask(image, mask, (x0, y0), number)
        paint_box(image, box, number)
    try:
        image.save(out, "PNG")
    except OSError as error:
        raise ConfigError(f"draw must be a file to write, got {out}: {error.strerror}.") from None
    return len(found)
