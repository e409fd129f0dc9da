"""Conversions that must be refused, and what they say."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from model.checkpoint.exporter import export_checkpoint
from model.checkpoint.folder import tokenizer_path
from model.checkpoint.importer import import_checkpoint, open_source
from model.checkpoint.names import NamesError
from model.checkpoint.target import RequestError
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from tests.model.checkpoint.converted import (
    ODD,
    big_vision,
    config_of,
    hugging_face,
    imported,
    ours,
    write_hugging_face,
)
from tests.model.tiny_data import write_tokenizer


@pytest.mark.parametrize("kind", ["big_vision", "hugging_face"])
def test_one_error_names_what_is_missing_and_unknown(tmp_path, kind):
    if kind == "big_vision":
        arrays = big_vision()
        del arrays["params/llm/final_norm/scale"]
        path, missing = tmp_path / "x.npz", "llm/final_norm/scale"
        np.savez(path, **arrays, **{"params/img/what": np.zeros(3)})
    else:
        tensors = hugging_face()
        missing = "language_model.model.layers.0.mlp.up_proj.weight"
        del tensors[missing]
        tensors["vision_tower.vision_model.what"] = np.zeros(3)
        path = write_hugging_face(tmp_path / "hf", tensors, config_of())
    with pytest.raises(NamesError) as told:
        open_source(path)
    assert f"missing ['{missing}']" in str(told.value)
    assert "what']" in str(told.value)


def test_long_lists_are_cut(tmp_path):
    tensors = {key: x for key, x in hugging_face().items() if "layers" not in key}
    folder = write_hugging_face(tmp_path / "hf", tensors, config_of())
    with pytest.raises(NamesError, match=r"missing \[.*\] and \d+ more"):
        open_source(folder)


def test_a_layer_in_between_is_missed(tmp_path):
    tensors = {key: x for key, x in hugging_face().items() if "encoder.layers.1." not in key}
    folder = write_hugging_face(tmp_path / "hf", tensors, config_of())
    with pytest.raises(NamesError, match=r"encoder\.layers\.1\.layer_norm1"):
        open_source(folder)


def test_two_keys_for_one_parameter_are_refused(tmp_path):
    tensors = hugging_face()
    tensors["model.language_model.norm.weight"] = np.zeros(10, np.float32)
    folder = write_hugging_face(tmp_path / "hf", tensors, config_of())
    with pytest.raises(NamesError, match=r"language_model\.model\.norm\.weight once"):
        open_source(folder)


@pytest.mark.parametrize("kind", ["big_vision", "hugging_face"])
def test_another_shape_is_named(tmp_path, kind):
    if kind == "big_vision":
        arrays = big_vision()
        key = "params/llm/layers/mlp/linear"
        arrays[key] = arrays[key][:, :-1]
        np.savez(tmp_path / "x.npz", **arrays)
        path, told = tmp_path / "x.npz", r"llm/layers/mlp/linear: \(2, 10, 10\) for \(2, 11, 10\)"
    else:
        tensors = hugging_face()
        key = "language_model.model.layers.1.self_attn.k_proj.weight"
        tensors[key] = tensors[key][:-1].copy()
        path = write_hugging_face(tmp_path / "hf", tensors, config_of())
        told = r"layers\.1\.self_attn\.k_proj\.weight: \(11, 10\) for \(12, 10\)"
    with pytest.raises(NamesError, match=told):
        open_source(path)


def test_wrong_head_counts_do_not_fit_the_shapes(tmp_path):
    config = json.loads(config_of())
    config["text_config"]["num_attention_heads"] = 2
    folder = write_hugging_face(tmp_path / "hf", hugging_face(), json.dumps(config))
    with pytest.raises(NamesError, match=r"q_proj\.weight"):
        open_source(folder)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("text_config", "attention_bias", True),
        ("vision_config", "hidden_act", "gelu"),
        ("text_config", "model_type", "gemma"),
        ("text_config", "layer_types", ["full_attention", "sliding_attention"]),
        ("text_config", "rope_parameters", {"rope_type": "yarn"}),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(tmp_path, part, field, value):
    config = json.loads(config_of())
    config[part][field] = value
    folder = write_hugging_face(tmp_path / "hf", hugging_face(), json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json"):
        open_source(folder)


def test_tensors_without_a_config_ask_for_it(tmp_path):
    safetensors.numpy.save_file(hugging_face(), tmp_path / "x.safetensors")
    with pytest.raises(RequestError, match="--config FILE"):
        open_source(tmp_path / "x.safetensors")
    (tmp_path / "elsewhere.json").write_text(config_of())
    source = open_source(tmp_path / "x.safetensors", tmp_path / "elsewhere.json")
    assert source.model == ODD


def test_a_tokenizer_must_fit_and_may_be_absent(tmp_path):
    folder = write_hugging_face(tmp_path / "hf", hugging_face(), config_of())
    tokenizer = Path(write_tokenizer(tmp_path / "tokenizer.model"))
    with pytest.raises(RequestError, match="at most 41 tokens"):
        import_checkpoint(open_source(folder), tmp_path / "a", tokenizer)
    made = imported(folder, tmp_path)
    with pytest.raises(ValueError, match="convert it again with --tokenizer FILE"):
        tokenizer_path(made)


def test_nothing_is_overwritten_and_nothing_half_made_stays(tmp_path):
    folder = ours(tmp_path / "ours")
    with pytest.raises(RequestError, match="DST must not exist yet"):
        export_checkpoint(folder, folder, None)
    tensors = hugging_face()
    source = open_source(write_hugging_face(tmp_path / "hf", tensors, config_of()))
    size = (tmp_path / "hf" / "model.safetensors").stat().st_size
    with (tmp_path / "hf" / "model.safetensors").open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(ValueError, match="reshape"):
        import_checkpoint(source, tmp_path / "made", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "ours"]


def test_connectors_stay_here(tmp_path):
    vision = dataclasses.replace(ODD.vision, image_px=40)
    cfg = ModelConfig(vision=vision, text=ODD.text, connector=ConnectorConfig(kind="m3"))
    folder = ours(tmp_path / "ours", cfg)
    with pytest.raises(RequestError, match=r"SRC .*vanilla.* got 'm3'"):
        export_checkpoint(folder, tmp_path / "x", None)
