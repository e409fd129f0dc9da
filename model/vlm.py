r"""The whole model as pure functions over (structure, parameters).

Parameters are a nested dict of arrays; `jax.jit`, `jax.grad`, optax and orbax see nothing else.
The structure is hashable: pass it as a static argument. Sequence layout and masks:

```
[ soft tokens of image 1 | ... of image I | BOS prefix "\n" | suffix EOS | PAD ]
  mask_ar 0                                 0                  1            1
```
Token i sees token j iff cumsum(mask_ar)[j] <= cumsum(mask_ar)[i] and j is valid: images, prefix
and separator see each other, the suffix sees them and what is before it. Positions count the
valid tokens, so a masked slot is as good as absent.
"""

import functools
import typing

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32, UInt8

from model.config import ModelConfig
from model.connector.build import build_connector
from model.text.dropout import Dropout
from model.text.gemma import Gemma
from model.text.loss import chunked_losses
from model.vision.layers import Linear
from model.vision.siglip import Siglip

Params = dict[str, typing.Any]
Structure = nnx.GraphDef
Images = Float[Array, "B I H W 3"] | UInt8[Array, "B I H W 3"]

_PARTS = ("vision", "text", "projector", "connector")


class Vlm(nnx.Module):
    """Vision tower, connector, projector and decoder."""

    def __init__(self, cfg: ModelConfig, key: Array) -> None:
        # A key per part: what all methods share starts out equal, whatever their connector draws.
        rngs = {part: nnx.Rngs(jax.random.fold_in(key, i)) for i, part in enumerate(_PARTS)}
        self.cfg = cfg
        self.vision = Siglip(cfg, rngs=rngs["vision"])
        self.connector = build_connector(cfg, rngs=rngs["connector"])
        zeros = cfg.projector_init == "zeros"
        widths = cfg.vision.width, cfg.text.width
        self.projector = Linear(*widths, rngs=rngs["projector"], zeros=zeros)
        self.text = Gemma(cfg, rngs=rngs["text"])


class Sequence(typing.NamedTuple):
    """Embedded tokens, ready for the decoder."""

    x: Float[Array, "B L D"]
    positions: Int32[Array, "B L"]
    mask: Bool[Array, "B L L"]
    valid: Bool[Array, "B L"]


def split(model: nnx.Module) -> tuple[Structure, Params]:
    """Returns the structure of a module, and its parameters as a nested dict of arrays."""
    structure_, state = nnx.split(model)
    return structure_, nnx.to_pure_dict(state)


@functools.cache
def structure(cfg: ModelConfig) -> Structure:
    """Returns the structure of a model, without making its parameters."""
    return nnx.split(nnx.eval_shape(lambda: Vlm(cfg, jax.random.key(0))))[0]


def init_params(cfg: ModelConfig, seed: int) -> Params:
    """Returns fresh float32 parameters; parts that two configurations share are equal."""
    # Runs once: optimizing it takes 5 s for the smallest model, running it unoptimized 0.1 s.
    options = {"xla_backend_optimization_level": 0}
    draw = jax.jit(lambda key: split(Vlm(cfg, key))[1], compiler_options=options)
    return draw(jax.random.key(seed))


def abstract_params(cfg: ModelConfig) -> Params:
    """Returns the shapes and dtypes of the parameters, in no memory."""
    return jax.eval_shape(lambda: split(Vlm(cfg, jax.random.key(0)))[1])


def image_features(structure: Structure, params: Params, images: Images) -> Float[Array, "B I P C"]:
    """Returns the vision tower's features of every image."""
    return _features(merge(structure, params), images)


def soft_tokens(
    structure: Structure,
    params: Params,
    images: Images,
    *,
    bucket: int,
    budget: Int[Array, ""] | int,
) -> tuple[Float[Array, "B S D"], Bool[Array, "B S"]]:
    """Returns the projected soft tokens, S = I * bucket, and which of them count.

    Args:
      structure: of the model.
      params: of the model.
      images: frames or image pairs along I, in [-1, 1] or bytes; each gets the same budget.
      bucket: slots per image, static; see `connector.budgets.bucket_of`.
      budget: soft tokens per image; may be traced, so one program serves a whole bucket.
    """
    return _soft_tokens(merge(structure, params), images, bucket, budget)


