import numpy as np
import pytest

from model.checkpoint.config_json import config_from_json, config_to_json
from model.checkpoint.digest import flatten_params, params_digest, unflatten_params
from model.checkpoint.folder import checked_digest, load_config, load_params, save_checkpoint
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.text.config import TextConfig
from model.train.config import TrainConfig
from model.vision.config import VisionConfig

MODEL = ModelConfig(
    vision=VisionConfig(image_px=32, patch_px=4, width=12, depth=1, mlp_dim=7, num_heads=3),
    text=TextConfig(
        vocab_size=1500, width=10, depth=1, mlp_dim=6, head_dim=4, num_heads=2, num_kv_heads=1
    ),
    connector=ConnectorConfig(kind="m3", num_heads=3),
)
PARAMS = {
    "text": {"embedding": np.arange(15, dtype=np.float32).reshape(5, 3)},
    "vision": {"block": {"kernel": np.ones((2, 7), np.float32), "bias": np.zeros(7, np.float32)}},
}


def test_configs_survive_json():
    assert config_from_json(ModelConfig, config_to_json(MODEL)) == MODEL
    train = TrainConfig(budgets=(4, 16), mixture=(("vqa", 2.0),))
    assert config_from_json(TrainConfig, config_to_json(train)) == train


def test_unknown_key_is_refused():
    with pytest.raises(ValueError, match=r"'depht'; .*family, image_px"):
        config_from_json(VisionConfig, '{"depht": 3}')


def test_folder_round_trip(tmp_path):
    tokenizer = tmp_path / "t.model"
    tokenizer.write_bytes(b"pieces")
    out = tmp_path / "checkpoint"
    out.mkdir()
    digest = save_checkpoint(out, model=MODEL, params=PARAMS, tokenizer=tokenizer, mask_codec=None)
    assert (out / "digest.txt").read_text().strip() == digest == params_digest(load_params(out))
    assert load_config(out) == MODEL
    for (path, loaded), (_, saved) in zip(
        flatten_params(load_params(out)), flatten_params(PARAMS), strict=True
    ):
        np.testing.assert_array_equal(loaded, saved, err_msg=path)
    (out / "digest.txt").unlink()
    with pytest.raises(ValueError, match="is not finished"):
        load_params(out)


def test_stated_digest_is_not_believed(tmp_path):
    stated = save_checkpoint(tmp_path, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None)
    assert checked_digest(tmp_path) == stated
    (tmp_path / "digest.txt").write_text("0" * 64)
    with pytest.raises(ValueError, match=r"digest .* states '000000000000'"):
        checked_digest(tmp_path)


def test_digest_sees_names_types_shapes_and_values():
    base = params_digest(PARAMS)
    flat = dict(flatten_params(PARAMS))
    assert params_digest(unflatten_params(flat)) == base
    changed = [
        {**flat, "text/embedding": flat["text/embedding"].reshape(3, 5)},
        {**flat, "text/embedding": flat["text/embedding"].astype(np.float64)},
        {**flat, "text/embedding": flat["text/embedding"] + 1e-6},
        {("x" + path): leaf for path, leaf in flat.items()},
    ]
    assert len({base, *(params_digest(unflatten_params(tree)) for tree in changed)}) == 5
