import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.train.config import TrainConfig
from model.train.optimizer import (
    adam_direction,
    apply_update,
    clip_by_global_norm,
    init_moments,
    schedule,
    split_frozen,
)

PARAMS = {
    "vision/dense/kernel": jnp.arange(6.0).reshape(2, 3),
    "text/embedding": jnp.linspace(-1.0, 1.0, 5),
}


def test_schedules():
    cosine = TrainConfig(total_steps=100, warmup=0.1, schedule="cosine")
    assert [schedule(cosine, s) for s in (0, 5, 10)] == [0.0, 0.5, 1.0]
    assert schedule(cosine, 55) == pytest.approx(0.5)
    assert schedule(cosine, 99) == pytest.approx(0.0, abs=1e-3)
    rsqrt = TrainConfig(total_steps=20_000, warmup=0.0, schedule="rsqrt")
    assert schedule(rsqrt, 0) == 1.0
    assert schedule(rsqrt, 10_000) == pytest.approx(0.5**0.5)
    assert schedule(TrainConfig(schedule="constant", warmup=0.0), 73) == 1.0


def test_without_decay_it_is_optax_adam_after_clipping():
    reference = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01, b2=0.97))
    ours, theirs = PARAMS, PARAMS
    moments, state = init_moments(PARAMS), reference.init(PARAMS)
    for scale in (0.1, 3.0, -0.7):
        gradients = {path: scale * value + 0.03 for path, value in PARAMS.items()}
        direction, moments = adam_direction(clip_by_global_norm(gradients, 0.5), moments, 0.97)
        ours = apply_update(ours, direction, jnp.float32(0.01), jnp.float32(0.0))
        with jax.numpy_dtype_promotion("standard"):
            updates, state = reference.update(gradients, state, theirs)
            theirs = optax.apply_updates(theirs, updates)
    for path in PARAMS:
        np.testing.assert_allclose(ours[path], theirs[path], rtol=1e-5)


def test_only_kernels_decay_and_not_by_the_learning_rate():
    still = {path: jnp.zeros_like(value) for path, value in PARAMS.items()}
    after = apply_update(PARAMS, still, jnp.float32(0.01), jnp.float32(0.1))
    np.testing.assert_allclose(after["vision/dense/kernel"], 0.9 * PARAMS["vision/dense/kernel"])
    np.testing.assert_array_equal(after["text/embedding"], PARAMS["text/embedding"])


def test_freezing_takes_the_vision_tower_out():
    trained, frozen = split_frozen(PARAMS, TrainConfig(freeze_vision=True))
    assert set(trained) == {"text/embedding"}
    assert set(frozen) == {"vision/dense/kernel"}
    assert split_frozen(PARAMS, TrainConfig())[1] == {}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("warmup", 1.5, r"warmup must be a fraction of total steps in \[0, 1\), got 1.5"),
        ("schedule", "linear", "schedule must be one of rsqrt, cosine, constant, got 'linear'"),
        ("sampling", "all", "sampling must be one of without_replacement, choice, uniform, got"),
        ("dropout", 1.0, r"dropout must be in \[0, 1\), got 1.0"),
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("budgets", (), "budgets must be a list"),
        ("mixture", (("a", 1.0), ("a", 2.0)), "mixture must be without repeated parts"),
    ],
)
def test_bad_configuration_names_field_and_value(field: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{field: value})
