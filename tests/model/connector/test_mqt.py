"""MQT beside the official one: what it computes, what it is at first, and where it is the default.

The official code is the class `Resampler` in `llava/model/multimodal_projector/builder.py` of
gordonhu608/MQT-LLaVA at 92c35d0. `PARCEL_OFFICIAL_MQT` names a copy of that file, which is then run
in torch; without one, the formula below stands for it, written from PyTorch's documentation of
`MultiheadAttention`.
"""

import functools
import os
import typing
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flows.study.load import load
from infra.store.digest import identity_json
from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.config import ModelConfig
from model.connector.build import build_connector
from model.connector.config import ConnectorConfig
from model.connector.mqt import official_positions
from model.connector.registry import KINDS
from model.vision.config import VisionConfig
from model.vision.layers import sincos_positions
from tests.model.connector.mqt_connectors import ExtendsMqt, HasMqt
from tests.model.connector.own_connectors import Prefix
from tests.model.tiny_models import TEXT
from tests.torch_python import run_torch, torch_python

WIDTH, HEADS = 12, 3
BUDGETS = {16: (2, 16, 100, 256), 32: (6, 64, 1024)}
"""Side of the patch grid, at 224 and at 448 px -> budgets."""
Weights = Mapping[str, np.ndarray]


def config(grid: int, width: int = WIDTH, **settings: typing.Any) -> ModelConfig:
    vision = VisionConfig(
        image_px=2 * grid, patch_px=2, width=width, depth=1, mlp_dim=14, num_heads=2
    )
    connector = ConnectorConfig(kind="mqt", num_heads=HEADS, **settings)
    return ModelConfig(vision=vision, text=TEXT, connector=connector)


@functools.cache
def built(cfg: ModelConfig) -> tuple[vlm.Structure, vlm.Params]:
    return vlm.split(typing.cast(typing.Any, build_connector(cfg, rngs=nnx.Rngs(5))))


def features_of(grid: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(2, grid * grid, WIDTH)).astype(np.float32)


