"""Draws an answer's boxes and masks on the image that it is about."""

import numpy as np
from PIL import Image

from model.checkpoint.folder import mask_codec_path
from model.masks.codec import MaskCodec
from pipelines.records.boxes import OBJECT, paint_box, paint_mask, pixel_box
from pipelines.records.codes import numbers


def draw_objects(image: Image.Image, answer: str, checkpoint: str) -> int:
    """Draws the answer's boxes and masks on the image; returns the answer's number of objects.

    Args:
      image: the image that the answer is about.
      answer: location tokens (ymin, xmin, ymax, xmax), with or without 16 segmentation tokens.
      checkpoint: a checkpoint, as a folder or in a bucket; without a mask codec in it, only boxes
        are drawn.
    """
    codec_path = mask_codec_path(checkpoint)
    codec = MaskCodec.load(codec_path) if codec_path else None
    matches = list(OBJECT.finditer(answer))
    # Four location tokens are a box; 16 segmentation tokens behind them are its mask, 64 x 64:
    #
    #     <loc0100><loc0200><loc0500><loc0600><seg012>…<seg127>
    #     ymin     xmin     ymax     xmax     the mask, scaled into the box
    for number, match in enumerate(matches):
        x0, y0, x1, y1 = box = pixel_box(match[1], image.size)
        if y1 <= y0 or x1 <= x0:
            continue
        if match[2] and codec is not None:
            inside = Image.fromarray(codec.decode(numbers(match[2])))
            # Resized before the threshold at 0, so that a large mask has smooth edges.
            resized = inside.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)
            mask = Image.fromarray((np.asarray(resized) > 0).astype(np.uint8) * 255)
            paint_mask(image, mask, (x0, y0), number)
        paint_box(image, box, number)
    return len(matches)
