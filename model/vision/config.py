"""The configuration of an image tower, and the fields of a model that its code reads."""

import dataclasses
import typing

from model.check import check_positive
from model.vision.registry import tower_family

PositionInit = typing.Literal["normal", "sincos"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """An image tower; the defaults are SigLIP So400m/14 at 224 px.

    Attributes:
      family: its family, a name in `registry.TOWERS`, which says what layers a block has. In a
        study's config it may be a published size: unstated fields are those of that size, or of
        the family's first.
      image_px: side of the square input [pixels].
      patch_px: side of a square patch [pixels].
      width: channels of a feature.
      depth: transformer blocks that features pass.
      mlp_dim: hidden channels of a block's MLP.
      num_heads: attention heads; must divide `width`.
    """

    family: str = "siglip"
    image_px: int = 224
    patch_px: int = 14
    width: int = 1152
    depth: int = 27
    mlp_dim: int = 4304
    num_heads: int = 16

    def __post_init__(self) -> None:
        tower_family(self.family)
        check_positive(self, "vision")
        if self.image_px % self.patch_px:
            raise ValueError(
                f"vision.image_px must be a multiple of vision.patch_px={self.patch_px}, "
                f"got {self.image_px}."
            )
        if self.width % self.num_heads:
            raise ValueError(
                f"vision.num_heads must divide vision.width={self.width}, got {self.num_heads}."
            )

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_px // self.patch_px

    @property
    def num_patches(self) -> int:
        """Features per image."""
        return self.grid**2

    @property
    def num_tokens(self) -> int:
        """Tokens per image in the blocks: the patches, and the class token of some families."""
        return self.num_patches + tower_family(self.family).class_token


class TowerConfig(typing.Protocol):
    """The fields of a model that the tower reads; `ModelConfig` has them.

    The tower cannot import `ModelConfig`, whose module imports this one.
    """

    @property
    def vision(self) -> VisionConfig: ...
    @property
    def position_init(self) -> PositionInit: ...
    @property
    def remat(self) -> str: ...
    @property
    def scan_layers(self) -> bool: ...
