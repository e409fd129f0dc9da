"""Every family against transformers: features, logits and greedy tokens, from the same weights."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from model import vlm
from model.checkpoint import translate
from model.checkpoint.digest import unflatten_params
from model.checkpoint.hugging_face_config import read_config
from model.checkpoint.importer import open_source
from model.config import ModelConfig
from model.decode.generate import generate
from model.layouts import HF_TOWER
from model.prompt.template import BEFORE_IMAGES
from model.text.config import TextConfig
from model.vision.config import VisionConfig
from model.vision.registry import unused_names
from tests.model.checkpoint.converted import write_hugging_face
from tests.model.families import references
from tests.model.families.references import (
    DECODERS,
    NUM_BEFORE,
    NUM_NEW,
    NUM_PREFIX,
    TOWERS,
    WHOLE,
)
from tests.torch_python import run_torch

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
PAIRS = [
    (f"{a}_{size}", f"{b}_{size}")
    for size in "ab"
    for a, b in (
        ("siglip", "gemma2"),
        ("siglip2", "gemma3"),
        ("clip", "llama"),
    )
]


@functools.cache
def expected() -> dict[str, np.ndarray]:
    with np.load(references.FILE) as arrays:
        return dict(arrays)


@functools.cache
def pair(tower: str, decoder: str, folder: Path) -> tuple[ModelConfig, vlm.Params]:
    """Returns a model of a tower and a decoder, imported from a folder of transformers' layout."""
    vision, text = TOWERS[tower], DECODERS[decoder]
    container = "llava" if tower.startswith("clip") else "paligemma"
    config = {
        "model_type": container,
        "vision_config": vision,
        "text_config": text,
        "vocab_size": text["vocab_size"],
    }
    write_hugging_face(folder, weights(vision, text, container), json.dumps(config))
    source = open_source(folder)
    return source.model, unflatten_params(dict(source.parameters()))


