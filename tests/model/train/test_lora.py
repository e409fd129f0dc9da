"""Adapters and a frozen decoder: gradients by hand, what stays as it was, resumed and sharded."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from infra.progress import Progress
from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import load_params
from model.config import ModelConfig
from model.seeds import Seeds
from model.sharding import is_vector, make_mesh
from model.train.config import GroupConfig, TrainConfig
from model.train.loop import StagePaths, fit
from model.train.lora import new_adapters, whole_weights
from model.train.lora_config import MATRICES, LoraConfig
from model.train.memory import parameter_paths, step_bytes, trained_parts
from model.train.optimizer import split_frozen, unmatched_groups
from model.train.start import starting_params
from model.train.step import backward, loss_weights, make_state
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model, without_compiling

MODEL = tiny_model("parcel", (30, 64))
LORA = LoraConfig(rank=3, alpha=7.0)
TRAIN = TrainConfig(
    batch_size=6,
    total_steps=7,
    text_len=16,
    save_steps=2,
    log_steps=1,
    warmup=0.0,
    peak_lr=3e-2,
    dropout=0.2,
    lora=LORA,
)


def batch_of(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    learned = (np.arange(7) >= rng.integers(1, 7, (rows, 1))).astype(np.int32)
    return {
        "image": rng.integers(0, 255, (rows, 1, 32, 32, 3), dtype=np.uint8),
        "text": rng.integers(3, 1400, (rows, 7), dtype=np.int32),
        "mask_ar": learned,
        "mask_loss": learned,
    }


def adapted_params() -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters, and adapters whose B is not 0 any more."""
    params: dict[str, Any] = dict(flatten_params(vlm.init_params(MODEL, 0)))
    rng = np.random.default_rng(1)
    adapters = new_adapters(LORA, params, 5)
    for path, value in adapters.items():
        if path.endswith("/b"):
            adapters[path] = rng.normal(size=value.shape, scale=0.1).astype(np.float32)
    return params, adapters


@pytest.mark.slow
@pytest.mark.parametrize(("scan", "remat"), [(False, "none"), (True, "full")])
def test_gradients_are_those_of_a_dense_decoder(scan: bool, remat: Any):
    model = dataclasses.replace(MODEL, scan_layers=scan, remat=remat)
    params, adapters = adapted_params()
    train = TrainConfig(batch_size=4, text_len=6, lora=LORA)
    trained, frozen = split_frozen({**params, **adapters}, train)
    batch, slots = batch_of(4), vlm.Slots(30, 24)

    def derive(trained, frozen):
        return backward(trained, frozen, batch, slots, None, model=model, train=train)

    loss, gradients = jax.tree.map(np.asarray, jax.jit(derive)(trained, frozen))
    # The reference has whole matrices and no adapters; what it gives for them is taken apart by
    # hand: d/dA = scale dW B^T and d/dB = scale A^T dW.
    dense = dict(params)
    for name in MATRICES:
        a, b = (adapters[f"lora/blocks/{name}/{factor}"] for factor in "ab")
        dense[f"text/blocks/{name}"] = params[f"text/blocks/{name}"] + 7.0 / 3.0 * (a @ b)
    example = vlm.Example(batch["image"], batch["text"], batch["mask_ar"], batch["mask_loss"])
    weights = loss_weights(jnp.asarray(batch["mask_loss"][:, 1:]))

    def dense_loss(params):
        return vlm.loss(vlm.structure(model), unflatten_params(params), example, slots, weights)

    of_dense, d_dense = jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(dense_loss))(dense))
    np.testing.assert_allclose(loss, of_dense, rtol=1e-5)
    wanted = {path: d_dense[path] for path in trained if path in params}
    for name in MATRICES:
        a, b = (adapters[f"lora/blocks/{name}/{factor}"] for factor in "ab")
        d_weight = d_dense[f"text/blocks/{name}"]
        wanted[f"lora/blocks/{name}/a"] = 7.0 / 3.0 * d_weight @ np.swapaxes(b, 1, 2)
        wanted[f"lora/blocks/{name}/b"] = 7.0 / 3.0 * np.swapaxes(a, 1, 2) @ d_weight
    assert gradients.keys() == wanted.keys()
    assert not [path for path in gradients if path.startswith("text/")]
    whole = np.linalg.norm([np.linalg.norm(gradient) for gradient in wanted.values()])
    for path, gradient in wanted.items():
        error = np.linalg.norm(gradients[path] - gradient)
        assert error <= 2e-5 * max(np.linalg.norm(gradient), 1e-2 * whole), path
        assert path.startswith("vision/") or np.linalg.norm(gradient) > 0, path


