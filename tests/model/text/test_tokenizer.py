import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.text.tokenizer import Tokenizer, train_tokenizer
from tests.model.text.vocabularies import write_gemma3, write_llama
from tests.torch_python import run_torch

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


@pytest.fixture(scope="module")
def kinds(path: Path, tmp_path_factory) -> dict[str, Tokenizer]:
    """A tokenizer of each kind of file."""
    folder = tmp_path_factory.mktemp("kinds")
    files = {
        "ours": path,
        "llama": write_llama(folder / "llama.model", TEXTS),
        "gemma3": write_gemma3(folder / "gemma3.model", TEXTS),
    }
    return {kind: Tokenizer(file) for kind, file in files.items()}


KINDS = ["ours", "llama", "gemma3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    ["", " x  y ", "日本 ✓", "a\tb\r\nc", "<loc0001><seg002> a ; b", "a <loc0001>  b<loc0002>c",
     "\n\n\n", " ", "<s></s><unk>", "<start_of_turn><b>"],
)  # fmt: skip
def test_any_text_survives(kinds: dict[str, Tokenizer], kind: str, text: str):
    assert kinds[kind].decode(kinds[kind].encode(text)) == text


_PARTS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0▁"), max_size=8),
    st.sampled_from(["<loc0003>", "<seg012>", "\n", " ", "red", "<0x0A>", "</s>"]),
)


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(_PARTS, max_size=5))
@settings(max_examples=60, deadline=None)
def test_random_text_survives(kinds: dict[str, Tokenizer], kind: str, parts: list[str]):
    text = "".join(parts)
    assert kinds[kind].decode(kinds[kind].encode(text)) == text


def test_ids_of_a_llama(kinds: dict[str, Tokenizer], tmp_path: Path):
    llama = kinds["llama"]
    assert (llama.pad_id, llama.bos_id, llama.eos_id) == (0, 1, 2)
    # Three special pieces, then the bytes.
    assert llama.newline_id == 3 + ord("\n")
    # A text begins with a space; what follows other text does not.
    assert llama.encode("red") != llama.encode("<loc0000>red")[1:]
    assert llama.encode(" red") != llama.encode("<loc0000> red")[1:] == llama.encode("red")
    ids = [1, *llama.encode("red"), 2, *llama.encode("blue"), 0]
    assert llama.decode(ids) == "red"


def test_ids_of_a_gemma3(kinds: dict[str, Tokenizer]):
    gemma3 = kinds["gemma3"]
    assert (gemma3.pad_id, gemma3.eos_id, gemma3.bos_id) == (0, 1, 2)
    assert gemma3.encode("\n") == [gemma3.newline_id]
    assert len(gemma3.encode("\n\n\n")) == 1


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is not None, reason="it is installed")
def test_a_missing_library_is_named(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(ValueError, match=r"pip install tokenizers\b"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.slow
def test_byte_level_pairs(tmp_path: Path):
    """In another interpreter, which has the library as a part of transformers."""
    root = Path(__file__).parents[3]
    done = json.loads(run_torch(root, "-m", "tests.model.text.byte_level", str(tmp_path)))
    assert done["texts"] == done["decoded"]
    assert len(done["texts"]) == 300
    assert done["ids"] == {"bos": 0, "eos": 1, "pad": 1, "newline": done["newline"]}
    assert done["extra"] == [done["size"], done["size"] + 1151]
    assert done["refused"] == ["must give every text back", "must have one of the tokens"]


def test_decoding_stops_at_eos(tokenizer: Tokenizer):
    ids = [2, *tokenizer.encode("red"), 1, *tokenizer.encode("blue"), 0]
    assert tokenizer.decode(ids) == "red"


def test_vocabulary_without_room_for_bytes_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="vocab_size must be at least 300"):
        train_tokenizer(TEXTS, str(tmp_path / "x"), 200)
