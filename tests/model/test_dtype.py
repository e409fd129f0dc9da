"""bfloat16 activations: the dtype they and the cache have, and how near float32 the losses are."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.config import Dtype, ModelConfig
from model.decode.generate import PromptState, generate, prefill
from tests.model.eval.recomputed import NUM_NEW, Case
from tests.model.tiny_models import batch, init_params, tiny_config, token_losses

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
SLOTS = vlm.Slots(22, 18)

TOKEN_TOLERANCE, MEAN_TOLERANCE = 0.05, 0.01
"""Losses are 4 to 5 [nats], and a bfloat16 step is 2^-8 of them, 0.02. The worst of six (m3 and
parcel, seeds 3 to 5) were 0.025 of one token and 0.0032 of the mean."""


def _config(dtype: Dtype, kind: str = "parcel", **changes: typing.Any) -> ModelConfig:
    return tiny_config(kind, dtype=dtype, **changes)


@pytest.mark.parametrize("scanned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_losses_are_near_those_of_float32(scanned: bool):
    params, data = init_params(_config("float32"), 3), batch()
    full, half = (
        np.asarray(
            token_losses(vlm.structure(_config(dtype, scan_layers=scanned)), params, data, SLOTS)
        )
        for dtype in DTYPES
    )
    assert half.dtype == np.float32  # The softmax over the vocabulary stays float32.
    assert 0 < np.abs(half - full).max() < TOKEN_TOLERANCE
    counted = data.mask_loss[:, 1:].sum()
    assert abs(half.sum() - full.sum()) / counted < MEAN_TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scanned", [False, True])
def test_cache_and_activations_have_the_dtype_of_the_configuration(dtype: Dtype, scanned: bool):
    cfg = _config(dtype, scan_layers=scanned)
    case = Case(cfg, vlm.abstract_params(cfg), 22, 18)

    def start(params: vlm.Params, prompt: vlm.Prompt, slots: vlm.Slots) -> PromptState:
        return prefill(vlm.merge(vlm.structure(cfg), params), prompt, slots)

    found = jax.eval_shape(start, case.params, case.prompt, SLOTS)
    assert (found.past.keys.dtype, found.past.values.dtype) == (dtype, dtype)
    assert found.logits.dtype == jnp.float32
    inputs = case.params, case.images
    soft = jax.eval_shape(functools.partial(vlm.soft_tokens, vlm.structure(cfg)), *inputs, SLOTS)
    assert soft[0].dtype == dtype
    features = jax.eval_shape(functools.partial(vlm.image_features, vlm.structure(cfg)), *inputs)
    assert features.dtype == dtype


@pytest.mark.slow
def test_bfloat16_decodes():
    cfg = _config("bfloat16")
    case = Case(cfg, init_params(cfg, 4), 22, 18)
    tokens = generate(*case.inputs, max_new_tokens=NUM_NEW, stop=None)
    assert tokens.shape == (3, NUM_NEW)
    # float32 takes the same first tokens: their margins are wide beside bfloat16's rounding.
    other = Case(_config("float32"), case.params, 22, 18)
    first = np.argmax(other.logits(np.zeros((3, 0), np.int32)), axis=-1)
    assert np.mean(np.asarray(tokens)[:, 0] == first) >= 2 / 3
