r"""The whole model as pure functions over (structure, parameters).

Parameters are a nested dict of arrays; `jax.jit`, `jax.grad`, optax and orbax see nothing else.
The structure is hashable: pass it as a static argument. Sequence layout and masks:

```
[ soft tokens of image 1 | ... of image I | BOS prefix "\n" | suffix EOS | PAD ]
  mask_ar 0                                 0                  1            1
```
Token i sees token j iff cumsum(mask_ar)[j] <= cumsum(mask_ar)[i] and j is valid: images, prefix
and separator see each other, the suffix sees them and what is before it. Positions count only
valid tokens, so a masked slot has the same effect as an absent one.

A causal prompt template sees by position alone, and may have text before the images. In arrays
soft tokens still come first, then all text; a `mask_ar` of `BEFORE_IMAGES` says what is read before
them.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32, UInt8

from model.config import ModelConfig
from model.connector.build import build_connector
from model.prompt.template import BEFORE_IMAGES
from model.text.decoder import Adapter, Decoder, Rows
from model.text.dropout import Dropout
from model.text.loss import chunked_losses, weighted_loss
from model.text.packing import Packing
from model.vision.layers import Linear
from model.vision.tower import Tower

Params = dict[str, typing.Any]
Structure = nnx.GraphDef
AnyArray = Array | np.ndarray
"""An array on the host or on a device."""
Images = Float[AnyArray, "B I H W 3"] | UInt8[AnyArray, "B I H W 3"]


class EncodedImages(typing.NamedTuple):
    """Images already encoded by the vision tower, which need not run again for another budget.

    Attributes:
      features: the tower's features of every image, in the dtype of the activations.
    """

    features: Float[Array, "B I P C"]


_PARTS = ("vision", "text", "projector", "connector")


class Vlm(nnx.Module):
    """Vision tower, connector, projector and decoder."""

    def __init__(self, cfg: ModelConfig, key: Array) -> None:
        # One key per part: parts that all methods share start out equal, whatever the connector is.
        rngs = {part: nnx.Rngs(jax.random.fold_in(key, i)) for i, part in enumerate(_PARTS)}
        self.cfg = cfg
        self.vision = Tower(cfg, rngs=rngs["vision"])
        self.connector = build_connector(cfg, rngs=rngs["connector"])
        zeros = cfg.projector_init == "zeros"
        widths = cfg.vision.width, cfg.text.width
        layers = Linear if cfg.projector == "linear" else TwoLayers
        self.projector = layers(*widths, rngs=rngs["projector"], zeros=zeros)
        self.text = Decoder(cfg, rngs=rngs["text"])


class TwoLayers(nnx.Module):
    """Two linear layers with an exact GELU between them. Source: LLaVA-1.5, "mlp2x_gelu"."""

    def __init__(self, fan_in: int, fan_out: int, *, rngs: nnx.Rngs, zeros: bool = False) -> None:
        self.first = Linear(fan_in, fan_out, rngs=rngs)
        self.second = Linear(fan_out, fan_out, rngs=rngs, zeros=zeros)

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B D"]:
        """Returns the projected features."""
        return self.second(jax.nn.gelu(self.first(x), approximate=False))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """Room for soft tokens: a program has `bucket` slots per image, and `budget` of them count.

    The bucket shapes arrays, so `jit` keeps a program for each; the budget is an argument like any
    other, so one program serves all budgets of its bucket.

    Attributes:
      bucket: slots per image; see `connector.budgets.bucket_of`.
      budget: soft tokens per image, at most `bucket`.
    """

    bucket: int = dataclasses.field(metadata={"static": True})
    budget: Int[AnyArray, ""] | int

    def __post_init__(self) -> None:
        if isinstance(self.budget, int):
            # `jit` types a Python integer differently from an array and would compile both.
            object.__setattr__(self, "budget", np.int32(self.budget))


class Prompt(typing.NamedTuple):
    """The input of a batch: images, then text.

    Attributes:
      images: frames or image pairs along I, in [-1, 1] or bytes, or `EncodedImages`;
        each gets the same budget. Text alone has none: I is 0.
      text: token ids, prefix first, padded on the right; lengths may differ.
      mask_input: 1 on real tokens, 0 on padding; None means that all are real, as in training.
      mask_ar: 0 where earlier tokens see the token too, 1 where it starts a causal step,
        `BEFORE_IMAGES` where it is read before the images; None means all zeros: a prefix without a
        suffix.
      real: False on rows that only fill up the batch; None means that all are real.
    """

    images: Images | EncodedImages
    text: Int32[AnyArray, "B T"]
    mask_input: Int32[AnyArray, "B T"] | Bool[AnyArray, "B T"] | None = None
    mask_ar: Int32[AnyArray, "B T"] | None = None
    real: Bool[AnyArray, " B"] | None = None


class Example(typing.NamedTuple):
    """A batch to learn from. The model reads `text[:, :-1]` and predicts `text[:, 1:]`.

    Attributes:
      images: see `Prompt`.
      text: token ids, one more than the model reads.
      mask_ar: see `Prompt`.
      mask_loss: 1 on the tokens to learn.
    """

    images: Images
    text: Int32[AnyArray, "B T1"]
    mask_ar: Int32[AnyArray, "B T1"]
    mask_loss: Int32[AnyArray, "B T1"]

    @property
    def prompt(self) -> Prompt:
        """The part that the model reads. Padding is last and causal: no real token sees it."""
        return Prompt(self.images, self.text[:, :-1], mask_ar=self.mask_ar[:, :-1])


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
    """Returns the shapes and dtypes of the parameters, without allocating them."""
    return jax.eval_shape(lambda: split(Vlm(cfg, jax.random.key(0)))[1])


def image_features(structure: Structure, params: Params, images: Images) -> Float[Array, "B I P C"]:
    """Returns the vision tower's features of every image."""
    return _image_features(merge(structure, params), images)


