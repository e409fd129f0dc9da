"""Renders an item and its decoded pixels to a record."""

import hashlib
import json
from typing import Any

from pipelines.images.square import Region
from pipelines.records.schema import MASK_MARKER, BadInput, Record
from pipelines.sources.reading.item import BOX_MARKER, Item
from pipelines.transforms.decode import Pixels
from pipelines.transforms.locations import box_tokens, check_pixels
from pipelines.transforms.masks import crop_mask, normalize_mask, pad_mask


def render_record(item: Item, pixels: list[Pixels]) -> Record:
    """Returns the record of an item.

    Raises:
      BadInput: if its boxes, masks or texts do not fit its pixels or each other.
    """
    # Boxes and masks are annotated on the whole picture; the record's are relative to what its
    # square shows: what the augmentation left of it, and the bars of padding.
    #
    #   picture 100 x 60, crop (20, 0, 100, 60), region (20, -10, 100, 70), box (30, 20, 50, 40)
    #   square   80 x 80                                                    box (10, 30, 30, 50)
    first = pixels[0] if pixels else _no_pixels(item)
    width, height = first.size
    if item.boxes and item.annotated_size not in (None, (width, height)):
        raise BadInput(f"annotated as {item.annotated_size}, image is {(width, height)}")
    kept = first.crop or (0, 0, width, height)
    region = first.region or kept
    check_pixels(item.boxes, (width, height))
    boxes = [box_tokens(box, kept=kept, region=region) for box in item.boxes]
    # All texts together: boxes are listed in the order of the markers, the prefix's first.
    prefix, *suffixes = _insert_boxes([item.prefix, *item.suffixes], boxes)
    num_masks = sum(suffix.count(MASK_MARKER) for suffix in suffixes)
    if num_masks != len(item.masks):
        raise BadInput(f"text has {num_masks} {MASK_MARKER}, annotation {len(item.masks)} masks")
    meta = dict(item.meta)
    if first.region and item.masks and "box" in meta:
        meta["box"] = _moved_box(meta["box"], (width, height), region)
    # A record has one source; a pair notes both.
    if len(pixels) > 1:
        meta["sources"] = [[m.source, p.sha256] for m, p in zip(item.media, pixels, strict=True)]
    return Record(
        id=item.id,
        images=tuple(image for p in pixels for image in p.images),
        num_windows=first.num_windows if len(pixels) == 1 else 1,
        prefix=prefix,
        suffixes=tuple(suffixes),
        prefixes=item.prefixes,
        turns=item.turns,
        task=item.task,
        lang=item.lang,
        source=item.source,
        source_sha256=first.sha256,
        answers=item.answers,
        masks=tuple(
            pad_mask(crop_mask(normalize_mask(m, width=width, height=height), kept), kept, region)
            for m in item.masks
        ),
        frame_requested=tuple(t for p in pixels for t in p.requested),
        frame_decoded=tuple(t for p in pixels for t in p.decoded),
        meta=meta,
        licence=item.licence,
    )


def _no_pixels(item: Item) -> Pixels:
    """Returns the pixels of an item that is text alone, with the digest of its text.

    Raises:
      BadInput: if it has boxes or masks.
    """
    if item.boxes or item.masks:
        raise BadInput("boxes and masks need a picture, got none")
    text = json.dumps([item.prefix, item.suffixes, item.turns])
    return Pixels(images=(), size=(0, 0), sha256=hashlib.sha256(text.encode()).hexdigest())


def _moved_box(box: Any, size: tuple[int, int], region: Region) -> list[float]:
    """Returns a box (ymin, xmin, ymax, xmax) in fractions of a region.

    Args:
      box: the box in fractions of the picture.
      size: width and height of the picture [pixels].
      region: the region.
    """
    x0, y0, x1, y1 = region
    scale, first, sides = size[::-1], (y0, x0), (y1 - y0, x1 - x0)
    return [(value * scale[i % 2] - first[i % 2]) / sides[i % 2] for i, value in enumerate(box)]


def _insert_boxes(texts: list[str], boxes: list[str]) -> list[str]:
    """Replaces the box markers by the boxes' tokens, in order."""
    if sum(text.count(BOX_MARKER) for text in texts) != len(boxes):
        raise BadInput(f"text has other than {len(boxes)} box markers (U+E000)")
    remaining_boxes = iter(boxes)
    placed = []
    for text in texts:
        head, *tails = text.split(BOX_MARKER)
        placed.append(head + "".join(next(remaining_boxes) + tail for tail in tails))
    return placed
