"""How answers are decoded: greedily, by beam search, or drawn."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Int32

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
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    *,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
    number: int = 0,
) -> Int32[Array, "B M"]:
    """Returns the answer's tokens to each prompt: the stop token last, then PAD.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: to answer.
      slots: for soft tokens.
      max_new_tokens: M.
      stop: token that ends an answer.
      decoding: how tokens are chosen.
      number: of this batch, see `Decoding.program`.
    """
    function, extra = decoding.program(number)
    return function(
        structure, params, prompt, slots, max_new_tokens=max_new_tokens, stop=stop, **extra
    )
