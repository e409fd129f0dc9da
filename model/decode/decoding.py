"""How answers are decoded: greedily, by beam search, or drawn."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, UInt8

from model import vlm
from model.decode.beam import search
from model.decode.generate import SamplingParams, generate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """The choice of a benchmark, or of a question; the default is greedy.

    Attributes:
      beams: live hypotheses of beam search; 1 is no beam search.
      temperature: above 0 draws from logits / temperature; 0 takes the likeliest token.
      top_p: draws from the fewest tokens that hold this much probability; 1 is all of them.
      seed: of the draws.
    """

    beams: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1 (greedy), got {self.beams}.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}.")
        if self.beams > 1 and self.temperature:
            raise ValueError(
                f"temperature must be 0 with beams={self.beams}: beam search draws nothing, "
                f"got {self.temperature}."
            )
        if self.top_p < 1 and not self.temperature:
            raise ValueError(f"top_p needs a temperature above 0 to draw at, got {self.top_p}.")
        _ = self.sampling

    @property
    def sampling(self) -> SamplingParams:
        """How `generate` chooses tokens."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p)

    def program(self, number: int) -> tuple[Any, dict[str, Any]]:
        """Returns the jitted function that decodes so, and the arguments only it has.

        `number` is of the batch: batches of one seed draw differently.
        """
        if self.beams > 1:
            return search, {"num_beams": self.beams}
        if not self.temperature:
            return generate, {}
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        return generate, {"sampling": self.sampling, "key": key}


def decode(
    structure: vlm.Structure,
    params: vlm.Params,
    images: Float[np.ndarray, "B I H W 3"] | UInt8[np.ndarray, "B I H W 3"],
    text: Int32[np.ndarray, "B T"],
    mask_input: Int32[np.ndarray, "B T"],
    *,
    bucket: int,
    budget: int,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
    number: int = 0,
    real: Bool[np.ndarray, " B"] | None = None,
) -> Int32[Array, "B M"]:
    """Returns the answer's tokens to each prompt: the stop token last, then PAD.

    Args:
      structure: of the model.
      params: of the model.
      images: see `vlm.soft_tokens`.
      text: prompts, each padded on its right.
      mask_input: 1 on real tokens, 0 on padding.
      bucket: see `vlm.soft_tokens`.
      budget: see `vlm.soft_tokens`.
      max_new_tokens: M.
      stop: token that ends an answer.
      decoding: how tokens are chosen.
      number: of this batch, see `Decoding.program`.
      real: see `generate`.
    """
    function, extra = decoding.program(number)
    return function(
        structure,
        params,
        images,
        text,
        np.zeros_like(text),
        mask_input,
        bucket=bucket,
        budget=np.int32(budget),  # A Python integer would have a program of its own.
        max_new_tokens=max_new_tokens,
        real=real,
        stop=stop,
        **extra,
    )
