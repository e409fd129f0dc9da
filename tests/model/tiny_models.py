"""The smallest models with the real routing: 16 x 16 patches of 2 x 2 pixels, unequal widths."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from model import vlm
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.connector.registry import CONNECTORS, KINDS
from model.text.config import TextConfig
from model.vision.config import VisionConfig

VISION = VisionConfig(image_px=32, patch_px=2, width=12, depth=2, mlp_dim=14, num_heads=2)
TEXT = TextConfig(
    vocab_size=37, width=20, depth=2, mlp_dim=22, num_heads=4, num_kv_heads=2, head_dim=6
)

POOLED_KINDS = tuple(kind for kind in KINDS if CONNECTORS[kind].routing.pooled)
"""Connectors without queries."""
ELASTIC_KINDS = tuple(kind for kind in KINDS if kind not in POOLED_KINDS)
"""Connectors with queries, whose programs serve several budgets."""


def tiny_config(kind: str, **changes: typing.Any) -> ModelConfig:
    """Returns a configuration whose connector is `kind`; `changes` are fields of the model."""
    connector = ConnectorConfig(kind=typing.cast(typing.Any, kind), num_heads=3, query_std=1.0)
    settings = {"remat": "none", "scan_layers": False, "loss_chunk": 4, "projector_init": "xavier"}
    base = ModelConfig(vision=VISION, text=TEXT, connector=connector, **settings)
    return dataclasses.replace(base, **changes)


@functools.cache
def batch(
    num_images: int = 2, lengths: tuple[int, int] = (7, 10), px: int = 32, seed: int = 5
) -> vlm.Example:
    """Returns two examples of several images; ragged texts, whose suffix is the last 4 tokens.

    The same for the same arguments; texts have at most 11 tokens.
    """
    rng = np.random.default_rng(seed)
    images = rng.uniform(-1, 1, (2, num_images, px, px, 3)).astype(np.float32)
    ends, slots = np.array(lengths)[:, None], np.arange(11)[None]
    text = np.where(slots < ends, rng.integers(3, 37, (2, 11)), 0).astype(np.int32)
    ar = (slots >= ends - 4).astype(np.int32)
    loss = ar * (slots < ends).astype(np.int32)
    return vlm.Example(images, text, ar, loss)


init_params = functools.cache(vlm.init_params)
token_losses = jax.jit(vlm.token_losses, static_argnums=0)
text_logits = jax.jit(vlm.text_logits, static_argnums=0)


@functools.partial(jax.jit, static_argnames="cfg")
def loss_and_gradient(
    cfg: ModelConfig,
    params: vlm.Params,
    slots: vlm.Slots,
    given: vlm.Example | None = None,
) -> tuple[jax.Array, vlm.Params]:
    """Returns the mean loss of a batch, the usual one where none is given, and its gradient."""
    data = vlm.Example(*(jnp.asarray(a) for a in given or batch()))

    def loss(params: vlm.Params) -> jax.Array:
        weights = data.mask_loss[:, 1:].astype(jnp.float32)
        return vlm.loss(vlm.structure(cfg), params, data, slots, weights / jnp.sum(weights))

    return jax.value_and_grad(loss)(params)
