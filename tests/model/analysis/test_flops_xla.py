"""The formulas against what XLA counts in the compiled programs.

Layers are unrolled, as `cost_analysis` counts the body of a loop once. It counts norms, softmax and
activations too, which the formulas leave out: about 2 % at these widths, more at smaller ones.
Programs of wide models are counted without compiling them.
"""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from model import vlm
from model.analysis import flops
from model.config import ModelConfig
from model.connector import budgets
from model.connector.build import build_connector
from model.connector.config import ConnectorConfig
from model.connector.registry import KINDS
from model.text.config import TextConfig
from model.vision.config import VisionConfig

PAIR = flops.Modality(name="pair", num_images=2, text_tokens=19)
ONE = flops.Modality(name="one", num_images=1, text_tokens=1)
POOLING = ("vanilla", "m3", "avgpool4", "avgpool2")
ELEMENTWISE = 1.05


def config(kind: str) -> ModelConfig:
    return ModelConfig(
        vision=VisionConfig(image_px=32, patch_px=2, width=96, depth=2, mlp_dim=224, num_heads=2),
        text=TextConfig(
            vocab_size=384,
            width=160,
            depth=3,
            mlp_dim=448,
            num_heads=4,
            num_kv_heads=2,
            head_dim=48,
        ),
        connector=ConnectorConfig(kind=typing.cast(typing.Any, kind), num_heads=3, mlp_dim=288),
        attn_softcap=0.0,
        final_softcap=0.0,
        remat="none",
        scan_layers=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "budget"), [("vanilla", 256), ("mqt", 100), ("parcel", 16), ("parcel", 100)]
)
def test_a_prefill(kind: str, budget: int):
    cfg = config(kind)
    text = jax.ShapeDtypeStruct((1, PAIR.text_tokens), jnp.int32)
    images = jax.ShapeDtypeStruct((1, PAIR.num_images, 32, 32, 3), jnp.float32)
    run = functools.partial(vlm.text_logits, vlm.structure(cfg))
    prompt = vlm.Prompt(images, text, text, text)
    counted = _count(run, vlm.abstract_params(cfg), prompt, vlm.Slots(budget, budget))
    cost = flops.prefill_flops(cfg, budget, PAIR)
    # The formulas, like the paper's, leave out the first layer, from pixels to patches.
    vision = cfg.vision
    pixels = PAIR.num_images * vision.num_patches * 3 * vision.patch_px**2
    expected = (cost - flops.unread_flops(cfg, budget, PAIR)).total + 2 * pixels * vision.width
    assert 1.0 <= counted / expected <= ELEMENTWISE
    assert cost.connector < 0.15 * cost.total  # Too little to be tested here: hence the next test.


PAIRS = {
    ("siglip", "gemma2"): {"projector": "linear", "attn_softcap": 50.0, "final_softcap": 30.0},
    ("siglip2", "gemma3"): {"projector": "linear"},
    ("clip", "llama"): {"projector": "mlp"},
}
"""Tower and decoder -> settings of their model; each family is in one pair."""


def wide(vision: str, text: str) -> ModelConfig:
    # A grid of 5 x 5 patches, so that a class token is 4 % of the tower's work.
    own = {"local_rope_base": 1e4, "sliding_window": 9} if text == "gemma3" else {}
    settings: dict[str, typing.Any] = {"attn_softcap": 0, "final_softcap": 0}
    return ModelConfig(
        vision=VisionConfig(
            family=vision,
            image_px=20,
            patch_px=4,
            width=1088,
            depth=2,
            mlp_dim=2176,
            num_heads=4,
        ),
        text=TextConfig(
            family=text,
            vocab_size=1792,
            width=2816,
            depth=3,
            mlp_dim=3200,
            num_heads=6,
            num_kv_heads=3,
            head_dim=224,
            tied=text != "llama",
            **own,
        ),
        remat="none",
        scan_layers=False,
        **(settings | PAIRS[vision, text]),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("vision", "text"), PAIRS)
def test_each_familys_parts_are_as_xla_counts_them(vision: str, text: str):
    cfg = wide(vision, text)
    structure, params, side = vlm.structure(cfg), vlm.abstract_params(cfg), cfg.vision.image_px
    num_features = cfg.vision.num_patches
    words = jax.ShapeDtypeStruct((1, PAIR.text_tokens), jnp.int32)
    images = jax.ShapeDtypeStruct((1, PAIR.num_images, side, side, 3), jnp.float32)
    features = jax.ShapeDtypeStruct(
        (1, PAIR.num_images, num_features, cfg.vision.width), jnp.float32
    )
    encoded, slots = vlm.EncodedImages(features), vlm.Slots(num_features, num_features)
    prompt = vlm.Prompt(encoded, words, words, words)
    tower, tokens, rest = (
        _lowered_count(functools.partial(function, structure), params, *inputs)
        for function, inputs in (
            (vlm.image_features, (images,)),
            (vlm.soft_tokens, (encoded, slots)),
            (vlm.text_logits, (prompt, slots)),
        )
    )
    cost = flops.prefill_flops(cfg, num_features, PAIR)
    read = cost - flops.unread_flops(cfg, num_features, PAIR)
    pixels = PAIR.num_images * num_features * 3 * cfg.vision.patch_px**2
    assert tower == pytest.approx(cost.vision + 2 * pixels * cfg.vision.width, rel=0.01)
    assert tokens == pytest.approx(cost.projector, rel=0.01)
    assert rest == pytest.approx(cost.projector + read.decoder + cost.head, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in POOLING])
@pytest.mark.parametrize("budget", [64, 100, 256])
def test_a_connector(kind: str, budget: int):
    cfg = config(kind)
    if budget not in budgets.supported_budgets(cfg):
        return
    # With scanned layers, what is skipped is the connector's alone.
    scanned = dataclasses.replace(cfg, scan_layers=True)
    unread = flops.unread_flops(scanned, budget, ONE).connector
    expected = flops.connector_flops(cfg, budget) - unread
    counted = _count_connector(cfg, budget)
    if expected == 0:  # Only anchors: their means.
        assert counted <= 2 * cfg.vision.num_patches * cfg.vision.width
    else:
        assert 1.0 <= counted / expected <= ELEMENTWISE


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in POOLING])
def test_pooling_multiplies_no_matrices(kind: str):
    cfg = config(kind)
    for budget in budgets.supported_budgets(cfg):
        assert _count_connector(cfg, budget) <= 2 * cfg.vision.num_patches * cfg.vision.width


def _count_connector(cfg: ModelConfig, budget: int) -> float:
    module = nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0)))
    structure, params = nnx.split(module)
    features = jax.ShapeDtypeStruct((1, cfg.vision.num_patches, cfg.vision.width), jnp.float32)

    def run(params: typing.Any, features: jax.Array) -> jax.Array:
        connector = nnx.merge(structure, params)
        return connector(features, bucket=budget, budget=jnp.int32(budget))

    return _count(run, params, features)


def _count(function: typing.Callable, *shapes: typing.Any) -> float:
    """Returns the FLOPs of a compiled program."""
    cost: typing.Any = jax.jit(function).lower(*shapes).compile().cost_analysis()
    return cost.get("flops", 0.0)


def _lowered_count(function: typing.Callable, *shapes: typing.Any) -> float:
    """Returns the FLOPs of a program that is not compiled."""
    cost: typing.Any = jax.jit(function).lower(*shapes).cost_analysis()
    return cost.get("flops", 0.0)
