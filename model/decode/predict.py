"""Answers of a checkpoint to single questions about images, at any budget."""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from model import vlm
from model.checkpoint.folder import load_config, load_params, tokenizer_path
from model.connector import budgets
from model.data.text import answer_text, eval_row, prefix_ids
from model.decode.config import Decoding
from model.decode.decoding import decode_tokens, draw_key
from model.decode.rows import decoding_params
from model.text.tokenizer import Tokenizer

PromptImages = UInt8[np.ndarray, "I H W 3"] | vlm.EncodedImages
_PROMPT_STEP = 16
"""Prompts are padded to a multiple of this, so that those of about one length share a program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A checkpoint's answer, and the time it took.

    Attributes:
      text: text of the answer.
      tokens: its token ids, with the stop token (absent if `max_tokens` ended the answer).
      budget: soft tokens per image.
      bucket: slots per image of the program that ran.
      seconds: time by phase [s]: "compile", near 0 if the program was compiled before; "answer",
        prefill and all tokens.
    """

    text: str
    tokens: tuple[int, ...]
    budget: int
    bucket: int
    seconds: dict[str, float]


class Predictor:
    """A loaded checkpoint. Compiles once per bucket, number of images, length and decoding.

    Attributes:
      model: its configuration.
      num_programs: number of programs compiled so far.
    """

    def __init__(self, checkpoint: str | Path, *, tokenizer: str | Path | None = None) -> None:
        """Loads a checkpoint folder; `tokenizer` is used instead of the one in it.

        Raises:
          ValueError: if there is no finished checkpoint, no tokenizer, or one of another model.
        """
        pieces = Path(tokenizer) if tokenizer else tokenizer_path(checkpoint)
        if not pieces.is_file():
            raise ValueError(f"tokenizer must be a SentencePiece file, got {pieces}.")
        self.model = load_config(checkpoint)
        self._tokenizer = Tokenizer(pieces)
        if self._tokenizer.vocab_size > self.model.text.vocab_size:
            raise ValueError(
                f"tokenizer must have at most {self.model.text.vocab_size} tokens "
                f"(text.vocab_size), got {self._tokenizer.vocab_size} in {pieces}."
            )
        self._params = decoding_params(self.model, load_params(checkpoint))
        self._programs: dict[Any, Any] = {}

    @property
    def num_programs(self) -> int:
        """Number of programs compiled so far."""
        return len(self._programs)

    def encode_images(self, images: UInt8[np.ndarray, "I H W 3"]) -> vlm.EncodedImages:
        """Runs the vision tower alone, for images that are asked about more than once."""
        return vlm.encode_images(vlm.structure(self.model), self._params, images[None])

    def answer(
        self,
        images: PromptImages,
        prompt: str,
        *,
        budget: int,
        max_tokens: int = 64,
        decoding: Decoding = Decoding(),  # noqa: B008
    ) -> Answer:
        """Returns the answer to a prompt.

        It runs in the declared bucket of the budget, as training does: budgets of a bucket share
        a program and differ only in their masks.

        Args:
          images: one, a pair, or the frames of a video, of the model's size; or their
            `encode_images`, which spares the vision tower a second run.
          prompt: text in the form of records' prefixes, such as "answer en where is it?".
          budget: soft tokens per image; the connector must serve it.
          max_tokens: longest answer [tokens].
          decoding: how tokens are chosen.

        Raises:
          ValueError: if the budget is not served, with those that are.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}.")
        # The bucket of training, which several budgets share: the first answer at each of them then
        # needs no program of its own.
        slots = vlm.Slots(budgets.bucket_of(self.model, budget).size, budget)
        # Prompts are padded to a multiple of a step, so that prompts of similar lengths share a
        # program.
        template = self.model.prompt
        num_tokens = len(prefix_ids(self._tokenizer, prompt, template))
        length = -(-num_tokens // _PROMPT_STEP) * _PROMPT_STEP
        row = eval_row(self._tokenizer, prompt, length, prompt=template)
        text = {name: array[None] for name, array in row.items()}
        batch = _batch_of_one_prompt(images)
        key = draw_key(decoding, 0)
        arrays = self._params, vlm.Prompt(batch, **text), slots, key

        started = time.monotonic()
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        choice = decoding.beams, decoding.sampling  # The seed is an argument, in `key`.
        shape = shapes, length, slots.bucket, max_tokens, choice
        if shape not in self._programs:
            # Compiled here and not by a call of `jit`, so that its time is measured apart from the
            # answer's.
            decode = functools.partial(
                decode_tokens,
                vlm.structure(self.model),
                max_new_tokens=max_tokens,
                stop=self._tokenizer.eos_id,
                decoding=decoding,
            )
            self._programs[shape] = jax.jit(decode).lower(*arrays).compile()
        compiled = time.monotonic()
        tokens = np.asarray(self._programs[shape](*arrays))[0].tolist()
        seconds = {"compile": compiled - started, "answer": time.monotonic() - compiled}
        if self._tokenizer.eos_id in tokens:
            tokens = tokens[: tokens.index(self._tokenizer.eos_id) + 1]
        return Answer(
            text=answer_text(self._tokenizer, tokens, template),
            tokens=tuple(tokens),
            budget=budget,
            bucket=slots.bucket,
            seconds=seconds,
        )


def _batch_of_one_prompt(
    images: PromptImages,
) -> vlm.EncodedImages | UInt8[np.ndarray, "1 I H W 3"]:
    return images if isinstance(images, vlm.EncodedImages) else images[None]
