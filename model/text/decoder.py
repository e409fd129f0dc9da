"""The decoder: blocks of attention and a gated MLP, as its family has them.

Source: big_vision `models/ppp/gemma.py`, google-deepmind/gemma `gm/nn/_gemma.py`, transformers 5.24
`models/gemma3` and `models/llama`.
"""

import functools
import typing
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int32

from model.lowering import keep_for_backward, materialize, policy
from model.sharding import gather_weight
from model.text.attention import Keys, Rotation, attend, rotate, rotation, softcap
from model.text.config import DecoderConfig, TextConfig
from model.text.dropout import Drop, Dropout, no_dropout
from model.text.family import Activation
from model.text.packing import Packing
from model.text.registry import decoder_family
from model.vision.layers import broadcast_row


class Adapter(typing.NamedTuple):
    """A low-rank change of a matrix W: the layer computes x W + (x A) B."""

    a: Float[Array, "*N D r"]
    b: Float[Array, "*N r F"]


KeyValue = tuple[Float[Array, "B S K h"], Float[Array, "B S K h"]]
_kernel = nnx.initializers.variance_scaling(1.0, "fan_in", "normal")


class RmsNorm(nnx.Module):
    """Divides the last axis by its root mean square, in float32; some store the scale minus 1."""

    def __init__(self, width: int, cfg: TextConfig) -> None:
        self.offset, self.eps = decoder_family(cfg.family).norm_offset, cfg.norm_eps
        self.scale = nnx.Param(jnp.full((width,), 1.0 - self.offset))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Returns `x` with unit mean square, scaled."""
        full = x.astype(jnp.float32)
        mean = jnp.mean(jnp.square(full), axis=-1, keepdims=True)
        normal = full * jax.lax.rsqrt(mean + self.eps)
        return (normal * (self.offset + broadcast_row(self.scale[...], normal))).astype(x.dtype)


class DecoderBlock(nnx.Module):
    """One transformer block; its family says which norms it has, and the MLP's activation."""

    def __init__(self, cfg: TextConfig, *, rngs: nnx.Rngs) -> None:
        family = decoder_family(cfg.family)
        self.head_dim = cfg.head_dim
        self.activation: Activation = family.activation
        self.query_scale = (cfg.query_scale or cfg.head_dim) ** -0.5
        q_width, kv_width = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim

        def matrix(fan_in: int, fan_out: int) -> nnx.Param:
            return nnx.Param(_kernel(rngs.params(), (fan_in, fan_out)))

        # In the 2B decoder: 8 query heads and 4 key heads of 256, so 2304 -> 2048 and 2304 -> 1024.
        # A block is two branches, each between two norms, of which some families have the first:
        #
        #     x ─┬─ norm ─ attention ─ norm ─ + ─┬─ norm ─ gated MLP ─ norm ─ + ─▶
        #        └────────────────────────────┘  └────────────────────────────┘
        self.pre_attn_norm = RmsNorm(cfg.width, cfg)
        self.query = matrix(cfg.width, q_width)
        self.key = matrix(cfg.width, kv_width)
        self.value = matrix(cfg.width, kv_width)
        self.out = matrix(q_width, cfg.width)
        norms_after = family.norms_after
        self.post_attn_norm = RmsNorm(cfg.width, cfg) if norms_after else None
        self.pre_mlp_norm = RmsNorm(cfg.width, cfg)
        self.gate = matrix(cfg.width, cfg.mlp_dim)
        self.up = matrix(cfg.width, cfg.mlp_dim)
        self.down = matrix(cfg.mlp_dim, cfg.width)
        self.post_mlp_norm = RmsNorm(cfg.width, cfg) if norms_after else None
        self.query_norm = RmsNorm(cfg.head_dim, cfg) if family.head_norms else None
        self.key_norm = RmsNorm(cfg.head_dim, cfg) if family.head_norms else None

    def __call__(
        self,
        x: Float[Array, "B L D"],
        turn: Rotation,
        mask: Bool[Array, "B N S"],
        *,
        cap: float,
        past: tuple[Keys, ...] = (),
        drop: Drop = no_dropout,
        adapters: Mapping[str, Adapter] | None = None,
        packing: Packing | None = None,
    ) -> tuple[Float[Array, "B N D"], KeyValue]:
        """Returns the last N rows after the block, and the keys and values of all L.

        Args:
          x: the residual stream; every row gives a key and a value.
          turn: rotations of the L rows.
          mask: which of the L rows each of the last N sees.
          cap: soft-cap of attention logits.
          past: cached parts, which are attended to as well.
          drop: dropout, after attention's norm and before the MLP's, as in big_vision.
          adapters: matrix -> its adapter; None has none.
          packing: where tokens are, if `x` and `turn` are packed; the mask and the keys and values
            that are returned are padded.
        """
        adapter = (adapters or {}).get
        # Every row gives a key and a value, but only the mask's rows are computed further: in the
        # last block those are the text's, as no output reads the soft tokens after it.
        num_rows = mask.shape[1] if packing is None else packing.count(mask.shape[1])
        y = self.pre_attn_norm(x)
        key = self._project_decoder_heads(y, self.key, adapter("key"), turn, self.key_norm)
        value = self._project_decoder_heads(y, self.value, adapter("value"))
        x, y = x[:, -num_rows:], y[:, -num_rows:]
        last = Rotation(turn.sin[:, -num_rows:], turn.cos[:, -num_rows:])
        query = self._project_decoder_heads(y, self.query, adapter("query"), last, self.query_norm)
        if packing is not None:
            key, value, query = map(packing.padded_tokens, (key, value, query))
        read = attend(query, (*past, Keys(key, value, mask)), scale=self.query_scale, cap=cap)
        read = read if packing is None else packing.tokens(read)
        read = keep_for_backward(_product_with_adapter(read, self.out, adapter("out")))
        x = x + drop(_apply_decoder_norm(read, self.post_attn_norm), 0)
        y = drop(self._mlp(self.pre_mlp_norm(x), *map(adapter, ("gate", "up", "down"))), 1)
        return x + _apply_decoder_norm(y, self.post_mlp_norm), (key, value)

    def _project_decoder_heads(
        self,
        x: Array,
        kernel: nnx.Param,
        adapter: Adapter | None = None,
        turn: Rotation | None = None,
        norm: RmsNorm | None = None,
    ) -> Float[Array, "B L H h"]:
        matrix = kernel[...].astype(x.dtype).reshape(x.shape[-1], -1, self.head_dim)
        heads = jnp.einsum("bld,dhk->blhk", x, matrix)
        if adapter is not None:
            flat = _add_adapter_product(heads.reshape(*x.shape[:2], -1), x, adapter)
            heads = flat.reshape(heads.shape)
        heads = _apply_decoder_norm(heads, norm)
        heads = heads if turn is None else rotate(heads, turn)
        # Attention reads one head after the other; saved in that layout, nothing is copied later.
        return jnp.swapaxes(keep_for_backward(jnp.swapaxes(heads, 1, 2)), 1, 2)

    def _mlp(
        self,
        x: Float[Array, "B L D"],
        gate_adapter: Adapter | None,
        up_adapter: Adapter | None,
        down_adapter: Adapter | None,
    ) -> Float[Array, "B L D"]:
        gate = keep_for_backward(_product_with_adapter(x, self.gate, gate_adapter))
        up = keep_for_backward(_product_with_adapter(x, self.up, up_adapter))
        down = self.down[...].astype(x.dtype)
        product: Array = _gated_product(gate, up, down, self.activation)
        if down_adapter is not None:
            product = _add_adapter_product(
                product, _gated_activation(gate, up, self.activation), down_adapter
            )
        return keep_for_backward(product)


