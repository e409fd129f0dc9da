"""What transformers' `config.json` says of a SigLIP 2 tower of any aspect ratio.

Those of one resolution say that they are SigLIP, whose layers they have.
"""

from model.vision.siglip.hugging_face import read as read

MODEL_TYPES = ("siglip2_vision_model",)
