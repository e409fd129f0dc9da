r"""Token rows of a prompt template, with masks of causal and of supervised tokens.

PaliGemma's is BOS prefix "\n" suffix EOS behind the images:

    train   [BOS p p \n s s EOS 0 0]      mask_ar   [0 0 0 0 1 1 1 1 1]
                                          mask_loss [0 0 0 0 1 1 1 0 0]
    eval    [BOS p p \n 0 0 0 0]          mask_input[1 1 1 1 0 0 0 0]

LLaVA's has text before the images, marked by -1, and any number of turns:

    train   [BOS l l q q s EOS q q s EOS] mask_ar   [-1 -1 -1 0 0 1 1 1 1 1 1]
                                          mask_loss [ 0  0  0 0 0 1 1 0 0 1 1]

Without images, the text that is read before them is part of the first question: LLaVA tokenizes it
as a whole.

    train   [BOS l q q s EOS q q s EOS]   mask_ar   [ 0  0  0 0 1 1 1 1 1 1]
                                          mask_loss [ 0  0  0 0 1 1 0 0 1 1]

Source: big_vision `configs/proj/paligemma/transfers/common.py` (combine_and_keep_{train,eval});
haotian-liu/LLaVA `llava/train/train.py` (preprocess_v1, preprocess_plain).
"""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from model.prompt.registry import PALIGEMMA, prompt_template
from model.prompt.template import BEFORE_IMAGES, PromptTemplate
from model.text.tokenizer import Tokenizer

Turn = tuple[str, str]
"""A question and its answer."""


@dataclasses.dataclass(frozen=True)
class TextRow:
    """One row for training, one token longer than what the model sees."""

    text: Int[np.ndarray, " T1"]
    mask_ar: Int[np.ndarray, " T1"]
    mask_loss: Int[np.ndarray, " T1"]


def train_row(
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    text_len: int,
    *,
    prompt: str = PALIGEMMA,
    has_images: bool = True,
) -> TextRow:
    """Returns a row of text_len + 1 tokens; longer texts are cut, so EOS may be lost.

    Args:
      tokenizer: the tokenizer.
      turns: prefix and suffix of an example, and of its later turns.
      text_len: number of tokens that the model reads.
      prompt: name of the prompt template.
      has_images: whether the example has images; else it is text alone.
    """
    template = prompt_template(prompt)
    if not has_images:
        template = template.without_images
    ids = _lead_ids(tokenizer, template)
    steps = [0 if template.lead is None else BEFORE_IMAGES] * len(ids)
    num_lead, learned = len(ids), [0] * len(ids)
    for number, (question, answer) in enumerate(turns):
        read = _question_ids(tokenizer, template, question, number)
        written = _answer_ids(tokenizer, template, (question, answer), number, len(read))
        ids += read + written
        # What comes after an answer is causal, as the answer itself is.
        steps += [min(number, 1)] * len(read) + [1] * len(written)
        learned += [0] * len(read) + [1] * len(written)
    # The token behind the images is predicted by the last of them, whose output nothing reads. Only
    # in a template without questions is it one to learn.
    if template.lead is not None and len(learned) > num_lead:
        learned[num_lead] = 0
    return TextRow(
        text=_fit_length(ids, text_len + 1, tokenizer.pad_id),
        mask_ar=_fit_length(steps, text_len + 1, 1),
        mask_loss=_fit_length(learned, text_len + 1, 0),
    )


def fit_words(
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    text_len: int,
    rng: np.random.Generator,
    *,
    prompt: str = PALIGEMMA,
) -> str:
    """Returns a suffix that fits: words of a longer one are dropped at random, the others kept.

    Text that is read off a picture stays in raster order and ends with EOS (PaliGemma,
    arXiv:2407.07726, section 3.2.5: "ocr").
    """
    # EOS takes one of text_len + 1 tokens.
    room = text_len - len(prefix_ids(tokenizer, prefix, prompt))
    if len(tokenizer.encode(suffix)) <= room:
        return suffix
    words = suffix.split(" ")
    order = rng.permutation(len(words))

    def text_without(num_dropped: int) -> str:
        return " ".join(words[i] for i in sorted(order[num_dropped:]))

    # Fewer words are fewer tokens, so the fewest drops that fit can be found by bisection.
    fewest = bisect.bisect_left(
        range(len(words)),
        True,
        key=lambda dropped: len(tokenizer.encode(text_without(dropped))) <= room,
    )
    return text_without(fewest)


