"""Media -> stored pixels: decoded, augmented or edited for the benchmark, made square."""

import dataclasses
import hashlib

from pipelines.images.square import (
    ImageSpec,
    Region,
    decode_opaque,
    encode_image,
    square_image,
    square_region,
)
from pipelines.records.hashing import stable_hash
from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.transforms.augment import Augmentation, DrawnAugmentation, augment_image
from pipelines.transforms.edits import edit_image
from pipelines.video.client import VideoChild
from pipelines.video.sampling import FrameSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """Pixels decoded from one image or video.

    Attributes:
      images: encoded squares; for a video, window after window.
      size: width and height before they were made square [pixels].
      sha256: digest of the encoded original [hex].
      requested: requested time of each video frame [s].
      decoded: time of the frame that was actually decoded, per video frame [s].
      num_windows: windows of a video.
      crop: x0, y0, x1, y1 of the part of an image that was kept; None if all of it was [pixels].
      region: what an image's square shows, bars included; None if there are none.
      composed: whether the background shows through transparent pixels.
      decoder: what decoded a video, "pyav" or "decord"; "" of an image.
    """

    images: tuple[bytes, ...]
    size: tuple[int, int]
    sha256: str
    requested: tuple[float, ...] = ()
    decoded: tuple[float, ...] = ()
    num_windows: int = 1
    crop: Region | None = None
    region: Region | None = None
    composed: bool = False
    decoder: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Settings that turn the media of a dataset into pixels.

    Attributes:
      image: format of stored squares, and the accepted input sizes.
      sampling: frames to take from a video; `DecodeMedia` adds each clip's own draw and bounds.
      augmentation: augmentation of images; frames of videos are not augmented.
      seed: seed of random windows and augmentation; each file derives its own draws from it.
    """

    image: ImageSpec
    sampling: FrameSampling
    augmentation: Augmentation
    seed: int


class DecodeMedia:
    """Decodes media and caches the last one, since items of the same pixels follow each other."""

    def __init__(self, media_reader: MediaReader, config: DecodeConfig, video: VideoChild) -> None:
        self._media_reader = media_reader
        self._config = config
        self._video = video
        self._media: Media | None = None
        self._results: dict[DrawnAugmentation | None, tuple[Pixels | BadInput, str]] = {}
        self.sha256 = ""

    def __call__(self, media: Media, item: Item, *, plain: bool = False) -> Pixels:
        """Returns the pixels of `media`; `self.sha256` is its digest even if that fails.

        Args:
          media: the image or video to decode.
          item: the item that shows it; the part of its id before "#" seeds the augmentation.
          plain: whether to leave out augmentation.

        Raises:
          BadInput: if it cannot be decoded.
        """
        # Items of one picture share its draw, hence its pixels: the cache below then decodes it
        # once. A draw of None and a drawn one are cached apart, as `plain` asks for the picture
        # again.
        key = f"{item.id.partition('#')[0]} {media.source}"
        plain = plain or media.edit is not None  # Images with a benchmark's edit get no other.
        augmentation = None if plain else self._config.augmentation.draw(self._config.seed, key)
        if self._media != media:
            self._media, self._results = media, {}
        if augmentation not in self._results:
            self.sha256 = ""
            try:
                result: Pixels | BadInput = self._decode_media_pixels(media, augmentation)
            except BadInput as error:
                result = error
            self._results[augmentation] = (result, self.sha256)
        result, self.sha256 = self._results[augmentation]
        if isinstance(result, BadInput):
            raise result
        return result

    def _decode_media_pixels(self, media: Media, change: DrawnAugmentation | None) -> Pixels:
        if media.video:
            return self._decode_video(media)
        data, spec, crop = self._media_reader.read(media), self._config.image, None
        self.sha256 = hashlib.sha256(data).hexdigest()
        image, composed = decode_opaque(data, spec)
        size = image.size
        if change is not None:
            encoded, crop = augment_image(image, spec, change)
        elif media.edit is not None:
            encoded, size = edit_image(image, spec, media.edit)
        else:
            encoded = encode_image(square_image(image, spec), spec.encoding)
        return Pixels(
            images=(encoded,),
            size=size,
            sha256=self.sha256,
            crop=crop,
            region=_region_of_square(crop or (0, 0, *size), spec),
            composed=composed,
        )

    def _decode_video(self, media: Media) -> Pixels:
        # The draw depends on the file only, so that all records of a file share its pixels.
        draw = (stable_hash(f"{self._config.seed} {media.source}") >> 11) / 2**53
        sampling = dataclasses.replace(
            self._config.sampling, draw=draw, start=media.start, end=media.end
        )
        with self._media_reader.local(media) as (path, self.sha256):
            clip = self._video.sample(path, sampling, self._config.image)
        return Pixels(
            images=clip.images,
            size=clip.size,
            sha256=self.sha256,
            requested=clip.requested,
            decoded=clip.decoded,
            num_windows=clip.num_windows,
            composed=clip.composed,
            decoder=clip.decoder,
        )


def _region_of_square(kept: Region, spec: ImageSpec) -> Region | None:
    """Returns the region that the square shows of a picture with a part kept; None if just that."""
    # 100 x 60 without its first 20 columns is 80 x 60: padded, (20, -10, 100, 70).
    x0, y0, x1, y1 = kept
    left, top, right, bottom = square_region((x1 - x0, y1 - y0), spec)
    region = x0 + left, y0 + top, x0 + right, y0 + bottom
    return None if region == kept else region