def text_logits(
    structure: Structure,
    params: Params,
    images: Images,
    text: Int32[Array, "B T"],
    mask_ar: Int32[Array, "B T"],
    mask_input: Int32[Array, "B T"] | Bool[Array, "B T"],
    *,
    bucket: int,
    budget: Int[Array, ""] | int,
) -> Float[Array, "B T V"]:
    """Returns next-token logits at every text position: all at once, so for small inputs.

    Args:
      structure: of the model.
      params: of the model.
      images: see `soft_tokens`.
      text: token ids, prefix first.
      mask_ar: 0 where a token is seen by those before it too, 1 where it opens a causal step.
      mask_input: 1 on real tokens, 0 on padding; training passes ones.
      bucket: see `soft_tokens`.
      budget: see `soft_tokens`.
    """
    model = merge(structure, params)
    sequence = embed_sequence(model, images, text, mask_ar, mask_input, bucket, budget)
    return model.text.logits(_decode_text(model, sequence, text.shape[1]))


def token_losses(
    structure: Structure,
    params: Params,
    images: Images,
    text: Int32[Array, "B T1"],
    mask_ar: Int32[Array, "B T1"],
    mask_loss: Int32[Array, "B T1"],
    *,
    bucket: int,
    budget: Int[Array, ""] | int,
    label_smoothing: float = 0.0,
    dropout: Dropout | None = None,
) -> Float[Array, "B T"]:
    """Returns the cross-entropy of each target, T = T1 - 1; 0 where `mask_loss` is 0.

    The model reads `text[:, :-1]` and predicts `text[:, 1:]`. Padding is last and causal, so
    nothing that counts sees it. Logits exist for `cfg.loss_chunk` positions of each row at a
    time, and are made again in the backward pass; positions without loss are skipped.

    Args:
      structure: of the model.
      params: of the model.
      images: see `soft_tokens`.
      text: token ids, one more than the model reads.
      mask_ar: see `text_logits`.
      mask_loss: 1 on the tokens to learn.
      bucket: see `soft_tokens`.
      budget: see `soft_tokens`.
      label_smoothing: probability mass moved from the target to all other tokens.
      dropout: what the decoder drops; None is nothing.
    """
    model = merge(structure, params)
    read, ones = text[:, :-1], jnp.ones(text[:, :-1].shape, bool)
    sequence = embed_sequence(model, images, read, mask_ar[:, :-1], ones, bucket, budget)
    hidden = _decode_text(model, sequence, read.shape[1], dropout)
    return chunked_losses(model.text, hidden, text[:, 1:], mask_loss[:, 1:] > 0, label_smoothing)


def embed_sequence(
    model: Vlm,
    images: Images,
    text: Int32[Array, "B T"],
    mask_ar: Int32[Array, "B T"],
    mask_input: Int32[Array, "B T"] | Bool[Array, "B T"],
    bucket: int,
    budget: Int[Array, ""] | int,
    *,
    causal: bool = False,
) -> Sequence:
    """Returns soft tokens and text joined, with positions and the prefix-LM mask.

    `causal` makes every token, of images too, see only what is before it.
    """
    soft, soft_valid = _soft_tokens(model, images, bucket, budget)
    x = jnp.concatenate([soft, model.text.embed(text, dtype=soft.dtype)], axis=1)
    valid = jnp.concatenate([soft_valid, mask_input.astype(bool)], axis=1)
    steps = jnp.concatenate([jnp.zeros_like(soft_valid, mask_ar.dtype), mask_ar], axis=1)
    steps = jnp.cumsum(jnp.ones_like(steps) if causal else steps, axis=1)
    mask = (steps[:, None, :] <= steps[:, :, None]) & valid[:, None, :]
    positions = jnp.cumsum(valid.astype(jnp.int32), axis=1) - 1
    return Sequence(x, positions, mask, valid)


def _decode_text(
    model: Vlm, sequence: Sequence, length: int, dropout: Dropout | None = None
) -> Float[Array, "B T D"]:
    x, positions, mask, _ = sequence
    return model.text(x, positions, mask, num_rows=length, dropout=dropout)


def _soft_tokens(
    model: Vlm, images: Images, bucket: int, budget: Int[Array, ""] | int
) -> tuple[Float[Array, "B S D"], Bool[Array, "B S"]]:
    features = _features(model, images)
    batch, count, patches, width = features.shape
    features = features.reshape(batch * count, patches, width)
    budget = jnp.asarray(budget, jnp.int32)
    tokens = model.projector(model.connector(features, bucket=bucket, budget=budget))
    valid = jnp.tile(jnp.arange(bucket) < budget, count)
    shape = (batch, count * bucket)
    return tokens.reshape(*shape, -1), jnp.broadcast_to(valid[None], shape)


def _features(model: Vlm, images: Images) -> Float[Array, "B I P C"]:
    batch, count = images.shape[:2]
    flat = images.reshape(batch * count, *images.shape[2:])
    features = model.vision(flat, dtype=jnp.dtype(model.cfg.dtype))
    return features.reshape(batch, count, *features.shape[1:])


def merge(structure: Structure, params: Params) -> Vlm:
    """Returns the module that `structure` and `params` describe."""
    return nnx.merge(structure, params)
