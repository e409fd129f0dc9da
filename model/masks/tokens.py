"""Masks of records: the box of each, and suffixes with their segmentation tokens filled in."""

import re
from collections.abc import Sequence

import numpy as np

from model.masks.codec import MaskCodec, crop_mask
from pipelines.records.codes import BOX, Box, format_mask, parse_box
from pipelines.records.rle import decode_mask
from pipelines.records.schema import MASK_MARKER, Record

_LOCATED = re.compile(f"({BOX}){re.escape(MASK_MARKER)}")


def located_masks(record: Record) -> list[tuple[Box, str]]:
    """Returns (box, run lengths) of every mask of a record; the boxes are in its suffixes.

    Raises:
      ValueError: if its markers and masks do not match.
    """
    boxes = [
        parse_box(box_text) for suffix in record.suffixes for box_text in _LOCATED.findall(suffix)
    ]
    if len(boxes) != len(record.masks):
        raise ValueError(
            f"record {record.id!r} has {len(record.masks)} masks for {len(boxes)} located "
            f"{MASK_MARKER} in its suffixes; prepare it again."
        )
    return list(zip(boxes, record.masks, strict=True))


class MaskTokens:
    """Replaces `<mask>` in suffixes by the codec's tokens; each record is encoded once.

    Safe to share between threads: two that encode the same record at once get the same tokens.
    """

    def __init__(self, codec: MaskCodec | None) -> None:
        self._codec = codec
        self._tokens_by_id: dict[str, tuple[str, ...]] = {}

    def prepare(self, records: Sequence[Record]) -> None:
        """Encodes the masks of all records not seen before, all together.

        Raises:
          ValueError: if there are masks and no codec.
        """
        new = [r for r in {r.id: r for r in records}.values() if r.id not in self._tokens_by_id]
        located = {r.id: located_masks(r) for r in new if r.masks}
        if not located:
            return
        if self._codec is None:
            raise ValueError(
                f"record {next(iter(located))!r} has masks but there is no mask codec; give one."
            )
        crops = [
            crop_mask(decode_mask(rle), box) for masks in located.values() for box, rle in masks
        ]
        rows = iter(self._codec.encode_crops(np.stack(crops)).tolist())
        for key, masks in located.items():
            self._tokens_by_id[key] = tuple(format_mask(next(rows)) for _ in masks)

    def fill(self, record: Record, number: int) -> str:
        """Returns suffix `number` with every marker replaced; needs an earlier `prepare` of it."""
        # A record's tokens are in the order of its markers, over all suffixes.
        num_before = sum(suffix.count(MASK_MARKER) for suffix in record.suffixes[:number])
        filled = record.suffixes[number]
        for tokens in self._tokens_by_id.get(record.id, ())[num_before:]:
            filled = filled.replace(MASK_MARKER, tokens, 1)
        return filled
