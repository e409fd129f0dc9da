"""Renders an item and its decoded pixels to a record."""

from pipelines.records.schema import MASK_MARKER, BadInput, Record
from pipelines.sources.item import BOX_MARKER, Item
from pipelines.transforms.decode import Pixels
from pipelines.transforms.locations import box_tokens, check_pixels
from pipelines.transforms.masks import crop_mask, normalize_mask


def render_record(item: Item, pixels: list[Pixels]) -> Record:
    """Returns the record of an item.

    Raises:
      BadInput: if its boxes, masks or texts do not fit its pixels or each other.
    """
    # Boxes and masks are annotated on the whole picture; the record's are relative to what the
    # augmentation left of it:
    #
    #   picture 100 x 80, crop (10, 0, 90, 80), box (30, 20, 50, 40)
    #   stored   80 x 80                        box (20, 20, 40, 40)
    width, height = pixels[0].size
    if item.boxes and item.annotated_size not in (None, (width, height)):
        raise BadInput(f"annotated as {item.annotated_size}, image is {(width, height)}")
    x0, y0, x1, y1 = crop = pixels[0].crop or (0, 0, width, height)
    check_pixels(item.boxes)
    boxes = [
        box_tokens(_shift_box(box, x0, y0), width=x1 - x0, height=y1 - y0) for box in item.boxes
    ]
    # All texts together: boxes are listed in the order of the markers, the prefix's first.
    prefix, *suffixes = _insert_boxes([item.prefix, *item.suffixes], boxes)
    num_masks = sum(suffix.count(MASK_MARKER) for suffix in suffixes)
    if num_masks != len(item.masks):
        raise BadInput(f"text has {num_masks} {MASK_MARKER}, annotation {len(item.masks)} masks")
    meta = dict(item.meta)
    # A record has one source; a pair notes both.
    if len(pixels) > 1:
        meta["sources"] = [[m.source, p.sha256] for m, p in zip(item.media, pixels, strict=True)]
    return Record(
        id=item.id,
        images=tuple(image for p in pixels for image in p.images),
        num_windows=pixels[0].num_windows if len(pixels) == 1 else 1,
        prefix=prefix,
        suffixes=tuple(suffixes),
        prefixes=item.prefixes,
        turns=item.turns,
        task=item.task,
        lang=item.lang,
        source=item.media[0].source,
        source_sha256=pixels[0].sha256,
        answers=item.answers,
        masks=tuple(
            crop_mask(normalize_mask(m, width=width, height=height), crop) for m in item.masks
        ),
        frame_requested=tuple(t for p in pixels for t in p.requested),
        frame_decoded=tuple(t for p in pixels for t in p.decoded),
        meta=meta,
        licence=item.licence,
    )


def _shift_box(box: tuple[float, ...], x: float, y: float) -> tuple[float, ...]:
    """Returns a box relative to the origin (x, y)."""
    return tuple(value - (x, y)[i % 2] for i, value in enumerate(box))


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
