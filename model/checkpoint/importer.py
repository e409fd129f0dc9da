"""Import of other codebases' checkpoints.

An import needs memory for our float32 parameters, and for one array of the source at a time.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from infra.typed_json import parse_typed
from model.checkpoint import array_files, translate
from model.checkpoint.array_files import BFLOAT16, INDEX, SINGLE, Arrays
from model.checkpoint.digest import unflatten_params
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.hugging_face_config import ORIGIN, ORIGIN_ROWS, read_config
from model.checkpoint.names import (
    HUGGING_FACE_EMBEDDING,
    LM_HEAD,
    TOKEN_ROWS,
    NamesError,
    big_vision_keys,
    hugging_face_keys,
    names_of,
    used_names,
)
from model.checkpoint.sizes import big_vision_facts, model_config
from model.checkpoint.target import RequestError, atomic_output
from model.config import ModelConfig
from model.files import CONFIG, TOKENIZER


@dataclasses.dataclass(frozen=True)
class SourceCheckpoint:
    """A checkpoint of another codebase: names and shapes are checked, arrays are not read yet.

    Attributes:
      model: configuration of the model.
      arrays: its arrays, by their names in the file.
      origin: "big_vision" or "Hugging Face".
      config: Hugging Face's `config.json`; None if there is none.
      tokenizer: the tokenizer's file beside it, if there is one.
    """

    model: ModelConfig
    arrays: Arrays
    origin: str
    config: dict[str, Any] | None = None
    tokenizer: Path | None = None

    def parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (our path, float32 array) of every parameter."""
        if self.origin == "big_vision":
            parameters = translate.read_big_vision(self.arrays)
        else:
            parameters = translate.read_hugging_face(self.arrays, names_of(self.model))
        for path, array in parameters:
            yield path, array[: self.model.text.vocab_size] if path in TOKEN_ROWS else array


def open_source(path: Path, config: Path | None = None) -> SourceCheckpoint:
    """Returns a checkpoint to import, checked by name and shape.

    Args:
      path: an `.npz` of big_vision, a `.safetensors`, or a folder of them.
      config: Hugging Face's `config.json`; None takes the one beside the tensors, or in the file.

    Raises:
      RequestError: if the path is none of these, or the tensors come without a configuration.
      ValueError: naming parameters that are missing, unknown or of another shape.
    """
    if path.suffix == ".npz" and path.is_file():
        return big_vision_source(array_files.read_npz(path))
    if path.suffix == ".safetensors" and path.is_file():
        arrays, folder = array_files.read_safetensors(path), path.parent
    elif path.is_dir() and any((path / name).exists() for name in (INDEX, SINGLE)):
        arrays, folder = array_files.read_safetensors_folder(path), path
    else:
        content = "no such path" if not path.exists() else "something else"
        raise RequestError(
            f"SRC must be an .npz of big_vision, a .safetensors file, a folder with {SINGLE} or "
            f"{INDEX}, or a checkpoint of ours (with {CONFIG}), got {content}: {path}."
        )
    tokenizer = folder / TOKENIZER if path.is_dir() and (folder / TOKENIZER).exists() else None
    return _hugging_face_source(arrays, _config_beside(arrays, folder, config), tokenizer)


def big_vision_source(arrays: Arrays) -> SourceCheckpoint:
    """Returns the checked source of arrays with big_vision's names; raises as `open_source`."""
    # Names first, then sizes, then shapes: a missing parameter is reported by its name, and not as
    # a size that cannot be read.
    origin, keys = "big_vision", big_vision_keys(arrays)
    translate.check_big_vision(keys)
    shapes = {key: arrays.entries[name].shape for key, name in keys.items()}
    model = model_config(translate.our_shapes(shapes), big_vision_facts(shapes))
    expected_shapes = translate.big_vision_shapes(model)
    expected = {
        key: expected_shapes[name] for key, name in big_vision_keys(expected_shapes).items()
    }
    translate.check_shapes(expected, shapes, origin)
    return SourceCheckpoint(model, arrays, origin)


def _config_beside(arrays: Arrays, folder: Path, config: Path | None) -> dict[str, Any]:
    if config is None and (folder / "config.json").exists():
        config = folder / "config.json"
    if config is not None and not config.is_file():
        raise RequestError(f"--config must be a Hugging Face config.json, got {config}.")
    text = config.read_bytes() if config else arrays.metadata.get("config")
    if text is None:
        raise RequestError(
            f"--config FILE must name the config.json of these tensors, as none lies in {folder}: "
            "numbers of heads cannot be read off the shapes."
        )
    name = str(config) if config else "the config in the header"
    return parse_typed(dict[str, Any], text, name)