@functools.partial(jax.jit, static_argnames="structure")
def encode_images(structure: Structure, params: Params, images: Images) -> EncodedImages:
    """Returns images encoded by the vision tower, for prompts at several budgets."""
    return EncodedImages(image_features(structure, params, images))


def soft_tokens(
    structure: Structure, params: Params, images: Images, slots: Slots
) -> tuple[Float[Array, "B S D"], Bool[Array, "B S"]]:
    """Returns the projected soft tokens, S = I * bucket, and which are within the budget."""
    return _soft_tokens(merge(structure, params), images, slots)


def text_logits(
    structure: Structure, params: Params, prompt: Prompt, slots: Slots
) -> Float[Array, "B T V"]:
    """Returns next-token logits of every text position at once; for small inputs only."""
    model = merge(structure, params)
    rows, _ = embed_sequence(model, prompt, slots)
    return model.text.logits(model.text(rows, num_rows=prompt.text.shape[1]))


def token_losses(
    structure: Structure,
    params: Params,
    example: Example,
    slots: Slots,
    *,
    label_smoothing: float = 0.0,
) -> Float[Array, "B T"]:
    """Returns the cross-entropy of each target, T = T1 - 1; 0 where `mask_loss` is 0.

    For inspection: it has no derivative; training uses `loss`. Logits exist for `cfg.loss_chunk`
    positions of each row at a time; positions without loss are skipped.

    Args:
      structure: the model's structure.
      params: its parameters.
      example: images and text to read, and targets to predict.
      slots: room for soft tokens.
      label_smoothing: probability mass moved from the target to all other tokens.
    """
    model = merge(structure, params)
    targets, hidden = _targets_and_hidden(model, example, slots, None)
    has_loss = jnp.asarray(example.mask_loss)[:, 1:] > 0
    return chunked_losses(model.text, hidden, targets, has_loss, label_smoothing)


def loss(
    structure: Structure,
    params: Params,
    example: Example,
    slots: Slots,
    weights: Float[AnyArray, "B T"],
    *,
    label_smoothing: float = 0.0,
    dropout: Dropout | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    packing: Packing | None = None,
) -> Float[Array, ""]:
    """Returns the sum of `token_losses` times `weights`.

    Args:
      structure: see `token_losses`.
      params: see `token_losses`.
      example: see `token_losses`; its `mask_loss` is not read.
      slots: see `token_losses`.
      weights: weight of each target; 0 skips the target.
      label_smoothing: see `token_losses`.
      dropout: dropout in the decoder; None drops nothing.
      adapters: matrix of a decoder block -> its adapters in all layers; None has none.
      packing: where the tokens of all texts are; None packs nothing. Tokens behind the last that is
        packed of a text have no effect.
    """
    model, weights = merge(structure, params), jnp.asarray(weights)
    targets, hidden = _targets_and_hidden(model, example, slots, dropout, adapters, packing)
    if packing is not None:
        targets, weights = packing.tokens(targets), packing.tokens(weights)
    num_rows = len(example.text)
    return weighted_loss(model.text, hidden, targets, weights, label_smoothing, num_rows=num_rows)


def _targets_and_hidden(
    model: Vlm,
    example: Example,
    slots: Slots,
    dropout: Dropout | None,
    adapters: Mapping[str, Adapter] | None = None,
    packing: Packing | None = None,
) -> tuple[Int32[Array, "B T"], Float[Array, "..."]]:
    """Returns the targets, and the decoder's output, packed or not, for the text before each."""
    targets = jnp.asarray(example.text)[:, 1:]
    rows, _ = embed_sequence(model, example.prompt, slots, packing=packing)
    num_rows = targets.shape[1]
    return targets, model.text(rows, num_rows=num_rows, dropout=dropout, adapters=adapters)


