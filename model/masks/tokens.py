"""Masks of records: the box of each, and suffixes with their segmentation tokens filled in."""

import re
from collections.abc import Mapping

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


Place = tuple[str, int]
"""Name of a part of the data, and position of a record in it.

A record's id is unique in its dataset only: two corpora may have one of the same name."""


class MaskTokens:
    """Replaces `<mask>` in suffixes by the codec's tokens; each record is encoded once.

    Safe to share between threads: two that encode the same record at once get the same tokens.
    """

    def __init__(self, codec: MaskCodec | None) -> None:
        self._codec = codec
        self._tokens: dict[Place, tuple[str, ...]] = {}

    def prepare(self, records: Mapping[Place, Record]) -> None:
        """Encodes the masks of all records not seen before, all together.

        Raises:
          ValueError: if there are masks and no codec.
        """
        located = {
            place: located_masks(record)
            for place, record in records.items()
            if record.masks and place not in self._tokens
        }
        if not located:
            return
        if self._codec is None:
            first = records[next(iter(located))].id
            raise ValueError(f"record {first!r} has masks but there is no mask codec; give one.")
        crops = [
            crop_mask(decode_mask(rle), box) for masks in located.values() for box, rle in masks
        ]
        rows = iter(self._codec.encode_crops(np.stack(crops)).tolist())
        for place, masks in located.items():
            self._tokens[place] = tuple(format_mask(next(rows)) for _ in masks)

    def fill(self, place: Place, record: Record, number: int) -> str:
        """Returns suffix `number` with every marker replaced; needs an earlier `prepare` of it."""
        # A record's tokens are in the order of its markers, over all suffixes.
        num_before = sum(suffix.count(MASK_MARKER) for suffix in record.suffixes[:number])
        filled = record.suffixes[number]
        for tokens in self._tokens.get(place, ())[num_before:]:
            filled = filled.replace(MASK_MARKER, tokens, 1)
        return filled
