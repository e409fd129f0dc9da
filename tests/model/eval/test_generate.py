"""Decoding with a cache equals reading everything anew for each token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.config import ModelConfig
from model.eval.generate import Sampling, choose, generate
from tests.model.tiny_models import TEXT, batch, init_params, text_logits, tiny_config

NUM_NEW = 5
LENGTHS = np.array([3, 7])


def _prompts() -> tuple[np.ndarray, np.ndarray]:
    is_real = np.arange(8)[None] < LENGTHS[:, None]
    return np.where(is_real, batch().text[:, :8] + 3, 0) % TEXT.vocab_size, is_real


def _recomputed(cfg: ModelConfig, params: vlm.Params, bucket: int, budget: int) -> np.ndarray:
    """Returns greedy tokens from full passes over images, prompt and all tokens so far."""
    text, slots = np.zeros((2, 8 + NUM_NEW), np.int32), np.arange(8 + NUM_NEW)[None]
    text[:, :8] = _prompts()[0]
    mask_ar = (slots >= LENGTHS[:, None]).astype(np.int32)
    for step in range(NUM_NEW):
        lengths = LENGTHS[:, None] + step
        logits = text_logits(
            vlm.structure(cfg), params, batch().images, text, mask_ar, slots < lengths,
            bucket=bucket, budget=budget,
        )  # fmt: skip
        picked = np.argmax(np.take_along_axis(logits, lengths[..., None] - 1, axis=1), axis=-1)
        np.put_along_axis(text, lengths, picked, axis=1)
    return np.take_along_axis(text, LENGTHS[:, None] + np.arange(NUM_NEW)[None], axis=1)


def _generate(cfg: ModelConfig, params: vlm.Params, bucket: int, budget: int, **options):
    prompts, is_real = _prompts()
    options = {"max_new_tokens": NUM_NEW, "stop": None, **options}
    return np.asarray(
        generate(
            vlm.structure(cfg), params, batch().images, prompts, np.zeros_like(prompts), is_real,
            bucket=bucket, budget=budget, **options,
        )
    )  # fmt: skip


@pytest.mark.parametrize("window", [pytest.param(0, marks=pytest.mark.slow), 6])
@pytest.mark.parametrize("scanned", [pytest.param(True, marks=pytest.mark.slow), False])
def test_cached_tokens_equal_recomputed_ones(scanned: bool, window: int):
    text = dataclasses.replace(TEXT, sliding_window=window)
    cfg = tiny_config("parcel", scan_layers=scanned, text=text)
    params = init_params(cfg, 4)
    expected = _recomputed(cfg, params, 22, 18)
    np.testing.assert_array_equal(_generate(cfg, params, 22, 18), expected)


@pytest.mark.slow
def test_stops_and_pads_after_the_stop_token():
    cfg = tiny_config("m3")
    params = init_params(cfg, 4)
    free = _generate(cfg, params, 4, 4)
    stop = int(free[0, 1])
    stopped = _generate(cfg, params, 4, 4, stop=stop)
    for row, whole in zip(stopped, free, strict=True):
        end = list(whole).index(stop) + 1 if stop in whole else NUM_NEW
        np.testing.assert_array_equal(row[:end], whole[:end])
        assert np.all(row[end:] == 0)
    filler = _generate(cfg, params, 4, 4, real=jnp.array([True, False]))
    np.testing.assert_array_equal(filler[0], free[0])
    assert np.all(filler[1] == 0)


def test_nucleus_draws_only_the_likeliest_tokens():
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
    sampling = Sampling(temperature=1.0, top_p=0.7)
    drawn = {int(choose(logits, sampling, jax.random.key(i))[0]) for i in range(40)}
    assert drawn == {0, 1}
    with pytest.raises(ValueError, match=r"top_p must be in \(0, 1\], got 0"):
        Sampling(top_p=0)
