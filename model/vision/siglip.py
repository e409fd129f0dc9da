"""SigLIP's image tower: pixels in, one feature per patch out.

Source: big_vision `models/vit.py` with `pool_type="none"`, as PaliGemma uses it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt8

from model.lowering import policy
from model.sharding import gather_weight
from model.vision.config import TowerConfig, VisionConfig
from model.vision.layers import Attention, LayerNorm, Mlp, add_row, sincos_positions


class EncoderBlock(nnx.Module):
    """One pre-norm transformer block."""

    def __init__(self, cfg: VisionConfig, *, rngs: nnx.Rngs) -> None:
        self.attn_norm = LayerNorm(cfg.width)
        self.attn = Attention(cfg.width, cfg.num_heads, rngs=rngs)
        self.mlp_norm = LayerNorm(cfg.width)
        self.mlp = Mlp(cfg.width, cfg.mlp_dim, rngs=rngs)

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
        self.bias = nnx.Param(jnp.zeros((cfg.width,)))

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
        return add_row(x @ kernel, self.bias[...])


class Siglip(nnx.Module):
    """The tower: patches, learned positions, blocks, a final norm."""

    def __init__(self, cfg: TowerConfig, *, rngs: nnx.Rngs) -> None:
        vision = cfg.vision

        # All blocks at once, stacked on axis 0 for `scan`: an MLP's kernel is (27, 1152, 4304).
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(layer_rngs: nnx.Rngs) -> EncoderBlock:
            return EncoderBlock(vision, rngs=layer_rngs)

        self.patches = Patches(vision, rngs=rngs)
        std = vision.width**-0.5
        shape = (vision.num_patches, vision.width)
        random_positions = std * jax.random.normal(rngs.params(), shape)
        # The normal draw is made in either case, so that later parameters get the same keys.
        fixed = cfg.position_init == "sincos"
        self.positions = nnx.Param(
            sincos_positions(vision.grid, vision.width) if fixed else random_positions
        )
        self.blocks = stacked(rngs.split(vision.depth))
        self.norm = LayerNorm(vision.width)
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
        x = self.patches(images.astype(dtype))
        x = add_row(x, self.positions[...])

        def body(x: Array, block: EncoderBlock) -> tuple[Array, None]:
            return jax.tree.map(lambda part: gather_weight(part, dtype), block)(x), None

        # Only where something is recomputed; otherwise every block's arrays stay in memory.
        if self.remat != "none":
            # The tower's matrix products are cheap next to its attention, so only attention's
            # outputs are kept.
            body = jax.checkpoint(
                body,
                policy=policy(self.remat),
                prevent_cse=self.unroll > 1,  # See `Gemma._scan`.
            )
        x, _ = jax.lax.scan(body, x, self.blocks, unroll=self.unroll)
        return self.norm(x)
