"""How weights are split, and that a step on several devices is the step on one."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from model.sharding import AXES, make_mesh, mesh_for, shard_batch, spec_of


def mesh_of(replica: int, fsdp: int) -> Mesh:
    """A mesh of devices that need not exist."""
    return AbstractMesh((replica, fsdp), AXES)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("path", "shape", "axis"),
    [
        ("text/blocks/query", (26, 2304, 2048), "fsdp"),  # 72 rows on each of 32
        ("text/embedding", (257_216, 2304), "fsdp"),  # 8,038: two of 8,040 are padding
        ("vision/blocks/mlp/up/kernel", (27, 1152, 4304), "replica"),  # 36 would take 40
        ("vision/blocks/mlp/down/kernel", (27, 4304, 1152), "replica"),  # not divisible by 32
        ("optimizer/1/mu/text/blocks/down", (26, 9216, 2304), "fsdp"),
        ("vision/blocks/mlp/up/bias", (27, 43_040_000), None),
        ("text/final_norm/scale", (8_000_000,), None),
        ("projector/kernel", (36, 2304), None),  # small
        ("x/kernel", (2303, 2304), None),
    ],
)
def test_rows_are_split_along_the_largest_axis_that_leaves_whole_tiles(path, shape, axis):
    spec = spec_of(path, shape, 4, mesh_of(8, 32))
    assert [a for a in spec if a] == ([axis] if axis else [])
    assert axis is None or spec[len(shape) - 2] == axis


def test_on_one_device_nothing_is_split():
    assert tuple(spec_of("text/embedding", (257_216, 2304), 4, mesh_of(1, 1))) == ()


def test_copies_must_divide_the_devices():
    with pytest.raises(ValueError, match=r"num_replicas .*\b1 devices, got 2"):
        make_mesh(jax.devices()[:1], num_replicas=2)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device of a slice that need not exist, with what JAX asks of one."""

    id: int
    slice_index: int
    coords: tuple[int, int, int] = (0, 0, 0)
    platform: str = "tpu"
    device_kind: str = "a chip without wires"  # That JAX knows no order of.
    core_on_chip: int = 0
    process_index: int = 0