def weights(vision: dict[str, Any], text: dict[str, Any], container: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a whole file, also those of blocks that features do not pass."""
    facts = read_config({"model_type": container, "vision_config": vision, "text_config": text})
    side = math.isqrt(vision["num_patches"]) if "num_patches" in vision else 0
    model = ModelConfig(
        vision=VisionConfig(
            **facts.vision,
            patch_px=vision["patch_size"],
            image_px=vision.get("image_size", side * vision["patch_size"]),
            width=vision["hidden_size"],
            depth=vision["num_hidden_layers"],
            mlp_dim=vision["intermediate_size"],
        ),
        text=TextConfig(
            vocab_size=text["vocab_size"],
            width=text["hidden_size"],
            depth=text["num_hidden_layers"],
            mlp_dim=text["intermediate_size"],
            **{**facts.text, "rope_scaling": None},
        ),
        attn_softcap=facts.attn_softcap,
        final_softcap=facts.final_softcap,
        projector=facts.projector,
    )
    shapes = translate.hugging_face_shapes(model)
    # What features do not pass: a norm of CLIP's, a pooling head of SigLIP's.
    shapes |= {HF_TOWER + unused_names(facts.vision["family"]) + "weight": (5,)}
    if "num_patches" in vision:  # Of any aspect ratio: patches are cut out before the model.
        kernel = HF_TOWER + "embeddings.patch_embedding.weight"
        shapes[kernel] = shapes[kernel][0], math.prod(shapes[kernel][1:])
    return {name: references.weight(name, shape) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(("tower", "decoder"), PAIRS)
def test_features(tower: str, decoder: str, folder: Path):
    cfg, params = pair(tower, decoder, folder / tower)
    run = jax.jit(functools.partial(vlm.image_features, vlm.structure(cfg)))
    features = run(params, references.images(tower)[:, None])[:, 0]
    assert_allclose(features, expected()[f"{tower}/features"], **TOLERANCE)


@pytest.mark.parametrize(("tower", "decoder"), PAIRS)
def test_logits_and_greedy_tokens_of_a_text(tower: str, decoder: str, folder: Path):
    cfg, params = pair(tower, decoder, folder / tower)
    # At a budget of no soft token, the text is alone.
    check_text(cfg, params, tower, decoder, decoder, budget=0)


@pytest.mark.parametrize("whole", WHOLE)
def test_logits_and_greedy_tokens_after_an_image(whole: str, folder: Path):
    tower, decoder = WHOLE[whole]
    cfg, params = pair(tower, decoder, folder / tower)
    check_text(cfg, params, tower, decoder, whole, budget=cfg.vision.num_patches)


@pytest.mark.parametrize("whole", ["paligemma_a", "paligemma_b"])
def test_a_prefix_that_is_longer_than_the_window(whole: str, folder: Path):
    tower, decoder = WHOLE[whole]
    cfg, params = pair(tower, decoder, folder / tower)
    assert cfg.text.sliding_window < cfg.vision.num_patches
    check_prefix(cfg, params, tower, decoder, whole, num_prefix=NUM_PREFIX)


@pytest.mark.parametrize("decoder", ["gemma3_a", "gemma3_b"])
def test_the_window_of_gemma_3_reaches_as_far_ahead_as_back(decoder: str, folder: Path):
    tower = f"siglip2{decoder[-2:]}"
    cfg, params = pair(tower, decoder, folder / tower)
    length = references.tokens(decoder).shape[1]
    assert cfg.text.sliding_window < length
    check_prefix(cfg, params, tower, decoder, decoder, num_prefix=length, budget=0)


@pytest.mark.parametrize("whole", ["llava_a", "llava_b"])
def test_logits_and_greedy_tokens_with_an_image_between_the_text(whole: str, folder: Path):
    tower, decoder = WHOLE[whole]
    cfg, params = pair(tower, decoder, folder / tower)
    assert cfg.prompt == "llava"
    text, count = references.tokens(decoder), cfg.vision.num_patches
    before = np.where(np.arange(text.shape[1]) < NUM_BEFORE, BEFORE_IMAGES, 0)
    structure, slots = vlm.structure(cfg), vlm.Slots(count, count)
    prompt = vlm.Prompt(
        references.images(tower)[:, None],
        np.pad(text, ((0, 0), (0, 2))),  # Behind it is padding.
        np.pad(np.ones_like(text), ((0, 0), (0, 2))),
        np.pad(np.broadcast_to(before, text.shape), ((0, 0), (0, 2))),
    )
    logits = jax.jit(functools.partial(vlm.text_logits, structure, slots=slots))
    found = logits(params, prompt)[:, : text.shape[1]]
    assert_allclose(found, expected()[f"{whole}/logits_between"], **TOLERANCE)
    tokens = generate(structure, params, prompt, slots, max_new_tokens=NUM_NEW, stop=None)
    assert_array_equal(tokens, expected()[f"{whole}/greedy_between"])


def check_text(
    cfg: ModelConfig, params: vlm.Params, tower: str, decoder: str, case: str, *, budget: int
) -> None:
    structure, text = vlm.structure(cfg), references.tokens(decoder)
    slots = vlm.Slots(cfg.vision.num_patches, budget)
    prompt = vlm.Prompt(references.images(tower)[:, None], text, np.ones_like(text))

    @jax.jit
    def logits(params: vlm.Params) -> jax.Array:
        model = vlm.merge(structure, params)
        rows, _ = vlm.embed_sequence(model, prompt, slots, causal=True)
        return model.text.logits(model.text(rows, num_rows=text.shape[1]))

    assert_allclose(logits(params), expected()[f"{case}/logits"], **TOLERANCE)
    tokens = generate(
        structure, params, prompt, slots, max_new_tokens=NUM_NEW, stop=None, causal=True
    )
    assert_array_equal(tokens, expected()[f"{case}/greedy"])


def check_prefix(
    cfg: ModelConfig,
    params: vlm.Params,
    tower: str,
    decoder: str,
    case: str,
    *,
    num_prefix: int,
    budget: int | None = None,
) -> None:
    """Compares logits, and the tokens after them, of a text that begins in the prefix."""
    structure, text = vlm.structure(cfg), references.tokens(decoder)
    slots = vlm.Slots(cfg.vision.num_patches, cfg.vision.num_patches if budget is None else budget)
    mask_ar = np.broadcast_to(np.arange(text.shape[1]) >= num_prefix, text.shape).astype(np.int32)
    prompt = vlm.Prompt(references.images(tower)[:, None], text, mask_ar=mask_ar)
    logits = jax.jit(functools.partial(vlm.text_logits, structure, slots=slots))
    logits_prefix = expected()[f"{case}/logits_prefix"]
    # Of float32's sums, in the units of the largest logit, which is 25.
    atol = 1e-6 * np.abs(logits_prefix).max()
    assert_allclose(logits(params, prompt), logits_prefix, rtol=1e-5, atol=atol)
    if f"{case}/greedy_prefix" in expected():
        tokens = generate(structure, params, prompt, slots, max_new_tokens=NUM_NEW, stop=None)
        assert_array_equal(tokens, expected()[f"{case}/greedy_prefix"])


@pytest.mark.slow
def test_transformers_computes_the_references(tmp_path: Path):
    root = Path(__file__).parents[3]
    run_torch(root, "-m", "tests.model.families.make_references", str(tmp_path / "new.npz"))
    with np.load(tmp_path / "new.npz") as new:
        assert set(new) == set(expected())
        for name, array in expected().items():
            if name.endswith("/greedy"):
                assert_array_equal(new[name], array)
            elif name != "transformers":
                assert_allclose(new[name], array, **TOLERANCE)
