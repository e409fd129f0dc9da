"""Several devices: what is checked before a program is made, what is summed where, and parts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOUR_DEVICES = """
import dataclasses
import functools
import sys
import jax
import numpy as np
jax.config.update("jax_disable_most_optimizations", True)
from model import sharding, vlm
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from model.train.start import starting_params
from model.train.packing import packed_batch
from model.train.step import (
    LENGTH, Rates, StepPrograms, _step, abstract_inputs, abstract_state, are_finite, dropout_key,
    loss_weights, make_state,
)
from tests.model.tiny_model import tiny_model

sharding._MIN_BYTES = 256
sharding._MOST_PADDING = 100
assert jax.device_count() == 4
model = tiny_model("parcel", (30, 64))

# A batch that they do not divide is refused before data are read or anything is compiled.
paths = StagePaths(data="none", tokenizer="none", scratch="none", out="none")
for size, near in {10: "8 or 12", 3: "4"}.items():
    try:
        next(fit(model, TrainConfig(batch_size=size), paths, Seeds.of(0)))
        raise AssertionError(size)
    except ValueError as error:
        message = (
            f"batch_size must be a multiple of the 4 devices that train together, got {size}; "
            f"take {near}, or fewer devices."
        )
        assert str(error) == message, error

# Gradients of scales and biases are summed over devices once for all layers.
scanned = dataclasses.replace(model, scan_layers=True, remat="full")
train = TrainConfig(batch_size=8, text_len=6)
mesh = sharding.make_mesh()
batch, rates = abstract_inputs(scanned, train, mesh, 1)
step = functools.partial(_step, model=scanned, train=train, mesh=mesh)
with jax.numpy_dtype_promotion("standard"):
    traced = jax.make_jaxpr(step)(
        abstract_state(scanned, train, mesh), batch, vlm.Slots(64, 64), rates
    )

def sums(jaxpr, in_loop=False):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name.startswith("psum"):
            yield from ((in_loop, var.aval.shape) for var in eqn.invars)
        loop = in_loop or eqn.primitive.name in ("scan", "while")
        for inner in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from sums(inner, loop)

found = set(sums(traced.jaxpr))
assert not [shape for in_loop, shape in found if in_loop and len(shape) == 1], found
depth, width = scanned.text.depth, scanned.text.width
assert (False, (depth, width)) in found, found

# A batch in parts gives the same update, from the same rows, with the same elements dropped.
rng = np.random.default_rng(0)
wanted = (np.arange(7) >= rng.integers(1, 7, (8, 1))).astype(np.int32)
batch = {
    "image": rng.integers(0, 255, (8, 1, 32, 32, 3), dtype=np.uint8),
    "text": rng.integers(3, 1400, (8, 7), dtype=np.int32),
    "mask_ar": wanted,
    "mask_loss": wanted * (np.arange(7) < rng.integers(3, 8, (8, 1))).astype(np.int32),
}
results = []
for microbatch, pack in ((None, None), (1, None), (None, 5), (1, 6)):
    train = TrainConfig(batch_size=8, text_len=6, dropout=0.2, microbatch=microbatch, pack=pack)
    rows = microbatch or 2
    given = packed_batch(batch, 8 // rows, rows * pack) if pack else batch
    assert (LENGTH in given) == (pack is not None)
    state = make_state(model, starting_params(model, None, 0), train, mesh)
    rates = Rates(learning=1e-2, decay=0.0, dropout_key=dropout_key(train, 0, 0))
    state, metrics = StepPrograms(model, train, mesh)(state, given, 30, rates)
    assert bool(are_finite(state.trained, mesh))
    results.append([metrics.loss, *metrics.norms.values()])
for other in results[1:]:
    np.testing.assert_allclose(other, results[0], rtol=2e-6)

# Fewer targets than devices, by tokens: the mean over devices is that over the targets.
wanted = np.zeros((8, 3))
wanted[0, :2] = wanted[5, 1] = 1
losses = np.arange(24.0).reshape(8, 3)

def weighed(mask, losses):
    return sharding.mean_of_rows((loss_weights(mask, "tokens") * losses).sum())

rows = jax.P(mesh.axis_names)
mean = jax.jit(jax.shard_map(weighed, mesh=mesh, in_specs=rows, out_specs=jax.P()))
np.testing.assert_allclose(mean(wanted, losses), losses[wanted > 0].mean(), rtol=1e-6)

path = "text/blocks/gate"
broken = {**state.trained, path: state.trained[path].at[0, 0, 0].set(np.nan)}
assert not bool(are_finite(broken, mesh))
"""


@pytest.mark.slow
def test_four_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", FOUR_DEVICES], env=environment, cwd=root)
    assert done.returncode == 0
