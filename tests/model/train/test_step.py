"""Programs, budgets and the sharded step."""

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from model.connector import budgets
from model.train.config import TrainConfig
from model.train.sharding import spec_of
from model.train.step import (
    Rates,
    batch_loss,
    declared_buckets,
    dropout_key,
    step_programs,
)
from tests.model.tiny_model import tiny_model


def test_budgets_are_drawn_from_seed_and_step():
    model = tiny_model("parcel", (30, 64))
    drawn = [budgets.draw_budget(model, 3, step) for step in range(80)]
    assert drawn == [budgets.draw_budget(model, 3, step) for step in range(80)]
    assert set(drawn) <= set(range(16, 65, 2))
    assert len(set(drawn)) > 10
    assert {budgets.draw_budget(model, 3, step, (16, 64)) for step in range(40)} == {16, 64}


def test_declared_buckets_are_those_of_the_listed_budgets():
    model = tiny_model("mqt", (20, 40, 64))
    assert declared_buckets(model, TrainConfig()) == (20, 40, 64)
    assert declared_buckets(model, TrainConfig(budgets=(16, 2, 1024))) == (20,)


def test_undeclared_program_is_an_error():
    model, train = tiny_model("mqt", (20, 40, 64)), TrainConfig(budgets=(16,))
    with pytest.raises(ValueError, match=r"budget 64 needs a program for 64 .* declared: \[20\]"):
        step_programs(model, train)(None, {}, 64, None)  # type: ignore[arg-type]


def test_undeclared_number_of_images_is_an_error():
    rates, batch = Rates(learning=1e-3, decay=0.0), {"image": np.zeros((2, 4, 8, 8, 3), np.uint8)}
    programs = step_programs(tiny_model(), TrainConfig(), (1, 16))
    with pytest.raises(ValueError, match=r"image has 4 images per example, .*declared: \[1, 16\]"):
        programs(None, batch, 64, rates)  # type: ignore[arg-type]


def test_stages_that_differ_in_numbers_only_share_programs():
    model = tiny_model()
    one = step_programs(model, TrainConfig(total_steps=9, peak_lr=1e-4, schedule="rsqrt"))
    assert step_programs(model, TrainConfig(total_steps=3, weight_decay=0.1)) is one
    assert step_programs(model, TrainConfig(sampling="choice")) is one
    assert step_programs(model, TrainConfig(label_smoothing=0.1)) is not one


def test_dropout_is_drawn_from_seed_and_step_and_without_it_nothing_is():
    train = TrainConfig(dropout=0.1)
    drawn = {tuple(dropout_key(train, seed, step)) for seed in range(9) for step in range(99)}
    assert len(drawn) == 9 * 99
    assert tuple(dropout_key(train, 3, 7)) in drawn
    assert dropout_key(TrainConfig(), 3, 7) is None
    rates = Rates(learning=1e-3, decay=0.0)
    with pytest.raises(ValueError, match=r"dropout_key must be given .* train.dropout=0.1"):
        step_programs(tiny_model(), train)(None, {}, 64, rates)  # type: ignore[arg-type]
    assert step_programs(tiny_model(), train) is not step_programs(tiny_model(), TrainConfig())


def test_loss_is_a_mean_of_means():
    losses = jnp.asarray([[1.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = jnp.asarray([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert float(batch_loss(losses, mask)) == pytest.approx((2 + 5 + 0) / 3)


def test_large_parameters_are_split_along_their_largest_dimension():
    assert spec_of("text/embedding", (1000, 2048), 4, 4) == spec_of("x/w", (1000, 2048), 4, 4)
    assert tuple(spec_of("text/w", (1000, 2048), 4, 4)) == (None, "data")
    assert tuple(spec_of("text/w", (4096, 1023), 4, 4)) == ("data", None)
    assert tuple(spec_of("text/w", (4097, 1024), 4, 4)) == (None, "data")
    assert tuple(spec_of("text/w", (10, 12), 4, 4)) == ()
    assert tuple(spec_of("text/norm/scale", (8_000_000,), 4, 4)) == ()
    assert tuple(spec_of("text/w", (1000, 2048), 4, 1)) == ()


_FOUR_DEVICES = """
import sys
import jax, numpy as np
from model.train import sharding
from model.connector import budgets
from model.train.config import TrainConfig
from model.train.start import starting_params
from model.train.step import Rates, StepPrograms, dropout_key, make_state
from tests.model.tiny_model import tiny_model
sharding._MIN_BYTES = 256
assert len(jax.devices()) == 4
model, train = tiny_model(), TrainConfig(batch_size=8, text_len=6, dropout=0.1)
rng = np.random.default_rng(0)
text = rng.integers(3, 1400, (8, 7), dtype=np.int32)
ones = np.ones((8, 7), np.int32)
batch = {"image": rng.integers(0, 255, (8, 1, 32, 32, 3), dtype=np.uint8), "text": text,
         "mask_ar": ones, "mask_loss": ones}
found = []
for devices in (jax.devices()[:1], jax.devices()):
    mesh = sharding.make_mesh(devices)
    programs = StepPrograms(model, train, mesh)
    state = make_state(starting_params(model, None, 0), train, mesh)
    if mesh.size == 4:
        split = [p for p, v in state.trained.items() if not v.sharding.is_fully_replicated]
        assert any("embed" in p for p in split), split
    losses = []
    for step in range(3):
        rates = Rates(learning=1e-2, decay=0.0, dropout_key=dropout_key(train, 0, step))
        state, loss = programs(state, batch, 64, rates)
        losses.append(float(loss))
    found.append(losses)
np.testing.assert_allclose(found[0], found[1], rtol=2e-4)
assert found[0][2] < found[0][0]
"""


@pytest.mark.slow
def test_four_devices_equal_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", _FOUR_DEVICES], check=False, cwd=root)
    assert done.returncode == 0


def test_batch_must_divide_by_the_devices():
    from model.train.sharding import make_mesh, shard_batch

    mesh = make_mesh()
    assert shard_batch({"x": np.zeros((mesh.size * 3, 2))}, mesh)["x"].shape[0] == mesh.size * 3
