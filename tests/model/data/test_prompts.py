"""Rows of prompt templates, LLaVA's against its published preprocessing."""

import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from model.data.text import answer_text, eval_row, prefix_ids, train_row
from model.prompt.registry import PROMPTS
from model.prompt.template import BEFORE_IMAGES
from model.text.tokenizer import Tokenizer
from tests.model.text.vocabularies import write_llama

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
TEXTS = [SYSTEM, "USER: what is it? ASSISTANT: a red circle", "is the cup blue? yes, it is"]
CONVERSATIONS = [
    [("what is it?", "a red circle")],
    [("is the cup blue?", "yes"), ("Why?\n", "it is, it is"), ("USER:", "  no\n")],
    [("", "")],
]
IMAGE, IGNORED = -200, -100


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "tokenizer.model", TEXTS * 3)


class Published:
    """LLaVA's `tokenizer_image_token` and `preprocess_v1`, with the tokenizer that they had.

    That is transformers' `LlamaTokenizer` of 2023: BOS, then every stretch between special tokens
    as a text of its own.
    """

    def __init__(self, path: Path) -> None:
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def tokens(self, text: str) -> list[int]:
        ids = [1]
        for part in re.split("(</s>)", text):
            ids += [2] if part == "</s>" else self.model.encode(part) if part else []
        return ids

    def with_image(self, text: str) -> list[int]:
        first, *others = (self.tokens(part) for part in text.split("<image>"))
        return first + [token for other in others for token in [IMAGE, *other[1:]]]

    def row(
        self, turns: list[tuple[str, str]], mark: str = "<image>\n"
    ) -> tuple[list[int], list[int]]:
        words = [
            f"USER: {'' if n else mark}{q} ASSISTANT: {a}</s>" for n, (q, a) in enumerate(turns)
        ]
        rounds = f"{SYSTEM} {''.join(words)}".split("</s>")
        ids = self.with_image("</s>".join(rounds))
        targets, done = list(ids), 1
        targets[0] = IGNORED
        for one in rounds[:-1]:
            instruction = one.split(" ASSISTANT: ")[0] + " ASSISTANT: "
            length = len(self.with_image(instruction)) - 2
            targets[done : done + length] = [IGNORED] * length
            done += len(self.with_image(one))
        assert done == len(ids)
        return ids, targets


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_a_row_is_that_of_llava(llama: Path, turns: list[tuple[str, str]]):
    ids, targets = Published(llama).row(turns)
    place = ids.index(IMAGE)
    row = train_row(Tokenizer(llama), turns, 400, prompt="llava")
    num = len(ids) - 1
    assert row.text[:num].tolist() == ids[:place] + ids[place + 1 :]
    learned = [target != IGNORED for target in targets]
    assert row.mask_loss[:num].tolist() == learned[:place] + learned[place + 1 :]
    assert not row.mask_loss[num:].any()
    assert (row.mask_ar == BEFORE_IMAGES).nonzero()[0].tolist() == [*range(place)]
    # A question is asked as it was learned.
    tokenizer = Tokenizer(llama)
    asked = prefix_ids(tokenizer, turns[0][0], "llava")
    assert row.text[: len(asked)].tolist() == asked
    assert row.mask_loss[: len(asked) + 1].tolist() == [0] * len(asked) + [1]


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_a_row_of_text_alone_is_that_of_llava(llama: Path, turns: list[tuple[str, str]]):
    ids, targets = Published(llama).row(turns, mark="")
    row = train_row(Tokenizer(llama), turns, 400, prompt="llava", has_images=False)
    num = len(ids)
    assert row.text.tolist() == ids + [0] * (401 - num)
    assert row.mask_loss.tolist() == [t != IGNORED for t in targets] + [0] * (401 - num)
    assert not (row.mask_ar == BEFORE_IMAGES).any()


def test_a_long_question_keeps_what_asks_for_the_answer(llama: Path):
    tokenizer = Tokenizer(llama)
    whole = prefix_ids(tokenizer, "is it red? " * 9, "llava")
    closing = len(whole) - len(prefix_ids(tokenizer, "is it red? " * 9, "llava", is_open=True))
    row = eval_row(tokenizer, "is it red? " * 9, len(whole) - 5, prompt="llava")
    assert row["text"].tolist() == whole[: -closing - 5] + whole[-closing:]
    assert row["mask_input"].all()
    shorter = eval_row(tokenizer, "red?", len(whole), prompt="llava")
    assert shorter["mask_input"].sum() == len(prefix_ids(tokenizer, "red?", "llava"))
    with pytest.raises(ValueError, match=r"text_len .* prompt ll"):
        eval_row(tokenizer, "is it red? " * 9, 20, prompt="llava")


def test_an_answers_text_has_no_space_around_it(llama: Path):
    tokenizer = Tokenizer(llama)
    (_, answer), *_ = turns = CONVERSATIONS[0]
    row = train_row(tokenizer, turns, 400, prompt="llava")
    assert answer_text(tokenizer, row.text[row.mask_loss > 0].tolist(), "llava") == answer
    plain = [*tokenizer.encode("red "), tokenizer.eos_id]
    assert answer_text(tokenizer, plain, "paligemma") == "red "


def test_captions_alone_follow_the_images(llama: Path):
    tokenizer = Tokenizer(llama)
    row = train_row(tokenizer, [("describe it", "a red cup")], 40, prompt="llava-plain")
    caption = Published(llama).model.encode("a red cup\n")
    num = 1 + len(caption)
    assert row.text[:num].tolist() == [1, *caption]
    assert row.mask_ar[:num].tolist() == [BEFORE_IMAGES] + [1] * len(caption)
    # The first token is predicted by the last image token, whose output is not there to learn from.
    assert row.mask_loss.tolist() == [0, 0] + [1] * (len(caption) - 1) + [0] * (41 - num)
    with pytest.raises(ValueError, match="prompt llava-plain has no question"):
        eval_row(tokenizer, "describe it", 40, prompt="llava-plain")


def test_later_turns_of_paligemma_are_causal_and_their_answers_learned(llama: Path):
    tokenizer = Tokenizer(llama)
    row = train_row(tokenizer, [("is it?", "yes"), ("why?", "red")], 60)
    first, second = (
        [*tokenizer.encode(question), tokenizer.newline_id, *tokenizer.encode(answer), 2]
        for question, answer in (("is it?", "yes"), ("why?", "red"))
    )
    read = 2 + len(tokenizer.encode("is it?"))
    num = 1 + len(first) + len(second)
    assert row.text[:num].tolist() == [1, *first, *second]
    assert row.mask_ar.tolist() == [0] * read + [1] * (61 - read)
    answers = {num: len(tokenizer.encode(text)) + 1 for num, text in enumerate(("yes", "red"))}
    assert row.mask_loss.sum() == sum(answers.values())
    assert not row.mask_loss[:read].any()
    assert np.all(row.mask_loss[num - answers[1] : num])


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"prompt .*paligemma, llava, llava-plain, go"):
        prefix_ids(None, "", "vicuna")  # type: ignore[arg-type]
    assert not PROMPTS["paligemma"].causal
