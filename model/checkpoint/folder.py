"""A checkpoint folder: the model's configuration, parameters, tokenizer, mask codec and digest.

model.json       ModelConfig
params/          Orbax, a plain nested dict
tokenizer.model
mask_codec.npz   where there is one
digest.txt       content digest of the parameters
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from model.checkpoint.config_json import config_from_json, config_to_json
from model.checkpoint.digest import flatten, params_digest, unflatten
from model.config import ModelConfig

CONFIG, PARAMS, TOKENIZER = "model.json", "params", "tokenizer.model"
MASK_CODEC, DIGEST = "mask_codec.npz", "digest.txt"

Params = dict[str, Any]


def save_checkpoint(
    out: str | Path,
    *,
    model: ModelConfig,
    params: Params,
    tokenizer: str | Path,
    mask_codec: str | Path | None,
) -> str:
    """Writes a checkpoint into an existing folder and returns its digest; `digest.txt` is last."""
    folder = Path(out).absolute()
    (folder / CONFIG).write_text(config_to_json(model))
    shutil.copyfile(tokenizer, folder / TOKENIZER)
    if mask_codec is not None:
        shutil.copyfile(mask_codec, folder / MASK_CODEC)
    with ocp.StandardCheckpointer() as saver:
        saver.save(folder / PARAMS, unflatten(dict(flatten(params))), force=True)
        saver.wait_until_finished()
    digest = params_digest(params)
    (folder / DIGEST).write_text(digest + "\n")
    return digest


def load_config(checkpoint: str | Path) -> ModelConfig:
    """Returns the model's configuration."""
    return config_from_json(ModelConfig, (Path(checkpoint) / CONFIG).read_text())


def load_params(checkpoint: str | Path) -> Params:
    """Returns the parameters as a nested dict of numpy arrays.

    Raises:
      ValueError: if the folder holds no finished checkpoint.
    """
    folder = Path(checkpoint).absolute()
    if not (folder / DIGEST).exists():
        raise ValueError(
            f"checkpoint {folder.name!r} is not finished: no {DIGEST}; train it again."
        )
    with ocp.PyTreeCheckpointer() as loader:
        restored = loader.restore(folder / PARAMS)
    return unflatten({path: np.asarray(leaf) for path, leaf in flatten(restored)})


def mask_codec_path(checkpoint: str | Path) -> Path | None:
    """Returns the mask codec's file, or None where the checkpoint has none."""
    path = Path(checkpoint) / MASK_CODEC
    return path if path.exists() else None
