"""A loaded checkpoint answers at any budget, with one program per bucket."""

from pathlib import Path

import jax
import numpy as np
import pytest

from model import vlm
from model.checkpoint.folder import save_checkpoint
from model.data.text import eval_row
from model.decode.config import Decoding
from model.decode.decoding import decode_tokens
from model.decode.predict import Predictor
from model.text.tokenizer import Tokenizer
from model.vision.tower import Tower
from tests.model.tiny_data import write_tokenizer
from tests.model.tiny_model import tiny_model

MODEL = tiny_model("parcel", (30, 64))
IMAGES = np.random.default_rng(0).integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
PROMPT = "which color?"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predictor")
    params = jax.tree.map(np.asarray, vlm.init_params(MODEL, 2))
    pieces = write_tokenizer(folder / "pieces.model")
    save_checkpoint(folder, model=MODEL, params=params, tokenizer=pieces, mask_codec=None)
    return folder


@pytest.mark.slow
def test_budgets_of_a_bucket_share_a_program_and_equal_the_exact_one(checkpoint: Path):
    predictor = Predictor(checkpoint)
    tokenizer = Tokenizer(checkpoint / "tokenizer.model")
    text, real = eval_row(tokenizer, PROMPT, 16).values()
    for budget in (16, 22, 30):
        answer = predictor.answer(IMAGES, PROMPT, budget=budget, max_tokens=5)
        assert (answer.bucket, predictor.num_programs) == (30, 1)
        assert (answer.seconds["compile"] > 1e-2) == (budget == 16)
        exact = decode_tokens(
            vlm.structure(MODEL),
            vlm.init_params(MODEL, 2),
            vlm.Prompt(IMAGES[None], text[None], real[None]),
            vlm.Slots(budget, budget),
            max_new_tokens=5,
            stop=tokenizer.eos_id,
            decoding=Decoding(),
        )
        assert list(answer.tokens) == np.asarray(exact)[0, : len(answer.tokens)].tolist()
    other = predictor.answer(IMAGES, PROMPT, budget=32, max_tokens=5)
    assert (other.bucket, predictor.num_programs) == (64, 2)


@pytest.mark.slow
def test_seeds_share_a_program_and_draw_otherwise(checkpoint: Path):
    predictor = Predictor(checkpoint)
    answers = [
        predictor.answer(
            IMAGES,
            PROMPT,
            budget=16,
            max_tokens=5,
            decoding=Decoding(temperature=9.0, seed=seed),
        )
        for seed in (1, 2, 1)
    ]
    assert predictor.num_programs == 1
    assert answers[0].tokens == answers[2].tokens != answers[1].tokens


@pytest.mark.slow
def test_what_was_seen_is_not_looked_at_again(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    predictor, how = Predictor(checkpoint), {"budget": 16, "max_tokens": 5}
    looked = predictor.answer(IMAGES, PROMPT, **how)
    seen = predictor.encode_images(IMAGES)
    monkeypatch.delattr(Tower, "__call__")
    assert predictor.answer(seen, PROMPT, **how).tokens == looked.tokens


@pytest.mark.slow
def test_prompts_of_about_one_length_share_a_program_and_long_ones_are_not_cut(checkpoint: Path):
    predictor = Predictor(checkpoint)
    how = {"budget": 16, "max_tokens": 2}
    for prompt in ("red", "green", PROMPT):
        predictor.answer(IMAGES[:1], prompt, **how)
    assert predictor.num_programs == 1
    longer = [predictor.answer(IMAGES[:1], PROMPT * 9 + end, **how).tokens for end in ("red", "!")]
    assert predictor.num_programs <= 3
    assert all(len(tokens) for tokens in longer)


def test_errors_name_what_is_missing(checkpoint: Path):
    with pytest.raises(ValueError, match=r"tokenizer .*SentencePiece.*got nowhere"):
        Predictor(checkpoint, tokenizer="nowhere")
    predictor = Predictor(checkpoint)
    with pytest.raises(ValueError, match=r"budget .*16, 18.*got 15"):
        predictor.answer(IMAGES, PROMPT, budget=15)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        predictor.answer(IMAGES, PROMPT, budget=16, max_tokens=0)
