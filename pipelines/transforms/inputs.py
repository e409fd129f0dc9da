"""What a shard is made from, as one digest: equal digests give equal shards."""

import hashlib
import json
from collections.abc import Sequence

from pipelines.records.schema import BadInput
from pipelines.sources.item import Item, Media
from pipelines.sources.media_reader import MediaReader


class InputDigest:
    """The digest of a list of items, and of the encoded images and videos they refer to.

    Where these lie does not count, so that an archive packed anew with one other member changes
    only the shards of that one.

    Args:
      read: reads media whose digests are not known yet.
    """

    def __init__(self, read: MediaReader) -> None:
        self._read = read
        self._digest = hashlib.sha256()
        self._last: tuple[Media, str] | None = None

    def add(self, item: Item, known: Sequence[str] = ()) -> None:
        """Adds an item.

        Args:
          item: the next of the list.
          known: digests of the first of its media; the others are read.
        """
        found = [*known, *(self._sha256(media) for media in item.media[len(known) :])]
        seen = [(m.source, m.video, m.start, m.end, m.edit) for m in item.media]
        told = {**vars(item), "media": seen, "sha256": found}
        # Letters that are no Unicode are escaped: such an item becomes a reject.
        self._digest.update(json.dumps(told, default=vars, sort_keys=True).encode() + b"\n")

    def hexdigest(self) -> str:
        """Returns the digest of all items so far [hex]."""
        return self._digest.hexdigest()

    def _sha256(self, media: Media) -> str:
        """Returns the digest of a media's bytes, or why it cannot be read."""
        if self._last is None or self._last[0] != media:
            try:
                self._last = media, self._read.sha256(media)
            except BadInput as error:
                self._last = media, str(error)
        return self._last[1]
