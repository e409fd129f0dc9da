"""Whole conversions between codebases, on small models of uncommon sizes."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from model import vlm
from model.checkpoint import array_files, exporter, translate
from model.checkpoint.digest import flatten_params
from model.checkpoint.exporter import export_checkpoint
from model.checkpoint.folder import load_config, load_params, tokenizer_path
from model.checkpoint.importer import import_checkpoint, open_source
from model.checkpoint.names import NamesError
from model.checkpoint.target import RequestError
from model.config import ModelConfig
from model.presets import paligemma2_3b
from model.text.tokenizer import Tokenizer
from tests.model.checkpoint.converted import (
    ODD,
    as_void,
    big_vision,
    config_of,
    hugging_face,
    imported,
    later_names,
    ours,
    random_params,
    write_hugging_face,
)
from tests.model.families.references import DECODERS, TOWERS
from tests.model.families.test_parity import weights
from tests.model.tiny_data import write_tokenizer

PUBLISHED_PARAMETERS = 3_032_094_960


def assert_same(params, expected=None):
    expected = random_params(ODD) if expected is None else expected
    for (path, one), (name, two) in zip(
        flatten_params(params), flatten_params(expected), strict=True
    ):
        assert path == name
        np.testing.assert_array_equal(one, two, err_msg=path, strict=True)


@pytest.mark.parametrize("prefix", ["params/", ""])
def test_big_vision_of_any_size(tmp_path, prefix):
    arrays = {key.replace("params/", prefix): x for key, x in big_vision().items()}
    np.savez(tmp_path / "x.npz", **arrays)
    folder = imported(tmp_path / "x.npz", tmp_path)
    assert load_config(folder) == ODD
    assert_same(load_params(folder))


def test_big_vision_in_bfloat16_beside_an_optimizer(tmp_path):
    arrays = as_void(big_vision()) | {"opt/0/count": np.zeros(())}
    np.savez(tmp_path / "x.npz", **arrays)
    params = load_params(imported(tmp_path / "x.npz", tmp_path))
    assert_same(params, random_params(ODD, dtype=ml_dtypes.bfloat16))


@pytest.mark.parametrize("rename", [lambda x: x, later_names], ids=["hub", "later"])
@pytest.mark.parametrize("head", [False, True], ids=["no-head", "lm_head"])
def test_hugging_face_names(tmp_path, rename, head):
    tensors = hugging_face()
    if head:
        embedding = tensors["language_model.model.embed_tokens.weight"]
        tensors["language_model.lm_head.weight"] = embedding
    tensors["vision_tower.vision_model.embeddings.position_ids"] = np.arange(9)[None]
    folder = write_hugging_face(tmp_path / "hf", rename(tensors), config_of())
    assert load_config(imported(folder, tmp_path)) == ODD
    assert_same(load_params(tmp_path / "imported"))


def test_an_untied_head_is_refused(tmp_path):
    tensors = hugging_face()
    tensors["lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"] + 1
    folder = write_hugging_face(tmp_path / "hf", tensors, config_of())
    with pytest.raises(NamesError, match=r"lm_head\.weight must equal the embedding"):
        open_source(folder)


def test_rows_above_the_vocabulary_are_cut_and_come_back(tmp_path):
    tensors = hugging_face()
    key = "language_model.model.embed_tokens.weight"
    extra = np.full((64, ODD.text.width), 0.125, np.float32)
    tensors[key] = np.concatenate([tensors[key], extra])
    folder = write_hugging_face(tmp_path / "hf", tensors, config_of(rows=41 + 64))
    made = imported(folder, tmp_path)
    assert load_params(made)["text"]["embedding"].shape == (41, 10)
    export_checkpoint(made, tmp_path / "back", None)
    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    np.testing.assert_array_equal(back[key], tensors[key], strict=True)


def test_published_vocabulary_is_257152_where_the_config_does_not_say(tmp_path):
    config = json.loads(config_of())
    del config["vocab_size"]
    folder = write_hugging_face(tmp_path / "hf", hugging_face(), json.dumps(config))
    assert open_source(folder).model.text.vocab_size == 41
    published = translate.hugging_face_shapes(paligemma2_3b())
    assert published["language_model.model.embed_tokens.weight"] == (257_152, 2304)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_there_and_back_to_hugging_face_is_bitwise(tmp_path, dtype):
    tensors = {key: x.astype(dtype) for key, x in hugging_face().items()}
    config = json.loads(config_of()) | {"image_token_index": 40, "note": "kept"}
    folder = write_hugging_face(tmp_path / "hf", tensors, json.dumps(config))
    export_checkpoint(imported(folder, tmp_path), tmp_path / "back", None)
    back = array_files.read_safetensors_folder(tmp_path / "back")
    assert set(back) == set(tensors)
    for key, x in tensors.items():
        np.testing.assert_array_equal(back[key], x, err_msg=key, strict=True)
    kept = json.loads((tmp_path / "back" / "config.json").read_text())
    assert kept["note"] == "kept"
    assert kept["dtype"] == np.dtype(dtype).name


@pytest.mark.parametrize("target", ["x.safetensors", "x.npz", "folder"])
def test_ours_survive_another_codebase(tmp_path, target):
    folder = ours(tmp_path / "ours")
    export_checkpoint(folder, tmp_path / target, None)
    again = imported(tmp_path / target, tmp_path)
    assert load_config(again) == ODD
    assert_same(load_params(again))
    assert (again / "digest.txt").read_text() == (folder / "digest.txt").read_text()


def test_big_vision_export_is_what_big_vision_reads(tmp_path):
    export_checkpoint(ours(tmp_path / "ours"), tmp_path / "x.npz", None)
    expected = big_vision()
    with np.load(tmp_path / "x.npz") as file:
        assert set(file.files) == set(expected)
        for key in file.files:
            np.testing.assert_array_equal(file[key], expected[key], err_msg=key, strict=True)


def test_bfloat16_export_halves_the_bytes_and_shards(tmp_path, monkeypatch):
    folder = ours(tmp_path / "ours", dtype=ml_dtypes.bfloat16)
    monkeypatch.setattr(exporter, "SHARD_BYTES", 2000)
    export_checkpoint(folder, tmp_path / "hf", np.dtype(ml_dtypes.bfloat16))
    shards = sorted((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    rows = 41 + 64  # The image token, and what aligns the table.
    total = sum(x.size for x in hugging_face().values()) + 64 * ODD.text.width
    assert index["metadata"]["total_size"] == 2 * total
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["text_config"]["vocab_size"] == rows
    assert config["image_token_index"] == 41
    assert_same(
        load_params(imported(tmp_path / "hf", tmp_path)),
        random_params(ODD, dtype=ml_dtypes.bfloat16),
    )


def test_a_window_and_softcaps_come_from_the_config(tmp_path):
    config = json.loads(config_of())
    config["text_config"] |= {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 17,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 20.0,
    }
    folder = write_hugging_face(tmp_path / "hf", hugging_face(), json.dumps(config))
    model = open_source(folder).model
    assert model.text.sliding_window == 17
    assert (model.attn_softcap, model.final_softcap) == (0, 20)


def test_the_tokenizer_beside_the_tensors_comes_along(tmp_path):
    text = dataclasses.replace(ODD.text, vocab_size=2000)
    cfg = ModelConfig(vision=ODD.vision, text=text)
    folder = write_hugging_face(tmp_path / "hf", hugging_face(cfg), config_of(cfg))
    write_tokenizer(folder / "tokenizer.model")
    made = imported(folder, tmp_path)
    assert tokenizer_path(made).read_bytes() == (folder / "tokenizer.model").read_bytes()


def test_the_published_model_matches_name_by_name():
    published = paligemma2_3b()
    theirs = translate.hugging_face_shapes(published)
    stacked = translate.big_vision_shapes(published)
    for shapes in (theirs, stacked):
        assert sum(int(np.prod(shape)) for shape in shapes.values()) == PUBLISHED_PARAMETERS
    assert len(theirs) == 727
    assert stacked["params/llm/layers/attn/kv_einsum/w"] == (26, 2, 4, 2304, 256)
    assert stacked["params/llm/layers/mlp/gating_einsum"] == (26, 2, 2304, 9216)
    assert stacked["params/img/pos_embedding"] == (1, 256, 1152)
    attn = "params/img/Transformer/encoderblock/MultiHeadDotProductAttention_0/"
    assert stacked[attn + "query/kernel"] == (27, 1152, 16, 72)
    assert stacked[attn + "out/kernel"] == (27, 16, 72, 1152)
    layer = "language_model.model.layers.25.self_attn."
    assert theirs[layer + "q_proj.weight"] == (2048, 2304)
    assert theirs[layer + "k_proj.weight"] == (1024, 2304)
    assert theirs[layer + "o_proj.weight"] == (2304, 2048)
    patches = "vision_tower.vision_model.embeddings.patch_embedding.weight"
    assert theirs[patches] == (1152, 3, 14, 14)
    expected = {path: leaf.shape for path, leaf in flatten_params(_abstract(published))}
    assert translate.our_shapes(theirs) == translate.our_shapes(stacked) == expected


def _abstract(cfg):
    return vlm.abstract_params(cfg)


def llava(folder, *, later=False, **config):
    """Writes a LLaVA, whose embedding has more rows than its tokenizer has pieces."""
    vision, text = TOWERS["clip_a"], {**DECODERS["llama_a"], "vocab_size": 320}
    tensors = weights(vision, text, "llava")
    config = {"model_type": "llava", "vision_config": vision, "text_config": text, **config}
    return write_hugging_face(
        folder, later_names(tensors) if later else tensors, json.dumps(config)
    )


def test_a_llava_comes_in_from_either_layout(tmp_path):
    made = [
        dict(open_source(llava(tmp_path / name, later=later)).parameters())
        for name, later in (("before", False), ("after", True))
    ]
    assert made[0].keys() == made[1].keys()
    for path, x in made[0].items():
        np.testing.assert_array_equal(x, made[1][path], err_msg=path)
    assert made[0]["text/head"].shape == made[0]["text/embedding"].shape == (320, 20)
    assert len(made[0]["vision/blocks/mlp/up/kernel"]) == 1  # Of two, as the last is unused.


def test_the_vocabulary_of_a_llava_gets_places_and_masks(tmp_path):
    folder = llava(tmp_path / "hf")
    plain = dict(open_source(folder).parameters())
    pieces = Tokenizer(write_tokenizer(folder / "tokenizer.model")).num_pieces
    source = open_source(folder)
    assert import_checkpoint(source, tmp_path / "made", None)
    made = dict(flatten_params(load_params(tmp_path / "made")))
    for path in ("text/embedding", "text/head"):
        assert made[path].shape == (pieces + 1152, 20)
        np.testing.assert_array_equal(made[path][:pieces], plain[path][:pieces])
    assert not (tmp_path / "made" / "hugging_face.json").exists()
    with pytest.raises(RequestError, match=r"got clip, llama and mlp: `parcel release`"):
        export_checkpoint(tmp_path / "made", tmp_path / "back", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vision_feature_layer", -1), ("vision_feature_select_strategy", "full")],
)
def test_a_llava_of_other_features_is_refused(tmp_path, field, value):
    folder = llava(tmp_path / "hf", **{field: value})
    with pytest.raises(ValueError, match=rf"config\.json: llava\.{field} must be"):
        open_source(folder)
