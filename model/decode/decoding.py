"""The decoding of answers: greedy, by beam search, or by sampling."""

from typing import Any

import jax
from jaxtyping import Array, Int32

from model import vlm
from model.decode.beam import beam_search
from model.decode.config import Decoding
from model.decode.generate import generate


def decode_program(decoding: Decoding, number: int) -> tuple[Any, dict[str, Any]]:
    """Returns the jitted function for this decoding, and its extra arguments.

    `number` is the batch's number: batches with the same seed draw differently.
    """
    if decoding.beams > 1:
        return beam_search, {"num_beams": decoding.beams}
    if not decoding.temperature:
        return generate, {}
    key = jax.random.fold_in(jax.random.key(decoding.seed), number)
    return generate, {"sampling": decoding.sampling, "key": key}


def decode_tokens(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    *,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
    number: int = 0,
) -> Int32[Array, "B M"]:
    """Returns the tokens of the answer to each prompt: the stop token last, then PAD.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: prompts to answer.
      slots: room for soft tokens.
      max_new_tokens: longest answer, M.
      stop: token that ends an answer.
      decoding: how tokens are chosen.
      number: number of this batch; see `decode_program`.
    """
    function, extra = decode_program(decoding, number)
    return function(
        structure, params, prompt, slots, max_new_tokens=max_new_tokens, stop=stop, **extra
    )
