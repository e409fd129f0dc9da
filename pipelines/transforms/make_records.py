"""Makes a record or a reject from each item."""

import collections
from collections.abc import Iterable, Iterator

from pipelines.records.schema import BadInput, Record, Reject
from pipelines.sources.reading.item import Item
from pipelines.transforms.decode import DecodeMedia, Pixels
from pipelines.transforms.inputs import InputDigest
from pipelines.transforms.render import render_record


class MakeRecords:
    """Decodes the media of items and renders their texts.

    Args:
      decode: decoder of the media.
      inputs: digest to which all items are added; None computes no digest.

    Attributes:
      num_composed: records so far in which the background shows through transparent pixels.
      decoders: decoder of videos -> records so far that it decoded.
    """

    def __init__(self, decode: DecodeMedia, inputs: InputDigest | None = None) -> None:
        self._decode, self._inputs = decode, inputs
        self.num_composed = 0
        self.decoders: collections.Counter[str] = collections.Counter()
        self._ids: set[str] = set()

    def __call__(self, items: Iterable[Item]) -> Iterator[tuple[Item, Record | Reject]]:
        """Yields each item with its record or its reject.

        Args:
          items: items sorted by id; the second of two with the same id is a reject.
        """
        previous = ""
        for item in items:
            # The digest gets both of two equal ids: a duplicate that goes away changes the shard.
            if item.id == previous:
                self._digest_item_inputs(item, [])
                yield item, duplicate_reject(item)
            else:
                yield item, self._make_item_record(item)
            previous = item.id

    def record_of_unsorted(self, item: Item) -> Record | Reject:
        """Returns the record of an item, or its reject; items may come in any order.

        The second of two with the same id is a reject. Memory holds all ids.
        """
        if item.id in self._ids:
            return duplicate_reject(item)
        self._ids.add(item.id)
        return self._make_item_record(item)

    def _make_item_record(self, item: Item) -> Record | Reject:
        # The digest gets the item even if its media cannot be read: a file that appears later must
        # change the digest, or the shard with its reject would be reused.
        pixels: list[Pixels] = []
        try:
            for media in item.media:
                pixels.append(self._decode(media, item))
        except BadInput as error:
            return _reject_item(item, "decode", str(error), self._decode.sha256)
        finally:
            self._digest_item_inputs(item, pixels)
        try:
            record = self._render_item_record(item, pixels)
            self.num_composed += any(decoded.composed for decoded in pixels)
            self.decoders.update({decoded.decoder for decoded in pixels if decoded.decoder})
            return record
        except BadInput as error:
            sha256 = pixels[0].sha256 if pixels else ""
            return _reject_item(item, "render", str(error), sha256)

    def _digest_item_inputs(self, item: Item, pixels: list[Pixels]) -> None:
        if self._inputs is not None:
            self._inputs.add(item, [decoded.sha256 for decoded in pixels])

    def _render_item_record(self, item: Item, pixels: list[Pixels]) -> Record:
        """Returns the record; uses the whole picture if a random crop cuts off its objects."""
        try:
            return render_record(item, pixels)
        except BadInput:
            if not any(decoded.crop for decoded in pixels):
                raise
        return render_record(item, [self._decode(media, item, plain=True) for media in item.media])


def duplicate_reject(item: Item) -> Reject:
    """Returns the reject of an item whose id an item before it has."""
    return _reject_item(item, "read", "duplicate id", "")


def _reject_item(item: Item, stage: str, reason: str, sha256: str) -> Reject:
    return Reject(id=item.id, stage=stage, reason=reason, source=item.source, source_sha256=sha256)
