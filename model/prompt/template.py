"""The facts of a prompt template; rows are made by `model.data.text`, masks by `model.vlm`."""

import dataclasses

BEFORE_IMAGES = -1
"""Value of `mask_ar` on tokens that a row of text has before its images; see `model.vlm`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    r"""How the turns of a conversation and its images stand in a row of tokens.

        BOS lead [images] opening question closing gap answer END again question closing …

    The gap, the answer and the end are learned, all else is only read. Each stretch up to an end is
    tokenized as a whole, and so is the lead, as in LLaVA; `closing=None` is PaliGemma's newline, a
    token on its own.

    Attributes:
      causal: whether a token sees earlier ones alone; else images and the first question see each
        other.
      lead: text between BOS and the images; None puts BOS behind the images.
      opening: text between the images, or BOS, and the first question.
      closing: text between a question and its answer; None is a newline, tokenized on its own.
      gap: text between that and an answer, which is learned and no part of the answer.
      again: text before each later question.
      reads_question: whether there are questions at all; without, it serves training alone.
      end: text that ends an answer; None is the token EOS.
    """

    causal: bool = True
    lead: str | None = None
    opening: str = ""
    closing: str | None = None
    gap: str = ""
    again: str = ""
    reads_question: bool = True
    end: str | None = None

    @property
    def without_images(self) -> "PromptTemplate":
        """The template of a conversation without images: what is before them opens it instead."""
        if self.lead is None:
            return self
        return dataclasses.replace(self, lead=None, opening=self.lead)
