"""A codec of masks: given, or trained on the masks of the study's datasets.

Files:
  mask_codec.npz: parameters and codebook
  codec.json: how well it says a mask
"""

import json
from collections.abc import Iterator

from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from model import files
from model.masks.config import MaskCodecConfig


def make(work: StepContext) -> Iterator[Progress]:
    """Trains or adopts the codec of a `MaskCodecConfig`, and measures it."""
    from model.masks.training import adopt_codec, collect_crops, fit_codec

    data = [place for role, place in sorted(work.places.items()) if role != "given"]
    crops = collect_crops(data)
    if work.config.path is not None:
        progress = adopt_codec(crops, work.config, str(work.out))
    else:
        progress = fit_codec(crops, work.config, str(work.out), work.seed or 0)
    yield from progress
    work.counts.update(json.loads((work.out / files.CODEC_REPORT).read_text()))


MASK_CODEC = Kind(
    name="mask_codec",
    make=make,
    spec=MaskCodecConfig,
    libraries=("pillow",),
    holds="files",
    sample="with its masks in the mask codec",
)
