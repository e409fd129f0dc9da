"""Features that a budget is chosen by: statistics of the decoder's inputs at the least budget."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from model import vlm


@functools.partial(jax.jit, static_argnames="structure")
def pooled(
    structure: vlm.Structure, params: vlm.Params, prompt: vlm.Prompt, slots: vlm.Slots
) -> Float[Array, "B F"]:
    """Returns mean and deviation of an input's soft tokens, and the mean of its prompt's embedding.

    F = 3 D. No layer of the decoder runs. The only extra cost is the connector at the least budget,
    because the chosen budget needs the vision tower anyway.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: images and prefix, as they are decoded.
      slots: slots of the least budget, none of them masked.
    """
    rows, valid = vlm.embed_sequence(vlm.merge(structure, params), prompt, slots)
    length = prompt.text.shape[1]
    soft = rows.x[:, :-length].astype(jnp.float32)
    text = rows.x[:, -length:].astype(jnp.float32)
    real = valid[:, -length:, None].astype(jnp.float32)
    read = (text * real).sum(axis=1) / real.sum(axis=1)
    return jnp.concatenate([soft.mean(axis=1), soft.std(axis=1), read], axis=1)
