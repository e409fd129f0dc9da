from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.text.tokenizer import Tokenizer, train_tokenizer

TEXTS = [
    f"What is the color of the {size} bar? {color} answer en"
    for size in ("tallest", "shortest", "leftmost")
    for color in ("red", "blue", "green")
] * 7


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer(TEXTS, str(out), 340)
    return out


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(path)


def test_same_texts_give_the_same_file(path: Path, tmp_path: Path):
    again = tmp_path / "again.model"
    train_tokenizer(iter(TEXTS), str(again), 340)
    assert again.read_bytes() == path.read_bytes()


def test_special_ids_and_extra_tokens(tokenizer: Tokenizer):
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, 2)
    assert tokenizer.encode("\n") == [tokenizer.newline_id]
    first, last = tokenizer.num_pieces, tokenizer.num_pieces + 1024 + 128 - 1
    assert tokenizer.encode("<loc0000><seg127>") == [first, last]
    assert tokenizer.encode("<loc1023><seg000>") == [first + 1023, first + 1024]
    assert tokenizer.vocab_size == last + 1


def test_words_of_the_corpus_are_short(tokenizer: Tokenizer):
    assert len(tokenizer.encode("What is the color of the tallest bar?")) < 16


@pytest.mark.parametrize("text", ["", " x  y ", "日本 ✓", "a\tb\r\nc", "<loc0001><seg002> a ; b"])
def test_any_text_survives(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0▁"), max_size=12))
@settings(max_examples=60)
def test_random_text_survives(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_stops_at_eos(tokenizer: Tokenizer):
    ids = [2, *tokenizer.encode("red"), 1, *tokenizer.encode("blue"), 0]
    assert tokenizer.decode(ids) == "red"


def test_vocabulary_without_room_for_bytes_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="vocab_size must be at least 300"):
        train_tokenizer(TEXTS, str(tmp_path / "x"), 200)