def _hugging_face_source(
    arrays: Arrays, config: dict[str, Any], tokenizer: Path | None
) -> SourceCheckpoint:
    origin, facts = "Hugging Face", read_config(config)
    # Names, sizes, shapes, as in `big_vision_source`. Sizes come from the shapes of the first
    # layer; all others must then agree with the model that results.
    keys = hugging_face_keys(arrays)
    used = used_names(keys, facts.vision["family"])
    keys = {name: key for name, key in keys.items() if name in used}
    arrays = Arrays({key: arrays.entries[key] for key in keys.values()}, arrays.metadata)
    translate.check_hugging_face(keys, facts.names)
    shapes = {name: arrays.entries[key].shape for name, key in keys.items()}
    model = model_config(translate.our_shapes(shapes, facts.names), facts)
    expected_shapes = translate.hugging_face_shapes(model)
    expected_shapes |= translate.other_shapes(model, shapes)
    # The file may have more rows than the vocabulary, as padding; `parameters` leaves them out.
    rows = max(shapes[HUGGING_FACE_EMBEDDING][0], model.text.vocab_size)
    for key in (HUGGING_FACE_EMBEDDING, *({LM_HEAD} & set(keys))):
        expected_shapes[key] = rows, model.text.width
    translate.check_shapes(expected_shapes, shapes, origin)
    # Some files have the output matrix too. Our model has one table for both, so if the two differ,
    # importing either would change the model.
    if LM_HEAD in keys and model.text.tied:
        tied = arrays[keys[HUGGING_FACE_EMBEDDING]]
        if not np.array_equal(tied, arrays[keys[LM_HEAD]]):
            raise NamesError(
                f"{keys[LM_HEAD]} must equal the embedding, as the config says (tied)."
            )
    return SourceCheckpoint(model, arrays, origin, config, tokenizer)


def import_checkpoint(source: SourceCheckpoint, out: Path, tokenizer: Path | None) -> str:
    """Writes an imported checkpoint as our checkpoint folder, and returns its digest.

    Args:
      source: the checkpoint to import.
      out: folder to make.
      tokenizer: SentencePiece file; None takes the one beside the source, if there is one.

    Raises:
      RequestError: if `out` exists, or the tokenizer has more tokens than the embedding rows.
    """
    tokenizer = tokenizer or source.tokenizer
    if tokenizer is not None:
        check_tokenizer(tokenizer, source.model)
    # Transposed views are copied here, one by one: the writer would copy all of them at once, and
    # keep the originals.
    params = unflatten_params({path: np.ascontiguousarray(x) for path, x in source.parameters()})
    with atomic_output(out) as folder:
        folder.mkdir()
        if source.config is not None:
            _keep_origin(source, folder)
        return save_checkpoint(
            folder, model=source.model, params=params, tokenizer=tokenizer, mask_codec=None
        )


def check_tokenizer(path: Path, model: ModelConfig | None = None) -> None:
    """Raises an error unless a tokenizer loads and has no more tokens than the embedding rows."""
    from model.text.tokenizer import Tokenizer

    if not path.is_file():
        raise RequestError(f"--tokenizer must be a SentencePiece file, got {path}.")
    # The size includes location and segmentation tokens, which `Tokenizer` appends where a file,
    # such as Gemma's own, lacks them.
    try:
        size = Tokenizer(path).vocab_size
    except (RuntimeError, ValueError) as error:
        raise RequestError(
            f"--tokenizer must be a SentencePiece file, got {path}: {error}"
        ) from None
    if model is not None and size > model.text.vocab_size:
        raise RequestError(
            f"--tokenizer must have at most {model.text.vocab_size} tokens (rows of the "
            f"embedding), loc and seg included, got {size}: {path}."
        )


def _keep_origin(source: SourceCheckpoint, folder: Path) -> None:
    """Stores the config and the embedding's extra rows: an export then gives the same tensors."""
    dtypes = source.arrays.dtypes
    config = dict(source.config or {})
    config["dtype"] = "bfloat16" if dtypes == {BFLOAT16} else "float32"
    (folder / ORIGIN).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    embedding = source.arrays[hugging_face_keys(source.arrays)[HUGGING_FACE_EMBEDDING]]
    rows = np.asarray(embedding[source.model.text.vocab_size :], np.float32)
    if len(rows):
        np.save(folder / ORIGIN_ROWS, rows)
