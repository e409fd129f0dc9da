"""The config of a rendered corpus: numbers and sizes of each kind, and the seed."""

import dataclasses
import zlib

import numpy as np

CORPORA = ("web", "charts", "scenes", "videos")
_MIN_ITEMS = 10
_MIN_SIDE = 96
_MAX_SHARD = 9000  # leaves room for defects below the four digits of a key


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Config of drawn pictures and clips in the published layouts of real corpora.

    A set whose count is 0 is left out; otherwise it has at least ten items, so that no split is
    empty.

    Attributes:
      num_web: image-text pairs of the web set.
      num_charts: charts of the ChartQA folder, four questions each.
      num_scenes: pictures of the RefCOCO folder, one to three referred objects each.
      num_videos: clips of the MSVD-QA folder.
      num_defects: additional broken inputs, in turn a truncated JPEG in the web set, an empty clip
        and a chart question without its picture.
      image_width: width of web images and scenes; a multiple of 6 [pixels].
      image_height: height of web images and scenes; a multiple of 6 [pixels].
      video_width: width of the clips; even [pixels].
      video_height: height of the clips; even [pixels].
      video_frames: typical length of a clip; lengths vary by a quarter [frames].
      video_fps: frame rate of the clips [1/s].
      shard_size: image-text pairs per tar of the web set.
      seed: seed of all random choices; the corpus is a pure function of this config.
    """

    num_web: int = 900
    num_charts: int = 300
    num_scenes: int = 300
    num_videos: int = 80
    num_defects: int = 3
    image_width: int = 288
    image_height: int = 240
    video_width: int = 128
    video_height: int = 96
    video_frames: int = 64
    video_fps: int = 25
    shard_size: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        # None at all, or enough that every split gets one.
        for corpus in CORPORA:
            count = getattr(self, f"num_{corpus}")
            if count != 0 and count < _MIN_ITEMS:
                raise ValueError(
                    f"num_{corpus} must be 0 or at least {_MIN_ITEMS}, got {count}; "
                    "fewer would leave a split empty."
                )
        for name, multiple in (
            ("image_width", 6),
            ("image_height", 6),
            ("video_width", 2),
            ("video_height", 2),
        ):
            # H.264 stores one colour for each 2 x 2 pixels (4:2:0), so the sides of a clip are
            # even.
            side = getattr(self, name)
            floor = _MIN_SIDE if multiple == 6 else _MIN_SIDE // 2
            if side < floor or side % multiple:
                raise ValueError(
                    f"{name} must be a multiple of {multiple} of at least {floor}, got {side}; "
                    f"take {max(floor, side // multiple * multiple)}."
                )
        for name, floor in (
            ("video_frames", 8),
            ("video_fps", 1),
            ("shard_size", 1),
            ("num_defects", 0),
            ("seed", 0),
        ):
            if getattr(self, name) < floor:
                raise ValueError(f"{name} must be at least {floor}, got {getattr(self, name)}.")
        # A key is five digits of the shard and four of the picture; defects come on top.
        if self.shard_size > _MAX_SHARD:
            raise ValueError(
                f"shard_size must be at most {_MAX_SHARD}, got {self.shard_size}; "
                "keys have four digits per shard."
            )

    @property
    def num_items(self) -> int:
        """Healthy items of all corpora together."""
        return sum(getattr(self, f"num_{corpus}") for corpus in CORPORA)

    def count_defects(self, kind: int) -> int:
        """Returns the number of defects of one kind (0 image, 1 clip, 2 question)."""
        return len(range(kind, self.num_defects, 3))


def rng_for(seed: int, kind: str, index: int) -> np.random.Generator:
    """Returns the random generator of one item, which depends only on the arguments."""
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), index])


def split_items(num_items: int, fractions: dict[str, float]) -> dict[str, range]:
    """Returns consecutive ranges of item numbers, one per split; none is empty for ten or more.

    Args:
      num_items: number of items.
      fractions: share of each split; the first split gets the rest, whatever its share.
    """
    names = list(fractions)
    # 80 items, shares 0.65, 0.1, 0.25: val 8, test 20, and train the remaining 52.
    sizes = {name: max(1, round(num_items * fractions[name])) for name in names[1:]}
    sizes = {names[0]: num_items - sum(sizes.values()), **sizes}
    ranges, start = {}, 0
    for name in names:
        ranges[name] = range(start, start + sizes[name])
        start += sizes[name]
    return ranges