class Rows(typing.NamedTuple):
    """New rows of the residual stream, each a token.

    Attributes:
      x: embedded tokens, packed where `packing` says how.
      positions: position of each row.
      mask: which of the rows each row sees.
      packing: where tokens are in `x`; None where they are where positions and mask have them.
    """

    x: Float[Array, "B L D"]
    positions: Int32[Array, "B L"]
    mask: Bool[Array, "B L L"]
    packing: Packing | None = None


class KvCache(typing.NamedTuple):
    """Cached keys and values of every layer, and which of them the new rows may see."""

    keys: Float[Array, "N B S K h"]
    values: Float[Array, "N B S K h"]
    mask: Bool[Array, "B L S"]
    positions: Int32[Array, "B S"]


class Decoder(nnx.Module):
    """Embedding, blocks stacked on axis 0, final norm, and the output matrix."""

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        text = cfg.text

        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(layer_rngs: nnx.Rngs) -> DecoderBlock:
            return DecoderBlock(text, rngs=layer_rngs)

        self.model = cfg
        # Rows of about unit length, which a family may multiply by the root of the width.
        init = nnx.initializers.normal(text.width**-0.5)
        self.embedding = nnx.Param(init(rngs.params(), (text.vocab_size, text.width)))
        self.blocks = stacked(rngs.split(text.depth))
        self.final_norm = RmsNorm(text.width, text)
        shape = (text.vocab_size, text.width)
        self.head = None if text.tied else nnx.Param(init(rngs.params(), shape))

    @property
    def output_table(self) -> Float[Array, "V D"]:
        """The output matrix, a row for each token: the embedding, unless it has its own."""
        return (self.embedding if self.head is None else self.head)[...]

    def embed(self, tokens: Int32[Array, "B T"], *, dtype: DTypeLike) -> Float[Array, "B T D"]:
        """Returns token embeddings, multiplied by the root of the width where the family does."""
        text = self.model.text
        rows = jnp.take(self.embedding[...], tokens, axis=0, mode="clip").astype(dtype)
        if not decoder_family(text.family).scaled_embedding:
            return rows
        return rows * np.sqrt(text.width).astype(dtype)

    def logits(self, x: Float[Array, "B N D"]) -> Float[Array, "B N V"]:
        """Returns float32 scores of the vocabulary, capped by `final_softcap`."""
        table = self.output_table.astype(x.dtype)
        raw = jnp.einsum("bnd,vd->bnv", x, table, preferred_element_type=jnp.float32)
        return softcap(raw, self.model.final_softcap)

    def __call__(
        self,
        rows: Rows,
        *,
        num_rows: int | None = None,
        dropout: Dropout | None = None,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> Float[Array, "B N D"]:
        """Returns the last `num_rows` rows after the final norm; all of them by default.

        With unrolled layers the last block computes only those rows. Training may drop elements,
        and may add adapters to matrices.
        """
        out, _ = self.run(
            rows, num_rows=num_rows, dropout=dropout, adapters=adapters, keep_cache=False
        )
        return out

    def run(
        self,
        rows: Rows,
        past: tuple[KvCache, ...] = (),
        *,
        num_rows: int | None = None,
        dropout: Dropout | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        keep_cache: bool = True,
    ) -> tuple[Float[Array, "B N D"], KeyValue | None]:
        """Returns the last rows, and every layer's keys and values of all rows (if kept).

        Args:
          rows: the rows to run.
          past: parts read before, whose keys and values the rows see too.
          num_rows: number of last rows to return, N; None is all of them.
          dropout: dropout in training; None drops nothing.
          adapters: matrix of a block -> its adapters in all layers; None has none.
          keep_cache: whether keys and values are returned.
        """
        text = self.model.text
        x, positions, mask, packing = rows
        num_rows = num_rows or mask.shape[1]
        # A position of each token of `x`, which may be packed; what attention reads is padded.
        places = positions if packing is None else packing.tokens(positions)
        turn = rotation(places, text.head_dim, text.rope_base, text.rope_scaling)
        base = text.local_rope_base
        local_turn = rotation(places, text.head_dim, base) if base else turn
        # One mask for each part that rows attend to: the new rows themselves, then each cached
        # part.
        masks = [(mask, self._sliding_window_mask(positions, positions, mask))]
        masks += [(p.mask, self._sliding_window_mask(positions, p.positions)) for p in past]

        # One body for all layers, so that they can be scanned: what differs between them (weights,
        # reach, cache, number) is scanned over, stacked on axis 0.
        drop_in = dropout.in_layers(places, packing) if dropout else lambda number: no_dropout

        def body(x: Array, layer: tuple, rows: int) -> tuple[Array, KeyValue | None]:
            block, is_local, caches, number, factors = layer
            block, factors = jax.tree.map(
                lambda part: gather_weight(part, x.dtype), (block, factors)
            )
            layer_mask, *cache_masks = [
                _layer_attention_mask(m[:, -rows:], near, is_local) for m, near in masks
            ]
            parts = tuple(Keys(k, v, m) for (k, v), m in zip(caches, cache_masks, strict=True))
            cap, drop = self.model.attn_softcap, drop_in(number)
            angle = _rotation_of_layer(local_turn, turn, is_local)
            x, kv = block(
                x,
                angle,
                layer_mask,
                cap=cap,
                past=parts,
                drop=drop,
                adapters=factors,
                packing=packing,
            )
            return x, kv if keep_cache else None

        # Gemma 2's layers 0, 2, 4, … see the last `sliding_window` positions; without a window all
        # layers see everything.
        locality = jnp.asarray(text.local_layers)
        layer_indices = jnp.arange(text.depth) if dropout else None
        caches = tuple((p.keys, p.values) for p in past)
        layers = (self.blocks, locality, caches, layer_indices, adapters)
        x, keys_values = self._run_decoder_blocks(body, x, layers, num_rows, mask.shape[1])
        count = num_rows if packing is None else packing.count(num_rows)
        return self.final_norm(x[:, -count:]), keys_values

    def _run_decoder_blocks(
        self, body: typing.Callable, x: Array, layers: tuple, rows: int, length: int
    ) -> tuple:
        depth = self.model.text.depth
        if self.model.remat != "none":
            # Unrolled, layers need barriers, or the compiler would find what the backward pass
            # computes again equal to what the forward pass has, and keep that. In a loop it cannot,
            # and a barrier makes it copy all that is kept before it is read.
            body = jax.checkpoint(
                body,
                policy=policy(self.model.remat),
                prevent_cse=not self.model.scan_layers,
                static_argnums=2,
            )
        if self.model.scan_layers:
            return jax.lax.scan(lambda x, layer: body(x, layer, length), x, layers)
        # Unrolled, the last block knows that it is the last: its keys and values come from all
        # rows, but only those that are read afterwards go through attention's output and the MLP.
        outputs = []
        for i in range(depth):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], layers)
            x, kv = body(x, layer, rows if i == depth - 1 else length)
            outputs.append(kv)
        return x, None if outputs[0] is None else jax.tree.map(lambda *a: jnp.stack(a), *outputs)

    def _sliding_window_mask(
        self,
        queries: Int32[Array, "B L"],
        keys: Int32[Array, "B S"],
        mask: Bool[Array, "B L L"] | None = None,
    ) -> Bool[Array, "B L S"] | None:
        """Returns which keys a local layer sees; `mask` is that of rows among themselves."""
        text = self.model.text
        if not text.sliding_window:
            return None
        # A window of 2 over a prefix p and what follows, f; rows are queries. Gemma 3 has the band,
        # Gemma 2 the whole square of the prefix, too, whose rows see each other:
        #
        #      p p p f f       p p p f f
        #    p × × . . .     p × × × . .
        #    p × × × . .     p × × × . .
        #    p . × × . .     p × × × . .
        #    f . . × × .     f . . × × .
        #    f . . . × ×     f . . . × ×
        near = jnp.abs(queries[:, :, None] - keys[:, None, :]) < text.sliding_window
        if mask is not None and decoder_family(text.family).whole_prefix:
            near |= mask & jnp.swapaxes(mask, 1, 2)
        return near


