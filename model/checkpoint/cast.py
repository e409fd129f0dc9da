"""Writes a checkpoint's parameters in a smaller type, for decoding alone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from infra.progress import Progress
from infra.store.stored_folder import open_stored_folder
from model.checkpoint.digest import unflatten_params
from model.checkpoint.folder import finish_checkpoint, params_of
from model.checkpoint.params_files import Put
from model.files import CONFIG, MASK_CODEC, TOKENIZER


def cast_checkpoint(
    place: str, out: Path, dtype: np.dtype, put: Put | None = None
) -> Iterator[Progress]:
    """Writes a checkpoint with every parameter rounded to `dtype`; yields progress by array.

    Args:
      place: the checkpoint: a folder, or a place in a bucket.
      out: existing folder of the new one, whose `digest.txt` is last.
      dtype: type of its parameters.
      put: function that stores the parameter files elsewhere; None stores them in `out`.

    Raises:
      ValueError: if the folder holds no finished checkpoint, or a checksum does not match.
    """
    # Array by array: all of the new parameters and one of the old are in memory at a time.
    reader = params_of(place)
    arrays: dict[str, Any] = {}
    for path in reader.arrays:
        arrays[path] = reader.read(path).astype(dtype)
        yield Progress(done=len(arrays), total=len(reader.arrays))
    # The config is copied as text: to read it would import the connector, which may be the user's.
    names = (CONFIG, TOKENIZER, MASK_CODEC)
    folder = open_stored_folder(place).local_folder(names)
    for name in names:
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    finish_checkpoint(out, unflatten_params(arrays), put)
