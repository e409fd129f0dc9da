"""The facts that all sizes of a family of image towers share."""

import dataclasses
import typing
from collections.abc import Mapping

Activation = typing.Literal["gelu_tanh", "quick_gelu"]
Rgb = tuple[float, float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerFamily:
    """A family of image towers, whose blocks have the same layers. Each is `FAMILY` of its folder.

    Attributes:
      activation: activation of the MLP; quick_gelu is x * sigmoid(1.702 x).
      norm_eps: added to the variance in norms.
      patch_bias: whether the projection of patches has a bias.
      class_token: whether a learned token goes before the patches; it is no feature.
      norm_before: whether a norm comes before the first block.
      norm_after: whether a norm comes after the last block.
      mean: what is taken off red, green and blue, of pixels in [0, 1].
      std: what they are divided by then.
      unused_blocks: last blocks of the published tower that features do not pass.
      sizes: name of a published size -> fields of `VisionConfig`; the first is the family's
        default.
    """

    activation: Activation
    norm_eps: float
    patch_bias: bool
    class_token: bool
    norm_before: bool
    norm_after: bool
    mean: Rgb
    std: Rgb
    unused_blocks: int
    sizes: Mapping[str, Mapping[str, typing.Any]]
