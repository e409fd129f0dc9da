"""Names of CLIP's parameters in Hugging Face. The name `pre_layrnorm` is written so there."""

from model.layouts import HF_TOWER, OIHW, Names, ParameterName, without_big_vision
from model.vision.siglip.names import NAMES as SIGLIP

_EMBEDDINGS = HF_TOWER + "embeddings."
UNUSED = "post_layernorm."
"""Names that features do not pass begin with this, after the tower's prefix."""

NAMES: Names = (
    ParameterName("vision/class_token", _EMBEDDINGS + "class_embedding"),
    ParameterName("vision/patches/kernel", _EMBEDDINGS + "patch_embedding.weight", OIHW),
    ParameterName("vision/positions", _EMBEDDINGS + "position_embedding.weight"),
    ParameterName("vision/first_norm/scale", HF_TOWER + "pre_layrnorm.weight"),
    ParameterName("vision/first_norm/bias", HF_TOWER + "pre_layrnorm.bias"),
    *without_big_vision(SIGLIP, "vision/blocks/"),
)
