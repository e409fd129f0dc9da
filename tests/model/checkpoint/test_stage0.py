"""A tower and a decoder, pretrained apart, become one checkpoint."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from model.checkpoint import stage0
from model.checkpoint.digest import flatten_params
from model.checkpoint.folder import load_params
from model.checkpoint.importer import import_checkpoint, num_pieces, open_source
from model.checkpoint.names import NamesError
from model.checkpoint.target import RequestError
from model.layouts import HF_TOWER
from model.text.tokenizer import Tokenizer
from tests.model.checkpoint import converted
from tests.model.checkpoint.converted import ODD, later_names, random_params, write_hugging_face
from tests.model.families.references import DECODERS, TOWERS
from tests.model.families.test_parity import weights
from tests.model.tiny_data import write_tokenizer
from tests.torch_python import run_torch

# With more rows than the tokenizer has pieces.
WIDE = dataclasses.replace(ODD, text=dataclasses.replace(ODD.text, vocab_size=310))
BLOCK = "params/img/Transformer/encoderblock/"


def big_vision():
    return converted.big_vision(WIDE)


@pytest.fixture
def tokenizer(tmp_path):
    return Path(write_tokenizer(tmp_path / "t.model"))


def siglip(path, *, scanned=True, two_towers=True):
    """Writes a SigLIP file: the image tower, its pooling head, maybe a text tower beside."""
    arrays = {}
    for key, x in big_vision().items():
        if not key.startswith("params/img/") or "/head/" in key:
            continue
        if scanned or BLOCK not in key:
            arrays[key] = x
        else:
            for i, layer in enumerate(x):
                arrays[key.replace("encoderblock/", f"encoderblock_{i}/")] = layer
    arrays["params/img/MAPHead_0/probe"] = np.ones((1, 1, 12), np.float32)
    if two_towers:
        arrays |= {"params/t": np.ones(1), "params/txt/Embed_0/embedding": np.ones((5, 12))}
    else:
        arrays = {key.removeprefix("params/img/"): x for key, x in arrays.items()}
    np.savez(path, **arrays)
    return path


def gemma(path, *, swap=False, flat=False):
    """Writes a Gemma-2 folder as it is published, its embedding with unused rows."""
    layers = {}
    for key, x in big_vision().items():
        name = key.removeprefix("params/llm/")
        if name.startswith("layers/"):
            for i, layer in enumerate(x):
                one = layer.swapaxes(-1, -2) if swap and "gating" in name else layer
                layers[name.replace("layers/", f"layer_{i}/")] = one
    table = big_vision()["params/llm/embedder/input_embedding"]
    layers["embedder/input_embedding"] = table
    layers["final_norm/scale"] = big_vision()["params/llm/final_norm/scale"]
    tree = {}
    for key, x in layers.items():
        name = f"transformer/{key}"
        *parents, last = name.split("/")
        if last in ("gating_einsum", "linear"):
            parents, last = [*parents, last], "w"
        node = tree.setdefault("/".join(parents), {}) if flat else tree
        for part in () if flat else parents:
            node = node.setdefault(part, {})
        node[last] = x
    with ocp.PyTreeCheckpointer() as saver:
        saver.save(path, tree)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unscanned"])
@pytest.mark.parametrize("two_towers", [True, False], ids=["two-towers", "image-tower"])
@pytest.mark.parametrize("style", [{}, {"swap": True, "flat": True}], ids=["nested", "flat-swap"])
def test_two_towers_become_one_checkpoint(tmp_path, tokenizer, scanned, two_towers, style):
    image = siglip(tmp_path / "s.npz", scanned=scanned, two_towers=two_towers)
    text = gemma(tmp_path / "gemma", **style)
    source = stage0.open_towers(image, text, tokenizer=tokenizer, seed=3)
    import_checkpoint(source, tmp_path / "made", tokenizer)
    made = dict(flatten_params(load_params(tmp_path / "made")))
    pieces = Tokenizer(tokenizer).num_pieces
    for path, expected in flatten_params(random_params(WIDE)):
        if path == "text/embedding":
            np.testing.assert_array_equal(made[path][:pieces], expected[:pieces])
        elif path.startswith("projector/"):
            assert not made[path].any()
        else:
            np.testing.assert_array_equal(made[path], expected, err_msg=path)
    fresh = made["text/embedding"][pieces:]
    assert fresh.shape == (1152, ODD.text.width)
    assert 0.019 < fresh.std() < 0.021
    assert source.model.vision == ODD.vision
    assert (source.model.attn_softcap, source.model.final_softcap) == (50.0, 30.0)


@pytest.mark.parametrize(
    ("family", "rows", "pieces"),
    [
        ("gemma2", 256_128, 256_000),
        ("gemma3", 262_208, 262_144),
        ("llama", 32_000, 32_000),
        ("llama", 32_064, 32_000),
        ("llama", 128_256, 128_256),
        ("llama", 49_152, None),
    ],
)
def test_published_embeddings_are_cut_to_their_pieces(family, rows, pieces):
    assert num_pieces(family, rows, None) == pieces


@pytest.mark.slow
def test_what_is_new_is_drawn_from_the_seed(tmp_path):
    image, text = siglip(tmp_path / "s.npz"), gemma(tmp_path / "gemma")
    made = [
        dict(stage0.open_towers(image, text, projector="mlp", seed=seed).parameters())
        for seed in (0, 0, 1)
    ]
    for path in ("text/embedding", "projector/first/kernel"):
        first, again, other = (parameters[path] for parameters in made)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
    limit = (6 / (ODD.vision.width + ODD.text.width)) ** 0.5
    assert 0.8 * limit < np.abs(made[0]["projector/first/kernel"]).max() <= limit
    assert not any(x.any() for path, x in made[0].items() if path.startswith("projector/second/"))


def test_a_lost_layer_and_a_lost_norm_are_named(tmp_path):
    text = gemma(tmp_path / "gemma")
    with np.load(siglip(tmp_path / "s.npz", scanned=False)) as file:
        arrays = dict(file)
    lost = "params/img/Transformer/encoderblock_1/LayerNorm_0/bias"
    np.savez(tmp_path / "a.npz", **{key: x for key, x in arrays.items() if key != lost})
    with pytest.raises(NamesError, match=r"LayerNorm_0/bias .* 3 layers"):
        stage0.open_towers(tmp_path / "a.npz", text)
    norm = "params/img/Transformer/encoder_norm/scale"
    np.savez(tmp_path / "b.npz", **{key: x for key, x in arrays.items() if key != norm})
    with pytest.raises(NamesError, match=r"missing \['img/Transformer/encoder_norm/scale'\]"):
        stage0.open_towers(tmp_path / "b.npz", text)


def test_what_is_no_tower_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"--vision must be an \.npz"):
        stage0.open_towers(tmp_path, tmp_path)
    image = siglip(tmp_path / "s.npz")
    (tmp_path / "empty").mkdir()
    for wrong in (image, tmp_path / "empty"):
        with pytest.raises(RequestError, match="--text must be an Orbax folder"):
            stage0.open_towers(image, wrong)


def whole(folder: Path, tower: str, decoder: str) -> Path:
    """Writes a model of both in transformers' layout of 2024."""
    container = "llava" if tower.startswith("clip") else "paligemma"
    vision, text = TOWERS[tower], DECODERS[decoder]
    config = {"model_type": container, "vision_config": vision, "text_config": text}
    return write_hugging_face(folder, weights(vision, text, container), json.dumps(config))