def _layer_attention_mask(
    mask: Bool[Array, "B L S"], near: Bool[Array, "B L S"] | None, is_local: Array
) -> Array:
    return mask if near is None else mask & (near[:, -mask.shape[1] :] | ~is_local)


def _rotation_of_layer(local: Rotation, full: Rotation, is_local: Array) -> Rotation:
    """Returns the rotation of a layer; nothing is chosen where all layers have the same."""
    if local is full:
        return full
    return jax.tree.map(lambda a, b: jnp.where(is_local, a, b), local, full)


def _apply_decoder_norm(x: Array, norm: RmsNorm | None) -> Array:
    return x if norm is None else norm(x)


def _product_with_adapter(
    x: Float[Array, "B L D"], kernel: nnx.Param, adapter: Adapter | None
) -> Float[Array, "B L F"]:
    product = x @ kernel[...].astype(x.dtype)
    return product if adapter is None else _add_adapter_product(product, x, adapter)


def _add_adapter_product(
    product: Float[Array, "B L F"], x: Float[Array, "B L D"], adapter: Adapter
) -> Float[Array, "B L F"]:
    """Returns the product of rows and a matrix, with the adapter's part added in float32."""
    low_rank = (x @ adapter.a.astype(x.dtype)) @ adapter.b.astype(x.dtype)
    return (product.astype(jnp.float32) + low_rank.astype(jnp.float32)).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gated_product(
    gate: Float[Array, "B L F"],
    up: Float[Array, "B L F"],
    kernel: Float[Array, "F D"],
    activation: Activation,
) -> Float[Array, "B L D"]:
    return _gated_activation(gate, up, activation) @ kernel


def _gated_activation(gate: Array, up: Array, activation: Activation) -> Array:
    if activation == "silu":
        return jax.nn.silu(gate) * up
    return jax.nn.gelu(gate, approximate=True) * up


def _gated_product_backward(
    activation: Activation, saved: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    """Returns the usual gradients, with each wide array computed just once; see `materialize`."""
    gate, up, kernel = saved
    gradient = materialize(gradient)
    hidden, pull = jax.vjp(lambda *both: _gated_activation(both[0], both[1], activation), gate, up)
    d_gate, d_up = pull(materialize(jnp.einsum("bld,fd->blf", gradient, kernel)))
    hidden, d_gate, d_up = materialize((hidden, d_gate, d_up))
    return d_gate, d_up, jnp.einsum("blf,bld->fd", hidden, gradient)


_gated_product.defvjp(
    lambda gate, *rest: (_gated_product(gate, *rest), (gate, *rest[:2])), _gated_product_backward
)
