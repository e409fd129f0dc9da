"""Names of SigLIP 2's parameters in Hugging Face: SigLIP's, with patches in one of two layouts."""

import numpy as np

from model.layouts import OIHW, Layout, Names, without_big_vision
from model.vision.siglip.names import NAMES as SIGLIP
from model.vision.siglip.names import UNUSED as UNUSED


def _read_patches(kernel: np.ndarray) -> np.ndarray:
    """Returns a kernel as (rows, columns, 3, width), from a convolution's or a matrix.

    A checkpoint of one resolution has a convolution (width, 3, rows, columns); one of any aspect
    ratio has a matrix (width, rows * columns * 3).
    """
    if kernel.ndim == 4:
        return OIHW.read(kernel)
    side = round((kernel.shape[1] / 3) ** 0.5)
    return kernel.T.reshape(side, side, 3, -1)


_PATCHES = Layout(_read_patches, OIHW.write)

NAMES: Names = tuple(
    name._replace(hugging_face_layout=_PATCHES) if name.ours == "vision/patches/kernel" else name
    for name in without_big_vision(SIGLIP, "vision/")
)
