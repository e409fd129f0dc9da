"""A digest of the inputs of a shard: equal digests give equal shards."""

import hashlib
import json
from collections.abc import Sequence

from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.media_reader import MediaReader


class InputDigest:
    """Digest of a list of items and of the encoded images and videos that they refer to.

    Offsets do not count, so an archive that is packed again with one changed member changes only
    the shards that use this member.

    Args:
      media_reader: reads media whose digests are not known yet.
    """

    def __init__(self, media_reader: MediaReader) -> None:
        self._media_reader = media_reader
        self._digest = hashlib.sha256()
        self._latest_digest: tuple[Media, str] | None = None

    def add(self, item: Item, known_digests: Sequence[str] = ()) -> None:
        """Adds an item.

        Args:
          item: the next item of the list.
          known_digests: digests of its first media; the other media are read.
        """
        digests = [
            *known_digests,
            *(self._media_sha256(media) for media in item.media[len(known_digests) :]),
        ]
        # What is shown, by name and part, not where its bytes lie.
        shown_media = [(m.source, m.video, m.start, m.end, m.edit) for m in item.media]
        fields = {**vars(item), "media": shown_media, "sha256": digests}
        if not item.licence.is_stated:  # As in digests that are older than licences.
            del fields["licence"]
        if not item.text_file:  # As in those that are older than text alone.
            del fields["text_file"]
        # `json.dumps` escapes invalid Unicode; such an item becomes a reject later.
        self._digest.update(json.dumps(fields, default=vars, sort_keys=True).encode() + b"\n")

    def hexdigest(self) -> str:
        """Returns the digest of all items so far [hex]."""
        return self._digest.hexdigest()

    def _media_sha256(self, media: Media) -> str:
        """Returns the digest of a media's bytes, or the reason that it cannot be read."""
        if self._latest_digest is None or self._latest_digest[0] != media:
            try:
                self._latest_digest = media, self._media_reader.sha256(media)
            except BadInput as error:
                self._latest_digest = media, str(error)
        return self._latest_digest[1]
