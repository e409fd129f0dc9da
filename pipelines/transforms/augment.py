"""Pretraining augmentation: a random resize method, JPEG re-encoding and a slight crop.

The change is drawn once per picture, when it is prepared, from its records' id and a seed.

Source: PaliGemma, arXiv:2407.07726, section 3.2.6, which states no strengths. Methods and qualities
are those of big_vision `pp/proj/paligemma/robustness.py`, without the Mitchell filter and the
choice of DCT, which Pillow does not have.
"""

import dataclasses
import io

import numpy as np
from PIL import Image

from pipelines.images.square import ImageSpec, Region, encode_image, pad_image, square_image
from pipelines.records.hashing import stable_hash

METHODS = ("bilinear", "bicubic", "lanczos", "box", "hamming", "nearest two")
"""Resize filters; "nearest two" is bilinear without antialiasing."""

JPEG_QUALITIES = (75, 95)

MAX_CROP = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Strengths of the augmentation.

    Attributes:
      resize: share of the pictures whose resize method is drawn [fraction].
      jpeg: share of the pictures that are re-encoded, at a quality of 75 to 95 [fraction].
      crop: largest part cut off a picture's width, and off its height [fraction].
    """

    resize: float = 0.0
    jpeg: float = 0.0
    crop: float = 0.0

    def __post_init__(self) -> None:
        for name, upper_bound in (("resize", 1.0), ("jpeg", 1.0), ("crop", MAX_CROP)):
            value = getattr(self, name)
            if not 0 <= value <= upper_bound:
                raise ValueError(f"augment_{name} must be in [0, {upper_bound:g}], got {value}.")

    def draw(self, seed: int, key: str) -> "DrawnAugmentation | None":
        """Returns one picture's change, the same for equal arguments; None if all is off."""
        if not (self.resize or self.jpeg or self.crop):
            return None
        # All numbers are drawn whatever is switched on, so switching on one change leaves the
        # others' draws as they were.
        rng = np.random.default_rng(stable_hash(f"augment {seed} {key}"))
        chances, cuts, begins = rng.random(2), rng.random(2), rng.random(2)
        method = METHODS[int(rng.integers(len(METHODS)))]
        low, high = JPEG_QUALITIES
        quality = int(rng.integers(low, high + 1))
        return DrawnAugmentation(
            method=method if chances[0] < self.resize else None,
            quality=quality if chances[1] < self.jpeg else None,
            cut=(float(cuts[0]) * self.crop, float(cuts[1]) * self.crop),
            begin=(float(begins[0]), float(begins[1])),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnAugmentation:
    """The changes drawn for one picture.

    Attributes:
      method: one of `METHODS`; None takes the source's own.
      quality: JPEG quality of the re-encoding, at full size; None does not re-encode.
      cut: parts of its width and of its height that are cut off [fractions].
      begin: shares of `cut` that are cut off at the left and at the top [fractions].
    """

    method: str | None
    quality: int | None
    cut: tuple[float, float]
    begin: tuple[float, float]

    def crop_of(self, size: tuple[int, int]) -> Region | None:
        """Returns the crop of a picture of this size (width, height); None if nothing is cut."""
        # 100 x 80, cut (0.2, 0), begin (0.5, 0): 80 x 80 is kept, from (10, 0).
        sides = [max(side - round(side * cut), 1) for side, cut in zip(size, self.cut, strict=True)]
        first = [
            round((side - crop_side) * begin)
            for side, crop_side, begin in zip(size, sides, self.begin, strict=True)
        ]
        if tuple(sides) == size:
            return None
        return first[0], first[1], first[0] + sides[0], first[1] + sides[1]


def augment_image(
    image: Image.Image, spec: ImageSpec, change: DrawnAugmentation
) -> tuple[bytes, Region | None]:
    """Returns the encoded square, and the crop of the picture that it shows; None for all of it.

    Raises:
      BadInput: see `square_image`.
    """
    crop = change.crop_of(image.size)
    # In the order of a picture's life: cropped, stored as JPEG at full size, made smaller.
    if crop is not None:
        image = image.crop(crop)
    if change.quality is not None:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=change.quality)
        image = Image.open(buffer).convert("RGB")
    return encode_image(_resize_augmented_image(image, spec, change.method), spec.encoding), crop


def _resize_augmented_image(image: Image.Image, spec: ImageSpec, method: str | None) -> Image.Image:
    side = (spec.image_px, spec.image_px)
    image = pad_image(image, spec)
    if method is None or image.size == side:
        return square_image(image, spec)
    if method == METHODS[-1]:
        return square_image(image, dataclasses.replace(spec, antialias=False))
    return image.resize(side, Image.Resampling[method.upper()])