def tower_folder(folder: Path, tower: str, decoder: str, kind: str) -> Path:
    """Writes a tower of `whole` alone, or the model that it was pretrained in."""
    vision, text = TOWERS[tower], DECODERS[decoder]
    tensors = weights(vision, text, "llava" if tower.startswith("clip") else "paligemma")
    # transformers 5 gives a tower's names no prefix.
    prefix = "" if kind == "alone" else "vision_model."
    renamed = {name.replace(HF_TOWER, prefix): x for name, x in tensors.items() if HF_TOWER in name}
    if kind == "alone":
        return write_hugging_face(folder, renamed, json.dumps(vision))
    more = {"text_model.encoder.layers.0.mlp.fc1.weight": np.zeros((2, 2)), "logit_scale": 1.0}
    renamed |= {name: np.array(x, np.float32) for name, x in more.items()}
    config = {"model_type": kind, "vision_config": vision, "text_config": {"model_type": "what"}}
    return write_hugging_face(folder, renamed, json.dumps(config))


def decoder_folder(folder: Path, tower: str, decoder: str, kind: str) -> Path:
    """Writes a decoder of `whole` alone, or in a model of Gemma 3's that sees pictures."""
    vision, text = TOWERS[tower], DECODERS[decoder]
    tensors = weights(vision, text, "llava" if tower.startswith("clip") else "paligemma")
    if kind == "gemma3":
        config = {"model_type": "gemma3", "vision_config": vision, "text_config": text}
        return write_hugging_face(folder, later_names(tensors), json.dumps(config))
    alone = {
        name.removeprefix("language_model."): x
        for name, x in tensors.items()
        if name.startswith(("language_model.", "lm_head."))
    }
    return write_hugging_face(folder, alone, json.dumps(text))


