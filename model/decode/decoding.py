"""The decoding of answers: greedy, by beam search, or by sampling."""

import jax
from jaxtyping import Array, Int32, PRNGKeyArray

from model import vlm
from model.decode.beam import beam_search
from model.decode.config import Decoding
from model.decode.generate import generate


def draw_key(decoding: Decoding, number: int) -> PRNGKeyArray | None:
    """Returns the key of a batch's draws, another one for each batch; None if nothing is drawn.

    Args:
      decoding: how tokens are chosen.
      number: number of the batch.
    """
    if not decoding.temperature:
        return None
    return jax.random.fold_in(jax.random.key(decoding.seed), number)


def decode_tokens(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    key: PRNGKeyArray | None = None,
    *,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
) -> Int32[Array, "B M"]:
    """Returns the tokens of the answer to each prompt: the stop token last, then PAD.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: prompts to answer.
      slots: room for soft tokens.
      key: key of the draws, see `draw_key`.
      max_new_tokens: longest answer, M.
      stop: token that ends an answer.
      decoding: how tokens are chosen; its seed is in `key`.
    """
    inputs = structure, params, prompt, slots
    if decoding.beams > 1:
        return beam_search(
            *inputs, max_new_tokens=max_new_tokens, stop=stop, num_beams=decoding.beams
        )
    return generate(
        *inputs, max_new_tokens=max_new_tokens, stop=stop, sampling=decoding.sampling, key=key
    )
