r"""Token rows, BOS prefix "\n" suffix EOS, with masks of causal and of supervised tokens.

    train   [BOS p p \n s s EOS 0 0]      mask_ar   [0 0 0 0 1 1 1 1 1]
                                          mask_loss [0 0 0 0 1 1 1 0 0]
    eval    [BOS p p \n 0 0 0 0]          mask_input[1 1 1 1 0 0 0 0]

Source: big_vision `configs/proj/paligemma/transfers/common.py` (combine_and_keep_{train,eval}).
"""

import bisect
import dataclasses

import numpy as np
from jaxtyping import Int

from model.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextRow:
    """One row for training, one token longer than what the model sees."""

    text: Int[np.ndarray, " T1"]
    mask_ar: Int[np.ndarray, " T1"]
    mask_loss: Int[np.ndarray, " T1"]


def train_row(tokenizer: Tokenizer, prefix: str, suffix: str, text_len: int) -> TextRow:
    """Returns a row of text_len + 1 tokens; longer texts are cut, so EOS may be lost."""
    prefix_tokens = prefix_ids(tokenizer, prefix)
    suffix_tokens = [*tokenizer.encode(suffix), tokenizer.eos_id]
    return TextRow(
        text=_fit_length([*prefix_tokens, *suffix_tokens], text_len + 1, tokenizer.pad_id),
        mask_ar=_fit_length([0] * len(prefix_tokens) + [1] * len(suffix_tokens), text_len + 1, 1),
        mask_loss=_fit_length([0] * len(prefix_tokens) + [1] * len(suffix_tokens), text_len + 1, 0),
    )


def fit_words(
    tokenizer: Tokenizer, prefix: str, suffix: str, text_len: int, rng: np.random.Generator
) -> str:
    """Returns a suffix that fits: words of a longer one are dropped at random, the others kept.

    Text that is read off a picture stays in raster order and ends with EOS (PaliGemma,
    arXiv:2407.07726, section 3.2.5: "ocr").
    """
    room = text_len - len(prefix_ids(tokenizer, prefix))  # EOS takes one of text_len + 1 tokens.
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
    tokenizer: Tokenizer, prefix: str, text_len: int
) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]:
    """Returns (text, mask_input) of text_len tokens; a prefix that is too long is cut."""
    read = prefix_ids(tokenizer, prefix)
    text = _fit_length(read, text_len, tokenizer.pad_id)
    return text, _fit_length([1] * len(read), text_len, 0)


def prefix_ids(tokenizer: Tokenizer, prefix: str) -> list[int]:
    """Returns BOS, the prefix and the separator."""
    return [tokenizer.bos_id, *tokenizer.encode(prefix), tokenizer.newline_id]


def _fit_length(values: list[int], length: int, fill: int) -> Int[np.ndarray, " T"]:
    row = np.full(length, fill, np.int32)
    cut_values = values[:length]
    row[: len(cut_values)] = cut_values
    return row
