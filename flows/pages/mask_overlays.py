"""Masks that pages lay over a picture: those of records, and those that a model wrote."""

import contextlib
import functools
import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from PIL import Image

from flows.steps.registry import KINDS
from infra.store.manifest import kind_of_key
from infra.store.store import Store
from model.files import MASK_CODEC
from pipelines.records.boxes import color_of
from pipelines.records.rle import decode_mask
from pipelines.records.schema import Record

_SIDE = 448
"""Largest side of a record's mask, which is the size of its picture on a page [pixels]."""
_ALPHA = 110
"""Opacity of a mask [0-255]."""
_WITH_CODEC = {kind.name for kind in KINDS.values() if kind.holds in ("answers", "checkpoint")}
"""Kinds of the artifacts by which the mask codec of scores is found."""


class Masks:
    """Masks that models of a store wrote; safe to share between threads.

    Args:
      store: the store of the mask codecs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._codec = functools.lru_cache(maxsize=4)(self._load_mask_codec)
        # Cached, since a list of items asks once per item.
        self.codec_of = functools.lru_cache(maxsize=256)(self._mask_codec_key)

    def _load_mask_codec(self, key: str):
        from model.masks.codec import MaskCodec  # Imports JAX, which other pages do not need.

        return MaskCodec.load(self._store.get(key).path / MASK_CODEC)

    def _mask_codec_key(self, key: str) -> str:
        """Returns the key of the mask codec behind predictions or scores; "" if there is none."""
        #   scores ─▶ predictions ─▶ checkpoint ─▶ mask codec
        #                            a step of the user's ─▶ checkpoint ─▶ mask codec
        queue = [key]
        with contextlib.suppress(KeyError):  # An artifact on the way was deleted.
            for behind in queue:
                inputs = self._store.get_cached(behind).manifest.inputs
                if "mask_codec" in inputs:
                    return inputs["mask_codec"].key
                reads = (read.key for read in inputs.values() if read.key not in queue)
                queue += [read for read in reads if kind_of_key(read) in _WITH_CODEC]
        return ""

    def written(self, codec: str, numbers: Sequence[int]) -> Bool[np.ndarray, "64 64"]:
        """Returns the mask, relative to its box, that 16 segmentation tokens encode."""
        return self._codec(codec).decode(list(numbers)) > 0


def page_mask(record: Record, number: int) -> Bool[np.ndarray, "H W"]:
    """Returns a mask of a record, no larger than a page shows it."""
    whole = Image.fromarray(decode_mask(record.masks[number]))
    size = min(_SIDE, whole.width), min(_SIDE, whole.height)
    return np.asarray(whole.resize(size, Image.Resampling.NEAREST))


def overlay_png(inside: Bool[np.ndarray, "H W"], number: int) -> bytes:
    """Returns a PNG of a mask in the color of object `number`, transparent outside the mask."""
    # A palette of two colors with an opacity each: what is outside is clear, the mask tinted.
    image = Image.fromarray(inside.astype(np.uint8), "P")
    image.putpalette([0, 0, 0, *color_of(number)])
    png = io.BytesIO()
    image.save(png, "PNG", transparency=bytes([0, _ALPHA]))
    return png.getvalue()
