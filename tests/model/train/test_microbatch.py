"""A batch that is computed in parts: sums of the parts, never means of means."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from infra.store.digest import identity_json
from model import vlm
from model.checkpoint.digest import flatten_params
from model.train.config import LossWeights, TrainConfig
from model.train.memory import FORMULA_SHARE, fitting_microbatch, step_bytes, with_microbatch
from model.train.step import backward, dropout_key
from tests.model.tiny_model import tiny_model

MODEL = tiny_model("parcel", (30, 64))


@pytest.mark.slow
@pytest.mark.parametrize(("microbatch", "equal"), [(4, "examples"), (2, "tokens")])
def test_parts_give_the_loss_and_gradient_of_the_whole_batch(microbatch: int, equal: LossWeights):
    rng = np.random.default_rng(0)
    # Rows of one to six targets, and one of none: means of parts would weigh them otherwise.
    begin = np.array([6, 1, 5, 2, 7, 3])[:, None]
    learned = (np.arange(7) >= begin).astype(np.int32)
    batch = {
        "image": rng.integers(0, 255, (6, 1, 32, 32, 3), dtype=np.uint8),
        "text": rng.integers(3, 1400, (6, 7), dtype=np.int32),
        "mask_ar": learned,
        "mask_loss": learned,
    }
    params = dict(flatten_params(vlm.init_params(MODEL, 0)))
    train = TrainConfig(
        batch_size=6, text_len=6, dropout=0.2, label_smoothing=0.1, loss_weights=equal
    )
    key, results = dropout_key(train, 0, 0), []
    for limit in (None, microbatch):
        config = dataclasses.replace(train, microbatch=limit)

        def derive(params, batch, key, config=config):
            return backward(params, {}, batch, vlm.Slots(30, 24), key, model=MODEL, train=config)

        results.append(jax.tree.map(np.asarray, jax.jit(derive)(params, batch, key)))
    (loss, gradients), (loss_of_parts, gradients_of_parts) = results
    np.testing.assert_allclose(loss_of_parts, loss, rtol=1e-6)
    norms = {path: np.linalg.norm(gradient) for path, gradient in gradients.items()}
    errors = {path: np.linalg.norm(gradients_of_parts[path] - g) for path, g in gradients.items()}
    whole = np.linalg.norm([*norms.values()])
    assert np.linalg.norm([*errors.values()]) <= 1e-6 * whole
    # A gradient that is much smaller than the whole has fewer digits: that of a key bias none.
    for path, error in errors.items():
        assert error <= 5e-6 * max(norms[path], 1e-2 * whole), path


def test_a_device_computes_equal_parts_of_at_most_the_limit():
    passes = {limit: TrainConfig(microbatch=limit).num_passes(12) for limit in (None, 16, 5, 4, 1)}
    assert passes == {None: 1, 16: 1, 5: 3, 4: 3, 1: 12}
    assert TrainConfig(microbatch=6).num_passes(7) == 7
    wrong: Any
    for wrong in (0, "all"):
        accepted = "microbatch must be at least 1, or null for the whole batch, or auto for"
        with pytest.raises(ValueError, match=f"{accepted} what fits, got {wrong!r}"):
            TrainConfig(microbatch=wrong)
    with pytest.raises(ValueError, match=r"microbatch .*got 'auto'"):
        TrainConfig(microbatch="auto").num_passes(12)


def test_parts_leave_the_identity_alone_and_take_less_memory():
    whole = TrainConfig(batch_size=256, text_len=128)
    parts = dataclasses.replace(whole, microbatch=8)
    assert identity_json(parts) == identity_json(whole)
    bytes_of_whole, bytes_of_parts = (
        step_bytes(MODEL, train, 64, devices=1) for train in (whole, parts)
    )
    assert bytes_of_parts < 0.5 * bytes_of_whole


def test_the_largest_part_that_fits_is_taken():
    train = TrainConfig(batch_size=24, text_len=16, microbatch="auto")
    needed = {
        rows: step_bytes(
            MODEL, dataclasses.replace(train, microbatch=rows), 64, num_images=2, devices=2
        )
        for rows in (12, 6, 4, 3, 2, 1)
    }
    assert sorted(needed.values(), reverse=True) == [*needed.values()]

    def fitting(memory_bytes: float) -> int | None:
        return fitting_microbatch(MODEL, train, memory_bytes, num_images=2, devices=2)

    for rows, memory_bytes in needed.items():
        assert fitting(1.0001 * memory_bytes / FORMULA_SHARE) == rows
        smaller = [other for other in needed if other < rows]
        assert fitting(0.9999 * memory_bytes / FORMULA_SHARE) == max(smaller, default=None)


def test_a_device_that_does_not_tell_its_memory_computes_all_rows():
    # CPUs do not.
    train = TrainConfig(batch_size=24, text_len=16, microbatch="auto")
    rows = 24 // jax.device_count()
    assert with_microbatch(MODEL, train, 1) == dataclasses.replace(train, microbatch=rows)
    stated = dataclasses.replace(train, microbatch=5)
    assert with_microbatch(MODEL, stated, 1) is stated
