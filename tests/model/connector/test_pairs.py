"""Every connector on the tower of every family, and an elastic one on every pair."""

import dataclasses
import re
import typing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from model.connector.contract import check_connector_shapes, check_promises
from model.connector.registry import KINDS
from model.text.registry import DECODERS
from model.vision.registry import TOWERS
from tests.model.tiny_models import TEXT, VISION, batch, tiny_config
from tests.slices import day_slice

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "own_connector.md"
"""The tutorial whose class `Ripple` is checked like ours."""
WIDTHS = {"siglip": 12, "siglip2": 24, "clip": 36}
"""Tower -> a width of its own, so that none is taken for another."""
GRIDS = {"siglip": 16, "siglip2": 16, "clip": 24}
"""Tower -> side of its patch grid, as in PaliGemma at 224 px and in LLaVA-1.5 [patches]."""
FAST = {"xla_backend_optimization_level": 0}


def pair(kind: str, vision: str, text: str = "gemma2") -> ModelConfig:
    """Returns a tiny model with a tower and a decoder of two families."""
    own: dict[str, dict[str, typing.Any]] = {
        "gemma3": {"depth": 6, "local_rope_base": 1e4, "sliding_window": 5},
        "llama": {"tied": False},
    }
    settings: dict[str, typing.Any] = {
        "vision": dataclasses.replace(
            VISION,
            family=vision,
            width=WIDTHS[vision],
            image_px=GRIDS[vision] * VISION.patch_px,
        ),
        "text": dataclasses.replace(TEXT, family=text, **own.get(text, {})),
        "projector": "mlp" if vision == "clip" else "linear",
    }
    if not DECODERS[text].softcaps:
        settings |= {"attn_softcap": 0.0, "final_softcap": 0.0}
    return tiny_config(kind, scan_layers=True, **settings)


@pytest.fixture(scope="module")
def ripple(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[str]:
    """The tutorial's connector, importable."""
    folder = tmp_path_factory.mktemp("tutorial")
    (text,) = re.findall(r"```python\n# connectors.py(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "ripple_of_the_tutorial.py").write_text(f"#{text}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "ripple_of_the_tutorial:Ripple"


@pytest.mark.slow
@pytest.mark.parametrize("vision", TOWERS)
def test_every_connector_can_be_built_and_traced_on_every_tower(vision: str, ripple: str):
    for kind in (*KINDS, ripple):
        check_connector_shapes(pair(kind, vision))


@pytest.mark.slow
@pytest.mark.parametrize("vision", day_slice([*TOWERS], ["clip"]))
@pytest.mark.parametrize("kind", day_slice([*KINDS, "Ripple"], ["m3"]))
def test_every_connector_keeps_its_promises_on_every_tower(kind: str, vision: str, ripple: str):
    cfg = pair(ripple if kind == "Ripple" else kind, vision)
    assert [finding for finding in check_promises(cfg) if not finding.holds] == []


DIAGONAL = [("siglip", "gemma2"), ("siglip2", "gemma3"), ("clip", "llama")]
"""Pairs in which every family is once."""
PAIRS = [(vision, text) for vision in TOWERS for text in DECODERS]


@pytest.mark.slow
@pytest.mark.parametrize(("vision", "text"), day_slice(PAIRS, DIAGONAL))
def test_every_connector_stands_between_every_tower_and_decoder(
    vision: str, text: str, ripple: str
):
    # Traced, not compiled: a loss needs every width of tower, connector, projector and decoder.
    for kind in (*KINDS, ripple):
        cfg = pair(kind, vision, text)
        shape, params = budgets.buckets(cfg)[0], vlm.abstract_params(cfg)
        slots = vlm.Slots(shape.size, shape.size)
        loss = jax.eval_shape(_loss_of(cfg), params, slots)
        assert (loss.shape, loss.dtype) == ((), np.float32), kind


@pytest.mark.slow
@pytest.mark.parametrize(("vision", "text"), day_slice(PAIRS, DIAGONAL))
def test_an_elastic_budget_is_one_on_every_pair(vision: str, text: str):
    cfg = pair("parcel", vision, text)
    loss, params = _loss_of(cfg), _random_params(cfg)
    # Budget 20 in its own program, and in the larger one that training runs it in; on CLIP's grid
    # it is 40 in 88, with 36 anchors:
    #
    #     20 slots   [ 16 anchors, 4 queries ]
    #     40 slots   [ 16 anchors, 4 queries, 20 slots that nobody reads ]
    bucket = budgets.buckets(cfg)[0]
    budget = bucket.num_anchors + 4
    masked, gradients = _run(jax.value_and_grad(loss), params, vlm.Slots(bucket.size, budget))
    exact = _run(loss, params, vlm.Slots(budget, budget))
    assert np.isfinite(masked)
    np.testing.assert_allclose(masked, exact, rtol=1e-5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.all(np.isfinite(leaf)), path
    # The picture decides, also behind this family's own layers: its tower learns.
    assert float(jnp.linalg.norm(gradients["vision"]["patches"]["kernel"])) > 0


def _random_params(cfg: ModelConfig) -> vlm.Params:
    """Returns parameters of the model's shapes, without compiling anything."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: 0.3 * rng.normal(size=leaf.shape).astype(np.float32), vlm.abstract_params(cfg)
    )


def _run(function: typing.Callable, *inputs: typing.Any) -> typing.Any:
    return jax.jit(function, compiler_options=FAST)(*inputs)


def _loss_of(cfg: ModelConfig) -> typing.Callable[[vlm.Params, vlm.Slots], jax.Array]:
    """Returns the mean loss of a small batch, as a function of parameters and slots."""
    structure = vlm.structure(cfg)
    example = batch(num_images=1, px=cfg.vision.image_px)

    def loss(params: vlm.Params, slots: vlm.Slots) -> jax.Array:
        data = vlm.Example(*(jnp.asarray(array) for array in example))
        weights = data.mask_loss[:, 1:].astype(jnp.float32)
        return vlm.loss(structure, params, data, slots, weights / jnp.sum(weights))

    return loss
