"""Masks ⇄ 16 segmentation tokens: the VQ-VAE of PaliGemma's `<segNNN>` tokens.

Source: big_vision `pp/proj/paligemma/segmentation.py` and `evaluators/proj/paligemma/transfers/
segmentation.py`; Ning et al., arXiv:2301.02229. Our files have the names and PyTorch layouts of the
published `vae-oid.npz`, so that the published file loads, too.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from PIL import Image

from model.masks.config import MaskCodecConfig
from model.npz import read_members
from pipelines.records.codes import NUM_SEG, SEG_PER_MASK, Box

CROP = 64
"""Side of the crop the encoder sees [pixels]."""
_CODEBOOK = "_vq_vae._embedding"
_BATCH = 64

Params = dict[str, jax.Array]


class MaskCodec:
    """A trained codec.

    Its widths are those of the given arrays, so that files of any size load.

    Raises:
      ValueError: if names of `vae-oid.npz` are missing, or arrays do not fit each other. Other
        names, such as a quantizer's running means, are ignored.
    """

    def __init__(self, params: Mapping[str, np.ndarray]) -> None:
        names = set(_codec_parameter_shapes(MaskCodecConfig()))
        missing = sorted(names - set(params))
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ValueError(
                f"mask codec lacks {missing[:5]}{more}; want the names of vae-oid.npz."
            )
        codec_params = {name: params[name] for name in sorted(names)}
        self.params = {
            name: jnp.asarray(value, jnp.float32) for name, value in codec_params.items()
        }
        _check_fit(self.params)

    @classmethod
    def load(cls, path: str | Path) -> "MaskCodec":
        """Returns the codec of an `.npz` file, ours or the published one.

        Raises:
          ValueError: if it is damaged, or not a codec's.
        """
        members = read_members(Path(path))
        try:
            return cls({name: member.read() for name, member in members.items()})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def encode(self, mask: Bool[np.ndarray, "H W"], box: Box) -> list[int]:
        """Returns the 16 token numbers of a mask inside a box."""
        # A mask in numbers, and back by `decode`:
        #
        #     mask (H, W) ─crop─▶ 64 x 64 ─encoder─▶ 4 x 4 features ─nearest of 128─▶ 16 numbers
        #
        # The numbers are written row by row of the 4 x 4 grid, such as <seg012><seg127>…
        return self.encode_crops(crop_mask(mask, box)[None])[0].tolist()

    def encode_crops(self, crops: Float[np.ndarray, "N 64 64"]) -> Int[np.ndarray, "N 16"]:
        """Returns the token numbers of crops in [0, 1]; any N runs in one compiled program."""
        rows = [
            np.asarray(_encode_mask_crops(self.params, part))
            for part in _split_codec_batches(crops)
        ]
        return np.concatenate([*rows, np.zeros((0, SEG_PER_MASK), np.int32)])[: len(crops)]

    def decode(self, ids: Int[np.ndarray, " 16"] | Sequence[int]) -> Float[np.ndarray, "64 64"]:
        """Returns the mask within its box, with values in about [-1, 1]: above 0 is the object."""
        return self.decode_many(np.asarray(ids, np.int32)[None])[0]

    def decode_many(self, ids: Int[np.ndarray, "N 16"]) -> Float[np.ndarray, "N 64 64"]:
        """Returns one mask per row of token numbers."""
        rows = [
            np.asarray(_decode_mask_codes(self.params, part)) for part in _split_codec_batches(ids)
        ]
        return np.concatenate([*rows, np.zeros((0, CROP, CROP), np.float32)])[: len(ids)]


def crop_mask(mask: Bool[np.ndarray, "H W"], box: Box) -> Float[np.ndarray, "64 64"]:
    """Returns the mask inside a box, resized to 64x64 with antialiasing, in [0, 1].

    Args:
      mask: full-resolution mask.
      box: ymin, xmin, ymax, xmax in [0, 1]; an empty one is widened to a pixel.
    """
    height, width = mask.shape
    # A box may round to nothing; one pixel is the least that can be resized.
    y0, x0 = min(round(box[0] * height), height - 1), min(round(box[1] * width), width - 1)
    y1, x1 = max(round(box[2] * height), y0 + 1), max(round(box[3] * width), x0 + 1)
    crop = Image.fromarray(mask[y0:y1, x0:x1].astype(np.uint8) * 255)
    resized = crop.resize((CROP, CROP), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32) / 255


def init_params(config: MaskCodecConfig, seed: int) -> Params:
    """Returns freshly drawn parameters under the published names, in PyTorch's layouts."""
    shapes = _codec_parameter_shapes(config)
    rng = np.random.default_rng(seed)
    params = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            value = np.zeros(shape)
        elif name == _CODEBOOK:
            value = rng.normal(0, 1, shape)
        else:
            # In a transposed convolution of stride 2, an output pixel sums 4 of the 16 weights.
            transposed = name.startswith("decoder.") and shape[-1] == 4
            fan_in = shape[0] * 4 if transposed else np.prod(shape[1:])
            value = rng.normal(0, np.sqrt(2 / fan_in), shape)
        params[name] = jnp.asarray(value, jnp.float32)
    return params


def encode_features(params: Params, crops: Float[Array, "N 64 64"]) -> Float[Array, "N 4 4 E"]:
    """Returns the encoder's grid for crops in [0, 1]."""
    x = (crops * 2 - 1)[..., None]
    for layer in (0, 2, 4, 6):
        x = jax.nn.relu(_codec_convolution(params, f"encoder.{layer}", x, stride=2))
    for layer in (8, 9):
        x = _codec_residual_block(params, f"encoder.{layer}", x)
    return _codec_convolution(params, "encoder.10", x)