@pytest.mark.parametrize(
    ("tower", "decoder", "vision_kind", "text_kind"),
    [
        ("clip_a", "llama_a", "alone", "alone"),  # With an output matrix of its own.
        ("clip_b", "llama_b", "clip", "alone"),
        ("siglip2_a", "gemma3_a", "siglip2", "gemma3"),
        ("siglip_b", "gemma2_b", "siglip", "alone"),
    ],
)
def test_towers_of_hugging_face_are_those_of_the_whole(
    tmp_path, tower, decoder, vision_kind, text_kind
):
    both = open_source(whole(tmp_path / "both", tower, decoder))
    vision = tower_folder(tmp_path / "vision", tower, decoder, vision_kind)
    text = decoder_folder(tmp_path / "text", tower, decoder, text_kind)
    source = stage0.open_towers(vision, text)
    made, expected = dict(source.parameters()), dict(both.parameters())
    rows = both.model.text.vocab_size
    for path in expected:
        if path.split("/")[0] in ("vision", "text"):
            is_table = path in ("text/embedding", "text/head")
            np.testing.assert_array_equal(
                made[path][:rows] if is_table else made[path], expected[path], err_msg=path
            )
            assert len(made[path]) == len(expected[path]) + 1152 * is_table
    assert source.model.vision == both.model.vision
    assert source.model.text == dataclasses.replace(both.model.text, vocab_size=rows + 1152)
    assert source.model.final_softcap == both.model.final_softcap
    if "text/head" in made:
        assert not np.array_equal(made["text/head"][rows:], made["text/embedding"][rows:])


def test_towers_of_two_codebases_are_joined(tmp_path):
    image = siglip(tmp_path / "s.npz")
    text = decoder_folder(tmp_path / "text", "clip_a", "llama_a", "alone")
    source = stage0.open_towers(image, text, projector="mlp")
    import_checkpoint(source, tmp_path / "made", None)
    made = load_params(tmp_path / "made")
    expected = random_params(WIDE)["vision"]
    np.testing.assert_array_equal(made["vision"]["positions"], expected["positions"])
    assert (source.model.vision.family, source.model.text.family) == ("siglip", "llama")


def test_a_folder_of_the_other_kind_is_refused(tmp_path):
    text = decoder_folder(tmp_path / "text", "clip_a", "llama_a", "alone")
    with pytest.raises(ValueError, match=r"model_type .*siglip.*'llama'"):
        stage0.open_towers(text, text)
    vision = tower_folder(tmp_path / "vision", "clip_a", "llama_a", "clip")
    with pytest.raises(ValueError, match=r"model_type .*gemma2.*'what'"):
        stage0.open_towers(vision, vision)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.json").write_text(json.dumps(TOWERS["clip_a"]))
    with pytest.raises(ValueError, match=r"must hold model\.safetensors"):
        stage0.open_towers(tmp_path / "cut", text)


@pytest.mark.slow
def test_folders_that_transformers_writes_are_read(tmp_path):
    script = Path(__file__).with_name("towers_in_torch.py")
    for line in run_torch(tmp_path, str(script)).splitlines():
        vision, text, tower, decoder = line.split()
        source = stage0.open_towers(tmp_path / vision, tmp_path / text)
        assert (source.model.vision.family, source.model.text.family) == (tower, decoder)
        made = dict(source.parameters())
        assert made["text/embedding"].shape == (50 + 1152, 12)
        assert made["vision/blocks/mlp/up/kernel"].shape[1:] == (12, 7)
    # A LLaVA as a whole is read as its parts are.
    both = dict(open_source(tmp_path / "llava").parameters())
    parts = stage0.open_towers(tmp_path / "llava", tmp_path / "llava", projector="mlp")
    for path, x in parts.parameters():
        if not path.startswith("projector/"):
            np.testing.assert_array_equal(x[: len(both[path])], both[path], err_msg=path)
    assert both["projector/second/kernel"].any()
