"""The image tower: pixels in, one feature per patch out; blocks as its family has them.

Source: big_vision `models/vit.py` with `pool_type="none"`, as PaliGemma uses it; for CLIP,
transformers 5.24 `models/clip`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt8

from model.lowering import policy
from model.sharding import gather_weight
from model.vision.config import TowerConfig, VisionConfig
from model.vision.layers import (
    Attention,
    LayerNorm,
    Mlp,
    add_row,
    repeat_rows,
    sincos_positions,
)
from model.vision.registry import tower_family

_HALF = (0.5, 0.5, 0.5)
"""Mean and spread that bring pixels of [0, 1] to [-1, 1], where they are already."""


class EncoderBlock(nnx.Module):
    """One pre-norm transformer block."""

    def __init__(self, cfg: VisionConfig, *, rngs: nnx.Rngs) -> None:
        family = tower_family(cfg.family)
        self.attn_norm = LayerNorm(cfg.width, eps=family.norm_eps)
        self.attn = Attention(cfg.width, cfg.num_heads, rngs=rngs)
        self.mlp_norm = LayerNorm(cfg.width, eps=family.norm_eps)
        self.mlp = Mlp(cfg.width, cfg.mlp_dim, rngs=rngs, activation=family.activation)

    def __call__(self, x: Float[Array, "B P C"]) -> Float[Array, "B P C"]:
        """Returns the features after attention and MLP."""
        y = self.attn_norm(x)
        x = x + self.attn(y, y, y)
        return x + self.mlp(self.mlp_norm(x))


class Patches(nnx.Module):
    """Cuts an image into patches and projects each to `width` channels."""

    def __init__(self, cfg: VisionConfig, *, rngs: nnx.Rngs) -> None:
        self.patch_px = cfg.patch_px
        shape = (cfg.patch_px, cfg.patch_px, 3, cfg.width)
        init = nnx.initializers.lecun_normal(in_axis=(0, 1, 2), out_axis=3)
        self.kernel = nnx.Param(init(rngs.params(), shape))
        has_bias = tower_family(cfg.family).patch_bias
        self.bias = nnx.Param(jnp.zeros((cfg.width,))) if has_bias else None

    def __call__(self, images: Float[Array, "B H W 3"]) -> Float[Array, "B P C"]:
        """Returns one embedding per patch, row by row."""
        batch, height, width, _ = images.shape
        px = self.patch_px
        rows, columns = height // px, width // px
        # (B, rows, px, columns, px, 3) -> (B, rows, columns, px, px, 3): a patch's pixels side by
        # side. A convolution with a stride of its own size, written as one matrix product.
        x = images.reshape(batch, rows, px, columns, px, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, rows * columns, px * px * 3)
        kernel = self.kernel[...].astype(x.dtype).reshape(px * px * 3, -1)
        return x @ kernel if self.bias is None else add_row(x @ kernel, self.bias[...])


class Tower(nnx.Module):
    """The tower: patches, learned positions, blocks; some have a class token, and norms around."""

    def __init__(self, cfg: TowerConfig, *, rngs: nnx.Rngs) -> None:
        vision, family = cfg.vision, tower_family(cfg.vision.family)

        # All blocks at once, stacked on axis 0 for `scan`: an MLP's kernel is (27, 1152, 4304).
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(layer_rngs: nnx.Rngs) -> EncoderBlock:
            return EncoderBlock(vision, rngs=layer_rngs)

        self.patches = Patches(vision, rngs=rngs)
        std = vision.width**-0.5
        shape = (vision.num_tokens, vision.width)
        random_positions = std * jax.random.normal(rngs.params(), shape)
        # The normal draw is made in either case, so that later parameters get the same keys.
        fixed = cfg.position_init == "sincos"
        # The class token's row is the first.
        num_classes = vision.num_tokens - vision.num_patches
        self.positions = nnx.Param(
            jnp.pad(sincos_positions(vision.grid, vision.width), ((num_classes, 0), (0, 0)))
            if fixed
            else random_positions
        )
        self.blocks = stacked(rngs.split(vision.depth))
        self.norm = LayerNorm(vision.width, eps=family.norm_eps) if family.norm_after else None
        self.first_norm = (
            LayerNorm(vision.width, eps=family.norm_eps) if family.norm_before else None
        )
        token = std * jax.random.normal(rngs.params(), shape[1:]) if family.class_token else None
        self.class_token = None if token is None else nnx.Param(token)
        self.mean, self.std = family.mean, family.std
        self.remat, self.unroll = cfg.remat, vision.depth if not cfg.scan_layers else 1

    def __call__(
        self, images: Float[Array, "B H W 3"] | UInt8[Array, "B H W 3"], *, dtype: DTypeLike
    ) -> Float[Array, "B P C"]:
        """Returns the features of each image after the last norm.

        Args:
          images: pixels in [-1, 1], or bytes, which are scaled to it.
          dtype: dtype of the activations.
        """
        if images.dtype == jnp.uint8:
            # Bytes 0 … 255 become -1 … 1.
            images = images.astype(jnp.float32) / 127.5 - 1.0
        x = self.patches(self._standardize_tower_pixels(images).astype(dtype))
        if self.class_token is not None:
            first = repeat_rows(self.class_token[...], (len(x), 1, x.shape[-1]), dtype)
            x = jnp.concatenate([first, x], axis=1)
        x = add_row(x, self.positions[...])
        x = x if self.first_norm is None else self.first_norm(x)

        def body(x: Array, block: EncoderBlock) -> tuple[Array, None]:
            return jax.tree.map(lambda part: gather_weight(part, dtype), block)(x), None

        # Only where something is recomputed; otherwise every block's arrays stay in memory.
        if self.remat != "none":
            # The tower's matrix products are cheap next to its attention, so only attention's
            # outputs are kept.
            body = jax.checkpoint(
                body,
                policy=policy(self.remat),
                prevent_cse=self.unroll > 1,  # See `Decoder._run_decoder_blocks`.
            )
        x, _ = jax.lax.scan(body, x, self.blocks, unroll=self.unroll)
        # The class token is no feature.
        x = x if self.class_token is None else x[:, 1:]
        return x if self.norm is None else self.norm(x)

    def _standardize_tower_pixels(self, images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
        """Returns pixels in [-1, 1] with the family's mean and spread of each color."""
        if (self.mean, self.std) == (_HALF, _HALF):
            return images
        mean, std = (np.array(x, np.float32).reshape(1, 1, 1, 3) for x in (self.mean, self.std))
        return images.astype(jnp.float32) * (0.5 / std) + (0.5 - mean) / std
