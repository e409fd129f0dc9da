"""A checkpoint folder: the model's configuration, parameters, tokenizer, mask codec and digest.

model.json       ModelConfig
params/          Orbax, a plain nested dict
tokenizer.model  where there is one: a converted checkpoint may lack it
mask_codec.npz   where there is one
digest.txt       content digest of the parameters
"""

import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from model.checkpoint.config_json import config_from_json, config_to_json
from model.checkpoint.digest import flatten, params_digest, unflatten
from model.config import ModelConfig
from model.files import CONFIG, DIGEST, MASK_CODEC, PARAMS, TOKENIZER

Params = dict[str, Any]


def save_checkpoint(
    out: str | Path,
    *,
    model: ModelConfig,
    params: Params,
    tokenizer: str | Path | None,
    mask_codec: str | Path | None,
) -> str:
    """Writes a checkpoint into an existing folder and returns its digest; `digest.txt` is last."""
    folder = Path(out).absolute()
    (folder / CONFIG).write_text(config_to_json(model))
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / TOKENIZER)
    if mask_codec is not None:
        shutil.copyfile(mask_codec, folder / MASK_CODEC)
    tree = unflatten(dict(flatten(params)))
    with ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(save_concurrent_gb=_in_flight(tree))
    ) as saver:
        saver.save(folder / PARAMS, args=ocp.args.PyTreeSave(tree), force=True)
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
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as loader:
        found = loader.metadata(folder / PARAMS).item_metadata
        # As numpy, whatever devices they were saved from.
        want = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), found.tree)
        args = ocp.args.PyTreeRestore(restore_args=want)
        restored = loader.restore(folder / PARAMS, args=args)
    return unflatten({path: np.asarray(leaf) for path, leaf in flatten(restored)})


def params_digest_of(checkpoint: str | Path) -> str:
    """Returns the content digest of a checkpoint's parameters, computed anew."""
    return params_digest(load_params(checkpoint))


def checked_digest(checkpoint: str | Path) -> str:
    """Returns the content digest that a checkpoint states, after computing it anew.

    Raises:
      ValueError: if it states another one, or the folder holds no finished checkpoint.
    """
    found = params_digest_of(checkpoint)
    stated = (Path(checkpoint) / DIGEST).read_text().strip()
    if found != stated:
        raise ValueError(
            f"checkpoint {checkpoint} holds parameters of digest {found[:12]}, and its {DIGEST} "
            f"states {stated[:12]!r}: it was changed; convert or train it again."
        )
    return found


def tokenizer_path(checkpoint: str | Path) -> Path:
    """Returns the tokenizer's file.

    Raises:
      ValueError: if the checkpoint has none.
    """
    path = Path(checkpoint) / TOKENIZER
    if not path.exists():
        raise ValueError(
            f"checkpoint {Path(checkpoint).name!r} has no {TOKENIZER}; convert it again with "
            "--tokenizer FILE, or copy the file there."
        )
    return path


def mask_codec_path(checkpoint: str | Path) -> Path | None:
    """Returns the mask codec's file, or None where the checkpoint has none."""
    path = Path(checkpoint) / MASK_CODEC
    return path if path.exists() else None


def _in_flight(tree: Params) -> int:
    """Returns how much Orbax may have in memory while it writes [GB]: the largest array, or 1."""
    return math.ceil(max(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e9)
