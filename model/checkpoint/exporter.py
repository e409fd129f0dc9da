"""Export of our checkpoints to Hugging Face's layout or big_vision's.

Parameters are read and written one at a time, to save memory.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint import array_files, translate
from model.checkpoint.array_files import BFLOAT16, INDEX, SINGLE, Arrays, SafetensorsWriter, Shape
from model.checkpoint.folder import load_config, params_of
from model.checkpoint.hugging_face_config import ORIGIN, ORIGIN_ROWS, PADDED_ROWS, write_config
from model.checkpoint.names import EMBEDDING, HUGGING_FACE_EMBEDDING, is_paligemma
from model.checkpoint.target import RequestError, atomic_output
from model.files import DIGEST, TOKENIZER
from model.npz import read_npy

SHARD_BYTES = 4_500_000_000
"""Largest size of a shard, unless one tensor is larger. Source: transformers' default of 5 GB."""


def export_checkpoint(checkpoint: Path, out: Path, dtype: np.dtype | None) -> None:
    """Writes one of our checkpoints for another codebase.

    Args:
      checkpoint: folder of our checkpoint, which must be a vanilla model.
      out: `X.safetensors` (one file, its config.json in the header), `X.npz` (big_vision), or a
        folder for Hugging Face's layout: shards, index, config.json.
      dtype: float32 or bfloat16; None takes the type before the import, or float32 without one.

    Raises:
      RequestError: if the model has a connector or is no PaliGemma 2, or `out` exists.
      ValueError: if the checkpoint is not finished.
    """
    if not (checkpoint / DIGEST).exists():
        raise ValueError(f"checkpoint {checkpoint} is not finished: no {DIGEST}.")
    model = load_config(checkpoint)
    if model.connector.kind != "vanilla":
        raise RequestError(
            f"SRC must be a vanilla model to go to another codebase, got {model.connector.kind!r}: "
            "other codebases cannot store a connector."
        )
    if not is_paligemma(model):
        raise RequestError(
            f"SRC must have vision siglip, text gemma2 and a linear projector to go to another "
            f"codebase, got {model.vision.family}, {model.text.family} and {model.projector}: "
            "`parcel release` writes any pair for transformers."
        )
    params = params_of(checkpoint).arrays
    original = checkpoint / ORIGIN
    origin = json.loads(original.read_text()) if original.exists() else None
    if dtype is None:
        # An imported model goes back in the type it came in.
        imported = origin is not None and origin["dtype"] == "bfloat16"
        dtype = BFLOAT16 if imported else np.dtype(np.float32)
    with atomic_output(out) as target:
        if out.suffix == ".npz":
            array_files.write_npz(target, translate.to_big_vision(params, model), dtype)
            return
        # Hugging Face's embedding may have rows above our vocabulary; they are not among our
        # parameters and are put back below, so its shape must be known before the shards are
        # planned.
        above = _rows_above(checkpoint, params, origin)
        shapes = translate.hugging_face_shapes(model)
        shapes[HUGGING_FACE_EMBEDDING] = model.text.vocab_size + len(above), model.text.width
        config_text = origin or write_config(model, shapes[HUGGING_FACE_EMBEDDING][0], dtype)
        config = {**config_text, "dtype": dtype.name}
        if out.suffix == ".safetensors":
            shards = {target: shapes}
        else:
            target.mkdir()
            (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            if (checkpoint / TOKENIZER).exists():
                shutil.copyfile(checkpoint / TOKENIZER, target / TOKENIZER)
            shards = shards_in(target, shapes, dtype)
        # A generator: one tensor is in memory at a time.
        tensors = (
            (name, np.concatenate([array, above]) if name == HUGGING_FACE_EMBEDDING else array)
            for name, array in translate.to_hugging_face(params, model)
        )
        write_tensors(shards, tensors, dtype, _safetensors_metadata(config))


def write_tensors(
    shards: Mapping[Path, Mapping[str, Shape]],
    tensors: Iterable[tuple[str, np.ndarray]],
    dtype: np.dtype,
    metadata: Mapping[str, str],
) -> None:
    """Writes safetensors files, from tensors in any order.

    Args:
      shards: file -> the tensors that it holds.
      tensors: (name, array) of every tensor, each once.
      dtype: type in which all tensors are written.
      metadata: texts for every file's header.

    Raises:
      ValueError: if a tensor has another shape than announced, or is missing.
    """
    # Every file is open at once: tensors come in the order of our table, not file by file.
    writers = {
        name: writer
        for path, part in shards.items()
        for writer in [SafetensorsWriter(path, part, dtype, metadata)]
        for name in part
    }
    for name, array in tensors:
        writers[name].write(name, array)
    for writer in set(writers.values()):
        writer.close()


def _safetensors_metadata(config: dict[str, Any]) -> dict[str, str]:
    """Returns texts for a file's header: transformers needs the format, our importer the config."""
    return {"format": "pt", "config": json.dumps(config)}


def shards_in(
    folder: Path, shapes: Mapping[str, Shape], dtype: np.dtype
) -> dict[Path, dict[str, Shape]]:
    """Assigns tensors to files in a folder, and writes the index if there are several files."""
    # In order, each file as full as it gets, with a limit of 4.5 GB:
    #
    #     2.4  1.0  1.0 | 2.4  0.3  …      2.4 + 1.0 + 1.0 + 2.4 would be too much
    #
    # A tensor above the limit has a file of its own.
    groups: list[dict[str, Shape]] = [{}]
    filled = total = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        if groups[-1] and filled + size > SHARD_BYTES:
            groups.append({})
            filled = 0
        groups[-1][name] = shape
        filled, total = filled + size, total + size
    if len(groups) == 1:
        return {folder / SINGLE: groups[0]}
    # The name has the number of files, which is known only now.
    names = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in range(1, len(groups) + 1)]
    places = {key: name for name, group in zip(names, groups, strict=True) for key in group}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return {folder / name: group for name, group in zip(names, groups, strict=True)}


def _rows_above(checkpoint: Path, params: Arrays, origin: dict[str, Any] | None) -> np.ndarray:
    """Returns the embedding's rows above the vocabulary: those imported, or copies of the mean."""
    if (checkpoint / ORIGIN_ROWS).exists():
        return read_npy(checkpoint / ORIGIN_ROWS)
    embedding = params[EMBEDDING]
    if origin is not None:
        return embedding[:0]  # The imported checkpoint had no such rows.
    mean = np.mean(embedding, axis=0, dtype=np.float64).astype(np.float32)
    return np.tile(mean, (PADDED_ROWS, 1))
