"""An answer's boxes and masks, drawn on the image it is about."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from flows.config.load import ConfigError
from model.checkpoint.folder import mask_codec_path
from model.vision.mask_codec import MaskCodec
from pipelines.transforms.images import ImageSpec, decode_image

_OBJECT = re.compile(r"<loc(\d{4})><loc(\d{4})><loc(\d{4})><loc(\d{4})>((?:<seg\d{3}>){16})?")
_SEG = re.compile(r"<seg(\d{3})>")
_COLORS = ((230, 60, 40), (40, 140, 230), (40, 180, 80), (240, 170, 30), (170, 80, 210))


def draw_answer(paths: Sequence[str], answer: str, checkpoint: Path, out: str) -> int:
    """Writes the image with the answer's boxes and masks, and returns how many objects it has.

    Args:
      paths: the one image the answer is about; its own size is kept.
      answer: location tokens (ymin, xmin, ymax, xmax), with or without 16 segmentation tokens.
      checkpoint: folder with the mask codec; without one, boxes alone are drawn.
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
    found = list(_OBJECT.finditer(answer))
    for number, one in enumerate(found):
        color = _COLORS[number % len(_COLORS)]
        sides = (image.height, image.width, image.height, image.width)
        y0, x0, y1, x1 = (
            int(int(loc) / 1023 * side) for loc, side in zip(one.groups()[:4], sides, strict=True)
        )
        if y1 <= y0 or x1 <= x0:
            continue
        if one[5] and codec is not None:
            inside = Image.fromarray(codec.decode([int(i) for i in _SEG.findall(one[5])]))
            resized = inside.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)
            mask = Image.fromarray((np.asarray(resized) > 0).astype(np.uint8) * 128)
            image.paste(Image.new("RGB", mask.size, color), (x0, y0), mask)
        width = max(1, min(image.size) // 100)
        ImageDraw.Draw(image).rectangle((x0, y0, x1 - 1, y1 - 1), outline=color, width=width)
    try:
        image.save(out, "PNG")
    except OSError as error:
        raise ConfigError(f"draw must be a file to write, got {out}: {error.strerror}.") from None
    return len(found)
