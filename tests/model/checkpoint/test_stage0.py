"""A SigLIP file and a Gemma-2 folder, pretrained apart, become one checkpoint."""

import numpy as np
import orbax.checkpoint as ocp
import pytest

from model.checkpoint import stage0
from model.checkpoint.digest import flatten_params
from model.checkpoint.folder import load_params
from model.checkpoint.importer import import_checkpoint
from model.checkpoint.names import NamesError
from model.checkpoint.target import RequestError
from tests.model.checkpoint.converted import ODD, big_vision, random_params

PIECES = 37
BLOCK = "params/img/Transformer/encoderblock/"


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
def test_two_towers_become_one_checkpoint(tmp_path, scanned, two_towers, style):
    image = siglip(tmp_path / "s.npz", scanned=scanned, two_towers=two_towers)
    text = gemma(tmp_path / "gemma", **style)
    source = stage0.open_towers(image, text, pieces=PIECES, seed=3)
    import_checkpoint(source, tmp_path / "made", None)
    made = dict(flatten_params(load_params(tmp_path / "made")))
    for path, expected in flatten_params(random_params(ODD)):
        if path == "text/embedding":
            np.testing.assert_array_equal(made[path][:PIECES], expected[:PIECES])
        elif path.startswith("projector/"):
            assert not made[path].any()
        else:
            np.testing.assert_array_equal(made[path], expected, err_msg=path)
    fresh = made["text/embedding"][PIECES:]
    assert fresh.shape == (1152, ODD.text.width)
    assert 0.019 < fresh.std() < 0.021
    assert source.model.vision == ODD.vision


def test_published_embedding_is_cut_to_its_pieces():
    rows = stage0.Entry((256_128, 2304), np.dtype(np.float32), lambda: np.zeros(0))
    assert stage0._add_token_rows(rows, stage0.GEMMA_PIECES, 0).shape == (257_152, 2304)


@pytest.mark.slow
def test_added_rows_are_drawn_from_the_seed(tmp_path):
    image, text = siglip(tmp_path / "s.npz"), gemma(tmp_path / "gemma")
    tables = [
        dict(stage0.open_towers(image, text, pieces=PIECES, seed=seed).parameters())
        for seed in (0, 0, 1)
    ]
    first, again, other = (table["text/embedding"] for table in tables)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_lost_layer_and_a_lost_norm_are_named(tmp_path):
    text = gemma(tmp_path / "gemma")
    with np.load(siglip(tmp_path / "s.npz", scanned=False)) as file:
        arrays = dict(file)
    lost = "params/img/Transformer/encoderblock_1/LayerNorm_0/bias"
    np.savez(tmp_path / "a.npz", **{key: x for key, x in arrays.items() if key != lost})
    with pytest.raises(NamesError, match=r"LayerNorm_0/bias must come once for each of 3 layers"):
        stage0.open_towers(tmp_path / "a.npz", text, pieces=PIECES)
    norm = "params/img/Transformer/encoder_norm/scale"
    np.savez(tmp_path / "b.npz", **{key: x for key, x in arrays.items() if key != norm})
    with pytest.raises(NamesError, match=r"missing \['img/Transformer/encoder_norm/scale'\]"):
        stage0.open_towers(tmp_path / "b.npz", text, pieces=PIECES)


def test_what_is_no_tower_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"--siglip must be an \.npz"):
        stage0.open_towers(tmp_path, tmp_path)
    image = siglip(tmp_path / "s.npz")
    (tmp_path / "empty").mkdir()
    for wrong in (image, tmp_path / "empty"):
        with pytest.raises(RequestError, match="--gemma must be an Orbax folder"):
            stage0.open_towers(image, wrong)