def weights_of(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Random everywhere: fresh biases are 0 and fresh norms 1, which would hide a mistake."""
    rng = np.random.default_rng(3)
    _, params = built(cfg)
    return {
        path: (np.asarray(value) + 0.1 * rng.normal(size=value.shape)).astype(np.float32)
        for path, value in flatten_params(params)
    }


@functools.partial(jax.jit, static_argnames=("cfg", "budget"))
def _tokens(cfg: ModelConfig, params: vlm.Params, features: jax.Array, budget: int) -> jax.Array:
    return nnx.merge(built(cfg)[0], params)(features, bucket=budget, budget=jnp.int32(budget))


def tokens(cfg: ModelConfig, weights: Weights, features: np.ndarray, budget: int) -> np.ndarray:
    return np.asarray(_tokens(cfg, unflatten_params(weights), jnp.asarray(features), budget))


def official(weights: Weights, features: np.ndarray, heads: int) -> np.ndarray:
    """The official forward pass of all queries, without its last matrix, in float64."""
    w = {path: value.astype(np.float64) for path, value in weights.items()}
    batch, patches, width = features.shape
    grid = round(patches**0.5)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}/scale"] + w[f"{name}/bias"]

    def heads_of(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ w[f"attn/{name}/kernel"] + w[f"attn/{name}/bias"]
        return y.reshape(batch, -1, heads, width // heads).transpose(0, 2, 1, 3)

    def axis(places: np.ndarray) -> np.ndarray:
        angles = places[:, None] / 10000 ** (np.arange(width // 4) / (width / 4))
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    row, column = np.divmod(np.arange(patches), grid)
    table = np.concatenate([axis(column), axis(row)], axis=1).astype(np.float16).astype(np.float64)
    every = np.zeros((batch, 1, 1))
    q = heads_of(norm(w["queries"] + table + every, "query_norm"), "query")
    k = heads_of(norm(table + every, "key_norm"), "key")
    v = heads_of(norm(features.astype(np.float64), "value_norm"), "value")
    logits = q @ k.swapaxes(2, 3) / np.sqrt(width // heads)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    read = (shares / shares.sum(-1, keepdims=True)) @ v
    return (
        read.transpose(0, 2, 1, 3).reshape(batch, -1, width) @ w["attn/out/kernel"]
        + (w["attn/out/bias"])
    )


@pytest.mark.parametrize("grid", BUDGETS)
def test_mqt_computes_what_the_official_one_does(grid: int):
    cfg = config(grid)
    weights, features = weights_of(cfg), features_of(grid)
    expected = official(weights, features, HEADS)
    assert np.abs(expected).max() > 0.1
    for budget in BUDGETS[grid]:
        found = tokens(cfg, weights, features, budget)
        np.testing.assert_allclose(found, expected[:, :budget], rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", BUDGETS)
def test_mqt_computes_what_the_official_file_does_in_torch(grid: int, tmp_path: Path):
    file = os.environ.get("PARCEL_OFFICIAL_MQT")
    if not file:
        pytest.skip("PARCEL_OFFICIAL_MQT must name the official builder.py; see CONTRIBUTING.md")
    torch_python()
    cfg = config(grid)
    weights, features = weights_of(cfg), features_of(grid)
    given: dict[str, typing.Any] = {"features": features, "heads": HEADS, **weights}
    np.savez(tmp_path / "given.npz", **given)
    script = Path(__file__).with_name("official_mqt_in_torch.py")
    run_torch(tmp_path, str(script), file, "given.npz", "found.npz", *map(str, BUDGETS[grid]))
    with np.load(tmp_path / "found.npz") as expected:
        for budget in BUDGETS[grid]:
            found = tokens(cfg, weights, features, budget)
            np.testing.assert_allclose(found, expected[str(budget)], rtol=0, atol=1e-6)


def drawn(grid: int, width: int) -> dict[str, np.ndarray]:
    """The fresh weights of a connector."""
    _, params = built(config(grid, width=width))
    return {path: np.asarray(value) for path, value in flatten_params(params)}


def test_mqt_is_drawn_as_the_official_one_is():
    found = drawn(16, 1056)
    for name in ("query", "key", "value"):
        kernel = found[f"attn/{name}/kernel"]
        # Uniform, by Xavier's rule for one matrix of 3 x 1056 rows and 1056 columns.
        assert 0.99 < np.abs(kernel).max() / np.sqrt(6 / (4 * 1056)) <= 1.0
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (4 * 1056)), rtol=0.01)
    for path in ("attn/out/kernel", "queries"):
        # Normal, and cut nowhere: 1 in 370 values is beyond three deviations.
        np.testing.assert_allclose(found[path].std(), 0.02, rtol=0.01)
        assert 1 / 740 < np.mean(np.abs(found[path]) > 0.06) < 1 / 185
    for path, value in found.items():
        if path.endswith("bias") or path.endswith("scale"):
            assert np.all(value == path.endswith("scale")), path


def test_a_narrow_mqt_draws_each_matrix_by_itself():
    found = drawn(16, 96)
    for name in ("query", "key", "value", "out"):
        kernel = found[f"attn/{name}/kernel"]
        np.testing.assert_allclose(kernel.std(), np.sqrt(1 / 96), rtol=0.03)
    np.testing.assert_allclose(found["queries"].std(), 0.02, rtol=0.04)


@pytest.mark.parametrize(("grid", "width"), [(16, 12), (32, 96)])
def test_the_official_table_is_ours_rounded_to_float16(grid: int, width: int):
    ours = np.asarray(sincos_positions(grid, width))
    table = official_positions(grid, width)
    assert table.dtype == np.float16
    np.testing.assert_allclose(table, ours, rtol=0, atol=2.0**-12 + 1e-5)
    assert np.mean(table != ours.astype(np.float16)) < 1e-3


def test_mqt_is_the_official_one_unless_a_config_says_otherwise():
    assert load().model_of("mqt").connector.mqt_keys == "positional"
    assert ConnectorConfig().of_kind("mqt_sa").mqt_keys == "positional"
    stated = ConnectorConfig(mqt_keys="content")
    assert stated.of_kind("mqt").mqt_keys == "content"
    # Not by way of a method without queries.
    assert ConnectorConfig().of_kind("vanilla").mqt_keys == "content"
    weights, features = weights_of(config(16)), features_of(16)
    by_default, positional, content = (
        tokens(config(16, mqt_keys=keys), weights, features, 6)
        for keys in (None, "positional", "content")
    )
    np.testing.assert_array_equal(by_default, positional)
    assert np.abs(by_default - content).max() > 1e-3


def test_the_default_left_the_keys_of_all_methods_as_they_were():
    def identity(kind: str, **settings: typing.Any) -> str:
        return identity_json(ConnectorConfig(num_heads=4, **settings).of_kind(kind))

    for kind in KINDS:
        was = f'"kind":"{kind}",' if kind != "vanilla" else ""
        added = '"mqt_keys":"positional",' if kind in ("mqt", "mqt_sa") else ""
        assert identity(kind) == f'{{{was}{added}"num_heads":4}}'
        # Stated, it was in the key of every method, and "content" in that of none.
        stated = f'{{{was}"mqt_keys":"positional","num_heads":4}}'
        assert identity(kind, mqt_keys="positional") == stated
        assert identity(kind, mqt_keys="content") == f'{{{was}"num_heads":4}}'


class ExtendsOnceMore(ExtendsMqt):
    """Extends MQT by way of another module."""


@pytest.mark.parametrize(
    ("cls", "keys"),
    [
        (Prefix, "content"),
        (ExtendsMqt, "positional"),
        (ExtendsOnceMore, "positional"),
        (HasMqt, "positional"),
    ],
)
def test_a_class_of_ones_own_has_the_official_keys_if_there_is_an_mqt_in_it(cls: type, keys: str):
    kind = f"{cls.__module__}:{cls.__name__}"
    assert ConnectorConfig().of_kind(kind).mqt_keys == keys