def test_of_two_slices_each_holds_whole_copies():
    chips = [Chip(number, number // 6, (number % 2, number % 6 // 2, 0)) for number in range(12)]
    mesh = make_mesh(chips, num_replicas=4)
    assert mesh.devices.shape == (4, 3)
    assert [{chip.slice_index for chip in copy} for copy in mesh.devices] == [{0}, {0}, {1}, {1}]
    # 36 rows for each of 4 copies would do; but they would come from the other slice.
    assert spec_of("vision/up", (27, 32, 43_040), 4, mesh) == P()
    assert spec_of("vision/up", (27, 24, 43_040), 4, mesh)[1] == "fsdp"
    one = make_mesh(chips[:6], num_replicas=2)
    assert spec_of("vision/up", (27, 32, 43_040), 4, one)[1] == "replica"
    assert make_mesh(chips, num_replicas=1).devices.shape == (2, 6)
    assert make_mesh(chips, num_replicas=3).devices.shape == (6, 2)


def test_weights_whose_rows_do_not_divide_have_more_copies():
    chips = [Chip(number, 0, (number % 4, number // 4 % 4, number // 16)) for number in range(32)]
    wide = {"text/up": jax.ShapeDtypeStruct((2304, 9216), np.float32)}
    # 2304 rows are 72 on each of 32 chips. 1152 rows would be 36, and take the room of 40.
    assert mesh_for(wide, chips).devices.shape == (1, 32)
    assert mesh_for(wide, chips, least_replicas=4).devices.shape == (4, 8)
    narrow = {"vision/up": jax.ShapeDtypeStruct((1152, 9216), np.float32)}
    assert mesh_for(narrow, chips).devices.shape == (2, 16)
    assert mesh_for(wide | narrow, chips).devices.shape == (1, 32)  # Most numbers decide.
    # What is too small to be split decides nothing.
    small = {"text/up": jax.ShapeDtypeStruct((30, 20), np.float32)}
    assert mesh_for(small, chips, least_replicas=2).devices.shape == (2, 16)
    # A torus of 4 x 4 has no two equal parts of whole axes.
    square = [Chip(number, 0, (number % 4, number // 4, 0)) for number in range(16)]
    assert mesh_for(narrow, square, least_replicas=2).devices.shape == (4, 4)


class Unplaced:
    """A chip of one slice that is only compiled for: it knows no index of it."""

    id, coords, core_on_chip, process_index = 0, (0, 0, 0), 0, 0
    platform, device_kind = "tpu", "a chip without wires"


def test_chips_that_are_only_compiled_for_may_know_no_slice():
    assert make_mesh([Unplaced()]).devices.shape == (1, 1)


def test_a_copy_has_whole_axes_of_the_torus():
    chips = [Chip(number, 0, (number % 4, number // 4, 0)) for number in range(16)]
    assert make_mesh(chips, num_replicas=4).devices.shape == (4, 4)
    with pytest.raises(ValueError, match=r"one of 1, 4, 16 on these 16 TPUs, .* got 8"):
        make_mesh(chips, num_replicas=8)


def test_hosts_of_gpus_are_no_slices():
    gpus = [Chip(number, number // 4, platform="gpu") for number in range(8)]
    assert make_mesh(gpus).devices.shape == (1, 8)


def test_batch_is_split_by_rows():
    mesh = make_mesh()
    assert shard_batch({"x": np.zeros((mesh.size * 3, 2))}, mesh)["x"].shape[0] == mesh.size * 3


_FOUR_DEVICES = """
import dataclasses
import jax, numpy as np
from model import sharding
from model.train.config import TrainConfig
from model.train.start import starting_params
from model.train.step import Rates, StepPrograms, dropout_key, make_state
from tests.model.tiny_model import tiny_model
sharding._MIN_BYTES = 256
sharding._MOST_PADDING = 100
assert len(jax.devices()) == 4
rng = np.random.default_rng(0)
text = rng.integers(3, 1400, (8, 7), dtype=np.int32)
# Rows have other numbers of targets, as a batch does.
wanted = (np.arange(7) >= rng.integers(1, 7, (8, 1))).astype(np.int32)
batch = {"image": rng.integers(0, 255, (8, 1, 32, 32, 3), dtype=np.uint8), "text": text,
         "mask_ar": wanted, "mask_loss": wanted}

def steps(model, train, devices, num_replicas):
    mesh = sharding.make_mesh(devices, num_replicas=num_replicas)
    programs = StepPrograms(model, train, mesh)
    state = make_state(model, starting_params(model, None, 0), train, mesh)
    if mesh.size == 4:
        split = [p for p, v in state.trained.items() if not v.sharding.is_fully_replicated]
        assert {"text/embedding", "text/blocks/down"} <= set(split), split
    losses = []
    for step in range(3):
        rates = Rates(learning=1e-2, decay=1e-3, dropout_key=dropout_key(train, 0, step))
        state, told = programs(state, batch, 30, rates)
        losses.append(float(told.loss))
    return losses, jax.tree.map(np.asarray, state.optimizer)

model = tiny_model("parcel", (30, 64))
scanned = dataclasses.replace(model, scan_layers=True, remat="full", loss_chunk=2)
frozen = {"freeze_vision": True, "loss_weights": "tokens"}
for cfg, settings, replicas in [(scanned, {}, 2), (model, frozen, 1)]:
    train = TrainConfig(batch_size=8, text_len=6, dropout=0.1, **settings)
    one, moments = steps(cfg, train, jax.devices()[:1], 1)
    many, moments_of_parts = steps(cfg, train, jax.devices(), replicas)
    np.testing.assert_allclose(many, one, rtol=1e-6)
    assert one[2] < one[0]
    def near(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    jax.tree.map(near, moments_of_parts, moments)
"""


@pytest.mark.deep
def test_four_devices_equal_one_and_weights_lie_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(
        "XLA_FLAGS",
        "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true",
    )
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _FOUR_DEVICES], check=False, cwd=root)
    assert done.returncode == 0