def nearest_codes(params: Params, features: Float[Array, "N 4 4 E"]) -> Int[Array, "N 16"]:
    """Returns the number of the nearest codeword (squared distance), row by row of the grid."""
    # Without the features' own squares, which are the same for every codeword.
    flat = features.reshape(features.shape[0], SEG_PER_MASK, -1)
    codes = params[_CODEBOOK]
    distances = jnp.sum(codes**2, axis=-1)[None, None] - 2 * jnp.einsum("nte,ce->ntc", flat, codes)
    return jnp.argmin(distances, axis=-1)


def decode_features(params: Params, grid: Float[Array, "N 4 4 E"]) -> Float[Array, "N 64 64"]:
    """Returns the masks that the decoder makes of grids of codewords."""
    x = jax.nn.relu(_codec_convolution(params, "decoder.0", grid))
    for layer in (2, 3):
        x = _codec_residual_block(params, f"decoder.{layer}", x)
    for layer in (4, 6, 8, 10):
        x = jax.nn.relu(_codec_upsampling(params, f"decoder.{layer}", x))
    return _codec_convolution(params, "decoder.12", x)[..., 0]


def look_up(params: Params, ids: Int[Array, "N 16"]) -> Float[Array, "N 4 4 E"]:
    """Returns the grids of codewords that token numbers stand for."""
    return params[_CODEBOOK][ids].reshape(ids.shape[0], 4, 4, -1)


@jax.jit
def _encode_mask_crops(params: Params, crops: jax.Array) -> jax.Array:
    return nearest_codes(params, encode_features(params, crops))


@jax.jit
def _decode_mask_codes(params: Params, ids: jax.Array) -> jax.Array:
    return decode_features(params, look_up(params, ids))


def _check_fit(params: Params) -> None:
    codes = params[_CODEBOOK].shape
    if len(codes) != 2 or codes[0] != NUM_SEG:
        raise ValueError(f"mask codec: {_CODEBOOK} must be ({NUM_SEG}, width), got {codes}.")
    crops = jax.ShapeDtypeStruct((1, CROP, CROP), jnp.float32)
    try:
        ids = jax.eval_shape(_encode_mask_crops, params, crops)
        decoded = jax.eval_shape(_decode_mask_codes, params, ids)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"mask codec: its arrays must fit each other; {reason}") from None
    if decoded.shape != (1, CROP, CROP):
        raise ValueError(f"mask codec must decode to {CROP} x {CROP}, got {decoded.shape[1:]}.")


def _split_codec_batches(rows: np.ndarray) -> list[np.ndarray]:
    """Splits rows into batches of one size, the last filled up by repeating its first row."""
    parts = [rows[i : i + _BATCH] for i in range(0, len(rows), _BATCH)]
    return [np.concatenate([p, np.repeat(p[:1], _BATCH - len(p), axis=0)]) for p in parts]


def _codec_convolution(params: Params, name: str, x: jax.Array, *, stride: int = 1) -> jax.Array:
    kernel = jnp.transpose(params[f"{name}.weight"], (2, 3, 1, 0))  # OIHW -> HWIO
    y = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + params[f"{name}.bias"][None, None, None]


def _codec_upsampling(params: Params, name: str, x: jax.Array) -> jax.Array:
    """Returns a transposed 4x4 convolution of stride 2, equal to PyTorch's with padding 1."""
    kernel = jnp.transpose(params[f"{name}.weight"], (2, 3, 1, 0))  # IOHW -> HWOI
    y = jax.lax.conv_transpose(
        x,
        kernel,
        (2, 2),
        ((2, 2), (2, 2)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        transpose_kernel=True,
    )
    return y + params[f"{name}.bias"][None, None, None]


def _codec_residual_block(params: Params, name: str, x: jax.Array) -> jax.Array:
    y = jax.nn.relu(_codec_convolution(params, f"{name}.net.0", x))
    y = jax.nn.relu(_codec_convolution(params, f"{name}.net.2", y))
    return x + _codec_convolution(params, f"{name}.net.4", y)


@functools.cache
def _codec_parameter_shapes(config: MaskCodecConfig) -> dict[str, tuple[int, ...]]:
    width, embed = config.width, config.embed_dim
    shapes: dict[str, tuple[int, ...]] = {_CODEBOOK: (NUM_SEG, embed)}

    def layer(name: str, out: int, into: int, side: int, *, transposed: bool = False) -> None:
        channels = (into, out) if transposed else (out, into)
        shapes[f"{name}.weight"] = (*channels, side, side)
        shapes[f"{name}.bias"] = (out,)

    # Names are those of the published torch modules, whose activations have numbers, too, and no
    # parameters: hence 0, 2, 4, 6. Four halvings of a side, and four doublings:
    #
    #     64 x 64 x 1 -> 32 -> 16 -> 8 -> 4 x 4 x width -> 4 x 4 x embed = 16 codes -> … -> 64 x 64
    for number, into in zip((0, 2, 4, 6), (1, width, width, width), strict=True):
        layer(f"encoder.{number}", width, into, 4)
    for block in ("encoder.8", "encoder.9", "decoder.2", "decoder.3"):
        layer(f"{block}.net.0", width, width, 3)
        layer(f"{block}.net.2", width, width, 3)
        layer(f"{block}.net.4", width, width, 1)
    # Between both halves a cell is a codeword: width -> embed, and back.
    layer("encoder.10", embed, width, 1)
    layer("decoder.0", width, embed, 1)
    into = width
    for number, out in zip((4, 6, 8, 10), (width, width // 2, width // 4, width // 8), strict=True):
        layer(f"decoder.{number}", out, into, 4, transposed=True)
        into = out
    layer("decoder.12", 1, into, 1)
    return shapes
