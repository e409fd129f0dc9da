"""The configuration of decoding; importing it does not import JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The rule by which the next token is chosen.

    Attributes:
      temperature: 0 takes the likeliest token (greedy); above, draws from logits / temperature.
      top_p: draws from the fewest tokens that hold this much probability; 1 is all of them.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or above, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """The way in which answers of a benchmark, or to a question, are decoded; greedy by default.

    Attributes:
      beams: live hypotheses of beam search; 1 is no beam search.
      temperature: above 0 draws from logits / temperature; 0 takes the likeliest token.
      top_p: draws from the fewest tokens that hold this much probability; 1 is all of them.
      seed: seed of the draws.
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
        """The part that `generate` reads: how it chooses tokens."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """The configuration with which a split is answered.

    Attributes:
      batch_size: examples that a device decodes together; the last batch is filled up, and one
        that does not fit its memory is decoded in equal parts.
      text_len: longest prefix and separator; the answer may be as long again [tokens].
      max_frames: most images of one example; longer videos are thinned out.
      decoding: greedy by default; beam search or sampling where a benchmark asks for it.
    """

    batch_size: int = 32
    text_len: int = 64
    max_frames: int = 16
    decoding: Decoding = Decoding()

    def __post_init__(self) -> None:
        for name in ("batch_size", "text_len", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