def test_new_adapters_change_nothing_and_are_the_same_for_a_seed():
    params: dict[str, Any] = dict(flatten_params(vlm.init_params(MODEL, 0)))
    adapters = new_adapters(LORA, params, 5)
    again, other = new_adapters(LORA, params, 5), new_adapters(LORA, params, 6)
    for path, value in adapters.items():
        np.testing.assert_array_equal(value, again[path])
        assert value.dtype == np.float32
        assert path.endswith("/b") == (not value.any())
        assert path.endswith("/b") or not np.array_equal(value, other[path])
    assert {path: value.shape for path, value in adapters.items() if "/down/" in path} == {
        "lora/blocks/down/a": (2, 28, 3),
        "lora/blocks/down/b": (2, 3, 20),
    }
    arrays: dict[str, Any] = {**params, **adapters}
    trained, frozen = split_frozen(arrays, TRAIN)
    whole = dict(whole_weights(LORA, trained, frozen))
    assert whole.keys() == params.keys()
    for path, value in params.items():
        np.testing.assert_array_equal(whole[path], value, err_msg=path)


BFLOAT16 = dataclasses.replace(MODEL, dtype="bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_frozen_matrices_held_in_bfloat16_give_the_same_bits(scan: bool):
    model = dataclasses.replace(BFLOAT16, scan_layers=scan)
    params, adapters = adapted_params()
    train = TrainConfig(batch_size=4, text_len=6, lora=LORA, freeze_vision=True)
    trained, exact = split_frozen({**params, **adapters}, train)
    state = make_state(model, unflatten_params(params), train, make_mesh(jax.devices()[:1]))
    kept = {path for path, leaf in state.frozen.items() if leaf.dtype == np.float32}
    assert kept == {path for path in exact if path.endswith(("/scale", "/bias"))}
    assert {leaf.dtype.name for leaf in state.frozen.values()} == {"float32", "bfloat16"}
    assert {leaf.dtype.name for leaf in state.trained.values()} == {"float32"}
    batch, slots = batch_of(4), vlm.Slots(30, 24)

    def derive(frozen):
        return backward(trained, frozen, batch, slots, None, model=model, train=train)

    # What is rounded ahead is what each product would round: nothing else may change.
    held = jax.tree.map(np.asarray, jax.jit(derive)(state.frozen))
    rounded_in_products = jax.tree.map(np.asarray, jax.jit(derive)(exact))
    jax.tree.map(np.testing.assert_array_equal, held, rounded_in_products)
    assert max(np.abs(gradient).max() for gradient in held[1].values()) > 1e-3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("inputs")
    data = write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    return {"data": data, "tokenizer": write_tokenizer(root / "tokenizer.model")}


def run(
    root: Path, inputs: dict[str, Any], train: TrainConfig, model: ModelConfig = MODEL
) -> Iterator[Progress]:
    (root / "out").mkdir(parents=True, exist_ok=True)
    paths = StagePaths(scratch=str(root / "scratch"), out=str(root / "out"), **inputs)
    return without_compiling(fit(model, train, paths, Seeds.of(5)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_stage_ends_with_the_same_whole_weights(
    dtype: Any, tmp_path: Path, inputs: dict[str, Any]
):
    model = dataclasses.replace(MODEL, dtype=dtype)
    assert [p.done for p in run(tmp_path / "a", inputs, TRAIN, model)] == [*range(1, 8)]
    for progress in run(tmp_path / "b", inputs, TRAIN, model):
        if progress.done == 5:
            break
    # What is frozen is not written again and again.
    (point,) = (tmp_path / "b/scratch/resume").glob("4-*")
    index = json.loads((point / "0.json").read_text())
    paths = {path for path, _ in index["parts"].values()}
    assert not [path for path in paths if "text/" in path]
    assert [path for path in paths if "lora/blocks/gate/a" in path]
    assert [p.done for p in run(tmp_path / "b", inputs, TRAIN, model)] == [5, 6, 7]
    digests = [(tmp_path / name / "out/digest.txt").read_text() for name in "ab"]
    assert digests[0] == digests[1]
    # A checkpoint like any other: the same arrays, and of each matrix a change of rank 3. Frozen
    # matrices that were held in bfloat16 are those of the start, not rounded.
    before = dict(flatten_params(starting_params(MODEL, None, Seeds.of(5).init)))
    after = dict(flatten_params(load_params(str(tmp_path / "a/out"))))
    assert after.keys() == before.keys()
    for path, value in before.items():
        assert after[path].dtype == np.float32, path
        change = np.asarray(after[path]) - np.asarray(value)
        if path.removeprefix("text/blocks/") in MATRICES:
            ranks = [np.linalg.matrix_rank(layer, tol=1e-4) for layer in change]
            assert ranks == [3, 3], (path, ranks)
        elif path.startswith("text/"):
            assert not change.any(), path
        else:
            assert change.any(), path
    row = json.loads((tmp_path / "a/out/metrics.jsonl").read_text().splitlines()[-1])
    assert row["gradient_norms"].keys() == {"connector", "lora", "projector", "vision"}


@pytest.mark.slow
def test_a_frozen_decoder_stays_bit_by_bit(tmp_path: Path, inputs: dict[str, Any]):
    settings: dict[str, Any] = {"lora": None, "freeze_text": True, "microbatch": "auto"}
    list(run(tmp_path, inputs, dataclasses.replace(TRAIN, total_steps=2, **settings)))
    # What `auto` stood for is in the log.
    row = json.loads((tmp_path / "out/metrics.jsonl").read_text().splitlines()[-1])
    assert row["microbatch"] == TRAIN.batch_size
    before = dict(flatten_params(starting_params(MODEL, None, Seeds.of(5).init)))
    after = dict(flatten_params(load_params(str(tmp_path / "out"))))
    for path, value in before.items():
        assert np.array_equal(after[path], value) == path.startswith("text/"), path


def test_moments_and_gradients_are_those_of_adapters_alone():
    whole = TrainConfig(batch_size=4, text_len=16)
    frozen = dataclasses.replace(whole, freeze_text=True)
    adapted = dataclasses.replace(whole, lora=LORA)
    sizes = {path: leaf.size for path, leaf in flatten_params(vlm.abstract_params(MODEL))}
    decoder = sum(size for path, size in sizes.items() if path.startswith("text/"))
    text = MODEL.text
    attention, keys = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
    sides = [
        (text.width, attention),
        (text.width, keys),
        (text.width, keys),
        (attention, text.width),
        (text.width, text.mlp_dim),
        (text.width, text.mlp_dim),
        (text.mlp_dim, text.width),
    ]
    adapters = text.depth * LORA.rank * sum(map(sum, sides))
    held = [step_bytes(MODEL, train, 64, devices=1) for train in (whole, frozen, adapted)]
    # Three of four float32 numbers; and the gradient of the table as a whole.
    assert held[0] - held[1] == pytest.approx(12 * decoder + 4 * sizes["text/embedding"])
    assert held[2] - held[1] == pytest.approx(16 * adapters)
    # In bfloat16 a frozen matrix takes half; scales and biases stay as they are.
    matrices = sum(
        size for path, size in sizes.items() if path.startswith("text/") and not is_vector(path)
    )
    assert held[1] - step_bytes(BFLOAT16, frozen, 64, devices=1) == pytest.approx(2 * matrices)
    assert trained_parts(MODEL, frozen) == {"vision", "connector", "projector"}
    assert trained_parts(MODEL, adapted) == {"vision", "connector", "projector", "lora"}
    groups = (GroupConfig(params="lora/.*", lr=10.0),)
    for train, unmatched in ((frozen, ["lora/.*"]), (adapted, [])):
        train = dataclasses.replace(train, groups=groups)
        assert unmatched_groups(train, parameter_paths(MODEL, train)) == unmatched


def test_a_wrong_adapter_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"lora.rank must be at least 1, got 0\."):
        LoraConfig(rank=0)
    for alpha in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"lora\.alpha .*got"):
            LoraConfig(alpha=alpha)
    wrong: Any
    for wrong in ((), ("gate", "gate"), ("embedding",)):
        with pytest.raises(ValueError, match=r"lora\.matrices .*query, key"):
            LoraConfig(matrices=wrong)


FOUR_DEVICES = """
import jax
import numpy as np
jax.config.update("jax_disable_most_optimizations", True)
from model import sharding
from model.train.config import TrainConfig
from model.train.lora import whole_weights
from model.train.start import starting_params
from model.train.step import Rates, StepPrograms, make_state
from tests.model.train.test_lora import LORA, MODEL, batch_of

sharding._MIN_BYTES = 256
sharding._MOST_PADDING = 100
assert jax.device_count() == 4
train = TrainConfig(batch_size=8, text_len=6, lora=LORA, num_replicas=2)
results = []
for devices, replicas in ((1, 1), (4, 2)):
    mesh = sharding.make_mesh(jax.devices()[:devices], num_replicas=replicas)
    state = make_state(MODEL, starting_params(MODEL, None, 0), train, mesh, 5)
    programs = StepPrograms(MODEL, train, mesh)
    for _ in range(2):
        state, metrics = programs(state, batch_of(8), 30, Rates(learning=1e-3, decay=0.0))
    split = [p for p, v in state.trained.items() if not v.sharding.is_fully_replicated]
    assert ("lora/blocks/gate/a" in split) == (devices > 1), split
    whole = dict(whole_weights(LORA, state.trained, state.frozen))
    assert whole["text/blocks/gate"].sharding == state.frozen["text/blocks/gate"].sharding
    results.append((metrics, {p: np.asarray(v) for p, v in whole.items()}))
(one, weights_of_one), (four, weights_of_four) = results
np.testing.assert_allclose(four.loss, one.loss, rtol=2e-6)
for part, norm in one.norms.items():
    np.testing.assert_allclose(four.norms[part], norm, rtol=2e-5, err_msg=part)
for path, weight in weights_of_one.items():
    # A key's bias has no gradient but rounding, of which Adam makes a whole step; other elements of
    # a tiny gradient are few.
    if path.endswith("key/bias"):
        continue
    off = np.abs(weights_of_four[path] - weight)
    assert np.mean(off > 2e-5) < 0.01, (path, off.max())
"""


@pytest.mark.slow
def test_four_devices_give_the_update_of_one():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", FOUR_DEVICES], env=environment, cwd=root)
    assert done.returncode == 0
