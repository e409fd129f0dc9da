"""A checkpoint folder: the model's configuration, parameters, tokenizer, mask codec and digest.

model.json       ModelConfig
params.json      the parameters' index, see `params_files`
params-…         the parameters
tokenizer.model  where there is one: a converted checkpoint may lack it
mask_codec.npz   where there is one
digest.txt       content digest of the parameters

Functions that read a checkpoint take a folder, or a place in a bucket (see
`infra.store.stored_folder`). In a bucket, the parameters are read in place, all other files from
this machine's cache.
"""

import shutil
from pathlib import Path
from typing import Any

from infra.store.stored_folder import StoredFolder, open_stored_folder
from model.checkpoint.config_json import config_from_json, config_to_json
from model.checkpoint.digest import params_digest, unflatten_params
from model.checkpoint.params_files import (
    ParamsReader,
    Put,
    put_into,
    read_index,
    write_params,
)
from model.config import ModelConfig
from model.files import CONFIG, DIGEST, MASK_CODEC, METRICS, PARAMS, TOKENIZER, WATCH

Params = dict[str, Any]
Checkpoint = str | Path | StoredFolder

_SMALL = (CONFIG, DIGEST, MASK_CODEC, METRICS, PARAMS, TOKENIZER, WATCH)


def save_checkpoint(
    out: str | Path,
    *,
    model: ModelConfig,
    params: Params,
    tokenizer: str | Path | None,
    mask_codec: str | Path | None,
    put: Put | None = None,
) -> str:
    """Writes a checkpoint into an existing folder and returns its digest; `digest.txt` is last.

    Args:
      out: the folder.
      model: the model's configuration.
      params: nested dict of arrays.
      tokenizer: file of the tokenizer, of either kind; None for none.
      mask_codec: `.npz` of the codec; None for none.
      put: function that stores the parameter files elsewhere; None stores them in `out`.
    """
    folder = Path(out).absolute()
    (folder / CONFIG).write_text(config_to_json(model))
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / TOKENIZER)
    if mask_codec is not None:
        shutil.copyfile(mask_codec, folder / MASK_CODEC)
    return finish_checkpoint(folder, params, put)


def finish_checkpoint(folder: Path, params: Params, put: Put | None) -> str:
    """Writes the parameters of a checkpoint whose other files exist, and returns their digest.

    Args:
      folder: folder of the checkpoint.
      params: see `save_checkpoint`.
      put: see `save_checkpoint`.
    """
    (folder / PARAMS).write_text(write_params(params, put or put_into(folder)))
    # After the parameters: a folder with a digest is complete.
    digest = params_digest(params)
    (folder / DIGEST).write_text(digest + "\n")
    return digest


def load_config(checkpoint: Checkpoint) -> ModelConfig:
    """Returns the model's configuration."""
    path = _folder_without_parameters(checkpoint) / CONFIG
    return config_from_json(ModelConfig, path.read_bytes(), str(path))


def load_params(checkpoint: Checkpoint) -> Params:
    """Returns the parameters as a nested dict of numpy arrays.

    Raises:
      ValueError: if the folder holds no finished checkpoint, or a checksum does not match.
    """
    reader = params_of(checkpoint)
    return unflatten_params(reader.read_all(dict.fromkeys(reader.arrays, ())))


def params_of(checkpoint: Checkpoint) -> ParamsReader:
    """Returns the parameters, to be read one by one or in part.

    Raises:
      ValueError: if the folder holds no finished checkpoint.
    """
    place = open_stored_folder(checkpoint)
    folder = _folder_without_parameters(place)
    if not (folder / DIGEST).exists():
        raise ValueError(
            f"checkpoint {_checkpoint_folder_name(place)!r} is not finished: no {DIGEST}; "
            f"train it again."
        )
    if not (folder / PARAMS).exists():
        raise ValueError(
            f"checkpoint {_checkpoint_folder_name(place)!r} has no {PARAMS}: an earlier version "
            f"made it; convert or train it again."
        )
    return ParamsReader(place, read_index(place))


def params_digest_of(checkpoint: Checkpoint) -> str:
    """Returns the content digest of a checkpoint's parameters, computed from their values."""
    return params_digest(load_params(checkpoint))


def checked_digest(checkpoint: Checkpoint) -> str:
    """Returns the content digest that a checkpoint states, after checking it on the parameters.

    Raises:
      ValueError: if the digests differ, or the folder holds no finished checkpoint.
    """
    # From the values, all of which are read: a changed file would not change what it states.
    actual = params_digest_of(checkpoint)
    recorded = stated_digest(checkpoint)
    if actual != recorded:
        raise ValueError(
            f"checkpoint {checkpoint} holds parameters of digest {actual[:12]}, and its {DIGEST} "
            f"states {recorded[:12]!r}: it was changed; convert or train it again."
        )
    return actual


def tokenizer_path(checkpoint: Checkpoint) -> Path:
    """Returns the tokenizer's file.

    Raises:
      ValueError: if the checkpoint has none.
    """
    place = open_stored_folder(checkpoint)
    path = _folder_without_parameters(place) / TOKENIZER
    if not path.exists():
        raise ValueError(
            f"checkpoint {_checkpoint_folder_name(place)!r} has no {TOKENIZER}; convert it again "
            "with --tokenizer FILE, or copy the file there."
        )
    return path


def mask_codec_path(checkpoint: Checkpoint) -> Path | None:
    """Returns the mask codec's file, or None where the checkpoint has none."""
    path = _folder_without_parameters(checkpoint) / MASK_CODEC
    return path if path.exists() else None


def stated_digest(checkpoint: Checkpoint) -> str:
    """Returns the content digest that a checkpoint states.

    Raises:
      FileNotFoundError: if the checkpoint is not finished.
    """
    return (_folder_without_parameters(checkpoint) / DIGEST).read_text().strip()


def _folder_without_parameters(checkpoint: Checkpoint) -> Path:
    """Returns a local folder with all files of a checkpoint but the parameters."""
    return open_stored_folder(checkpoint).local_folder(_SMALL)


def _checkpoint_folder_name(place: StoredFolder) -> str:
    return place.uri.rpartition("/")[2]