def embed_sequence(
    model: Vlm,
    prompt: Prompt,
    slots: Slots,
    *,
    causal: bool = False,
    packing: Packing | None = None,
) -> tuple[Rows, Bool[Array, "B L"]]:
    """Returns soft tokens and text joined, with positions and prefix-LM mask, and which are valid.

    `causal` makes every token, soft tokens included, see only itself and earlier ones. With
    `packing`, tokens are packed, but not positions and mask.
    """
    soft, soft_valid = _soft_tokens(model, prompt.images, slots)
    ids = jnp.asarray(prompt.text)
    if packing is not None:
        ids, soft = packing.tokens(ids), soft.reshape(1, -1, soft.shape[2])
    x = jnp.concatenate([soft, model.text.embed(ids, dtype=soft.dtype)], axis=1)
    valid = jnp.concatenate([soft_valid, text_valid(prompt)], axis=1)
    mask_ar = jnp.zeros_like(prompt.text) if prompt.mask_ar is None else prompt.mask_ar
    if model.cfg.template.causal:
        return _causal_rows(x, valid, mask_ar == BEFORE_IMAGES, packing), valid
    # One image in a bucket of 3 at budget 2, prefix p q, suffix s t; i2 is a masked slot:
    #
    #                i0 i1 i2  p  q  s  t      i0 to q see    1  1  .  1  1  .  .
    #     valid       1  1  0  1  1  1  1      s sees         1  1  .  1  1  1  .
    #     mask_ar     0  0  0  0  0  1  1      t sees         1  1  .  1  1  1  1
    #     steps       0  0  0  0  0  1  2
    #     position    0  1  1  2  3  4  5      as if i2 were not there
    steps = jnp.concatenate([jnp.zeros_like(soft_valid, mask_ar.dtype), mask_ar], axis=1)
    # Each 1 opens a step: tokens of one step see each other and all earlier ones. With a 1 at
    # every token, each token is its own step, which is plain causal attention.
    steps = jnp.cumsum(jnp.ones_like(steps) if causal else steps, axis=1)
    mask = (steps[:, None, :] <= steps[:, :, None]) & valid[:, None, :]
    # Only valid tokens are counted, so text has the positions it would have without masked slots.
    positions = jnp.cumsum(valid.astype(jnp.int32), axis=1) - 1
    return Rows(x, positions, mask, packing), valid


def _causal_rows(
    x: Array, valid: Bool[Array, "B L"], before: Bool[Array, "B T"], packing: Packing | None
) -> Rows:
    """Returns rows that see by position, some of whose text is read before the images."""
    # Text a b, then one image in a bucket of 3 at budget 2, then text c d; i2 is a masked slot:
    #
    #                i0 i1 i2  a  b  c  d
    #     before                1  1  0  0
    #     valid       1  1  0  1  1  1  1
    #     position    2  3  .  0  1  4  5      c sees 0 to 4: all but d
    num_slots = valid.shape[1] - before.shape[1]
    counts = valid.astype(jnp.int32)
    slots, text = counts[:, :num_slots], counts[:, num_slots:]
    num_before = jnp.sum(jnp.where(before, text, 0), axis=1, keepdims=True)
    num_soft = jnp.sum(slots, axis=1, keepdims=True)
    places = [
        num_before + jnp.cumsum(slots, axis=1),
        jnp.where(before, 0, num_soft) + jnp.cumsum(text, axis=1),
    ]
    positions = jnp.concatenate(places, axis=1) - 1
    mask = (positions[:, None, :] <= positions[:, :, None]) & valid[:, None, :]
    return Rows(x, positions, mask, packing)


def text_valid(prompt: Prompt) -> Bool[Array, "B T"]:
    """Returns which tokens of the text are real."""
    if prompt.mask_input is None:
        return jnp.ones(prompt.text.shape, bool)
    return jnp.asarray(prompt.mask_input).astype(bool)


def _soft_tokens(
    model: Vlm, images: Images | EncodedImages, slots: Slots
) -> tuple[Float[Array, "B S D"], Bool[Array, "B S"]]:
    if not isinstance(images, EncodedImages) and not images.shape[1]:
        # Text alone: neither the tower nor the connector runs, so neither gets a gradient.
        batch, width = len(images), model.cfg.text.width
        return jnp.zeros((batch, 0, width), model.cfg.dtype), jnp.zeros((batch, 0), bool)
    features = (
        images.features if isinstance(images, EncodedImages) else _image_features(model, images)
    )
    # The connector treats each image alone, so images of all examples are one long batch for it.
    batch, count, patches, width = features.shape
    features = features.reshape(batch * count, patches, width)
    bucket, budget = slots.bucket, jnp.asarray(slots.budget, jnp.int32)
    tokens = model.projector(model.connector(features, bucket=bucket, budget=budget))
    # Slots beyond `budget` hold arbitrary values, but nothing reads them: they are masked as keys,
    # take no position, and their own rows are never used.
    valid = jnp.tile(jnp.arange(bucket) < budget, count)
    shape = (batch, count * bucket)
    return tokens.reshape(*shape, -1), jnp.broadcast_to(valid[None], shape)


def _image_features(model: Vlm, images: Images) -> Float[Array, "B I P C"]:
    batch, count = images.shape[:2]
    flat = jnp.asarray(images).reshape(batch * count, *images.shape[2:])
    features = model.vision(flat, dtype=jnp.dtype(model.cfg.dtype))
    return features.reshape(batch, count, *features.shape[1:])


def merge(structure: Structure, params: Params) -> Vlm:
    """Returns the module that `structure` and `params` describe."""
    return nnx.merge(structure, params)