def eval_row(
    tokenizer: Tokenizer, prefix: str, text_len: int, *, prompt: str = PALIGEMMA
) -> dict[str, Int[np.ndarray, " T"]]:
    """Returns the fields of a `vlm.Prompt` of text_len tokens, one row of each.

    A prefix that is too long is cut; a template that closes a question keeps its closing.

    Raises:
      ValueError: if the template has no questions, or `text_len` has no room for one.
    """
    template = prompt_template(prompt)
    if not template.reads_question:
        raise ValueError(f"prompt {prompt} has no question, so nothing can be answered with it.")
    read = prefix_ids(tokenizer, prefix, prompt)
    if len(read) > text_len and template.closing is not None:
        closing = len(read) - len(prefix_ids(tokenizer, prefix, prompt, is_open=True))
        if closing + len(prefix_ids(tokenizer, "", prompt, is_open=True)) >= text_len:
            raise ValueError(
                f"text_len (eval_text_len) must leave room for a question in prompt {prompt}, got "
                f"{text_len}."
            )
        read = read[: text_len - closing] + read[len(read) - closing :]
    row = {
        "text": _fit_length(read, text_len, tokenizer.pad_id),
        "mask_input": _fit_length([1] * len(read), text_len, 0),
    }
    if template.lead is not None:
        lead = [BEFORE_IMAGES] * len(_lead_ids(tokenizer, template))
        row["mask_ar"] = _fit_length(lead, text_len, 0)
    return row


def prefix_ids(
    tokenizer: Tokenizer, prefix: str, prompt: str = PALIGEMMA, *, is_open: bool = False
) -> list[int]:
    """Returns the tokens before an answer; `is_open` leaves out what closes the question."""
    template = prompt_template(prompt)
    if is_open:
        template = dataclasses.replace(template, closing="")
    lead = _lead_ids(tokenizer, template)
    return lead + _question_ids(tokenizer, template, prefix, 0)


def answer_text(tokenizer: Tokenizer, ids: Sequence[int], prompt: str = PALIGEMMA) -> str:
    """Returns the text of an answer's tokens, without the template's gap before it."""
    text, template = tokenizer.decode(ids), prompt_template(prompt)
    # LLaVA strips both ends: `llava/eval/model_vqa_loader.py`.
    return text.strip() if template.gap else text


def _lead_ids(tokenizer: Tokenizer, template: PromptTemplate) -> list[int]:
    """Returns the tokens before the images, or BOS where there are none."""
    return [tokenizer.bos_id, *tokenizer.encode(template.lead or "")]


def _question_ids(
    tokenizer: Tokenizer, template: PromptTemplate, question: str, number: int
) -> list[int]:
    ids = tokenizer.encode(_question_text(template, question, number))
    return [*ids, tokenizer.newline_id] if template.closing is None else ids


def _answer_ids(
    tokenizer: Tokenizer, template: PromptTemplate, turn: Turn, number: int, num_read: int
) -> list[int]:
    """Returns the tokens of an answer and what ends it; its question has `num_read` of them."""
    question, answer = turn
    end = [tokenizer.eos_id] if template.end is None else []
    written = f"{template.gap}{answer}{template.end or ''}"
    if template.closing is None:
        return [*tokenizer.encode(written), *end]
    # Tokenized with its question, as a space belongs to the word behind it; what is not the
    # question's is the answer's.
    whole = tokenizer.encode(_question_text(template, question, number) + written)
    return [*whole[num_read:], *end]


def _question_text(template: PromptTemplate, question: str, number: int) -> str:
    start = template.again if number else template.opening
    return f"{start}{question if template.reads_question else ''}{template.closing or ''}"


def _fit_length(values: list[int], length: int, fill: int) -> Int[np.ndarray, " T"]:
    row = np.full(length, fill, np.int32)
    cut_values = values[:length]
    row[: len(cut_values)] = cut_values
    return row
