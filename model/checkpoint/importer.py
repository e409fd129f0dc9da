"""Import of other codebases' checkpoints.

An import needs memory for our float32 parameters, and for one array of the source at a time.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from infra.typed_json import parse_typed
from model.checkpoint import array_files
from model.checkpoint.array_files import BFLOAT16, INDEX, SINGLE, Arrays, Entry
from model.checkpoint.digest import unflatten_params
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.foreign import ForeignArrays
from model.checkpoint.hugging_face_config import ORIGIN, ORIGIN_ROWS, read_config
from model.checkpoint.names import (
    EMBEDDING,
    HEAD,
    HUGGING_FACE_EMBEDDING,
    PALIGEMMA,
    TOKEN_ROWS,
    hugging_face_keys,
    is_paligemma,
    used_names,
)
from model.checkpoint.sizes import big_vision_facts, model_config
from model.checkpoint.target import RequestError, atomic_output
from model.config import ModelConfig
from model.files import CONFIG, TOKENIZER
from model.text.config import TextConfig
from model.text.registry import decoder_family
from pipelines.records.codes import EXTRA_TOKENS

EXTRA_STD = 0.02
"""Standard deviation of new tokens' rows. Source: PaliGemma, arXiv 2407.07726, section 5.3."""

_TOKENIZER_FILE = "a SentencePiece file or a byte-level tokenizer.json"
_UNUSED_ROWS = 128
"""Most rows that published embeddings have above their pieces, as padding or for pictures."""


@dataclasses.dataclass(frozen=True)
class SourceCheckpoint:
    """A checkpoint of another codebase: names and shapes are checked, arrays are not read yet.

    Attributes:
      model: configuration of the model.
      parts: its arrays: of the whole model, or of a tower and a decoder that lie apart.
      pieces: token rows of the files that count; those of the vocabulary above them are new.
      new: our path -> entry of other parameters that no file has.
      seed: seed of new token rows.
      config: Hugging Face's `config.json` of the whole model; None if there is none.
      tokenizer: the tokenizer's file beside it, if there is one.
    """

    model: ModelConfig
    parts: tuple[ForeignArrays, ...]
    pieces: int
    new: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    seed: int = 0
    config: dict[str, Any] | None = None
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            part.check(self.model)

    def parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (our path, float32 array) of every parameter."""
        for part in self.parts:
            for path, array in part.read():
                is_table = path in TOKEN_ROWS
                yield path, self._extend_token_rows(path, array) if is_table else array
        for path, entry in self.new.items():
            yield path, entry.read()

    def _extend_token_rows(self, path: str, table: np.ndarray) -> np.ndarray:
        count = self.model.text.vocab_size - self.pieces
        if count == 0:
            return table[: self.pieces]
        # Rows from `pieces` on are unused in their file; the new tokens take their ids.
        rng = np.random.default_rng([self.seed, 1] if path == HEAD else self.seed)
        rows = np.empty((self.pieces + count, table.shape[1]), np.float32)
        rows[: self.pieces] = table[: self.pieces]
        rows[self.pieces :] = EXTRA_STD * rng.standard_normal((count, table.shape[1]))
        return rows


def num_pieces(family: str, rows: int, tokenizer: Path | None) -> int | None:
    """Returns how many rows of a decoder's embedding are pieces of its tokenizer.

    None means that nothing says it: the family has published no vocabulary of about this size.

    Args:
      family: family of the decoder.
      rows: rows of the embedding in its file.
      tokenizer: file of the tokenizer; None goes by the family's published sizes.

    Raises:
      RequestError: if the tokenizer cannot be read.
    """
    if tokenizer is not None:
        return check_tokenizer(tokenizer) - len(EXTRA_TOKENS)
    sizes = decoder_family(family).sizes.values()
    published = {
        size.get("vocab_size", TextConfig.vocab_size) - len(EXTRA_TOKENS) for size in sizes
    }
    return next((count for count in published if 0 <= rows - count <= _UNUSED_ROWS), None)


def open_source(
    path: Path, config: Path | None = None, tokenizer: Path | None = None
) -> SourceCheckpoint:
    """Returns a checkpoint to import, checked by name and shape.

    Args:
      path: an `.npz` of big_vision, a `.safetensors`, or a folder of them.
      config: Hugging Face's `config.json`; None takes the one beside the tensors, or in the file.
      tokenizer: file of its tokenizer; None takes the one beside the tensors, if there is one.

    Raises:
      RequestError: if the path is none of these, or the tensors come without a configuration.
      ValueError: naming parameters that are missing, unknown or of another shape.
    """
    if path.suffix == ".npz" and path.is_file():
        return _big_vision_source(array_files.read_npz(path))
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
    beside = tokenizer_beside(folder) if path.is_dir() else None
    return _hugging_face_source(arrays, _config_beside(arrays, folder, config), tokenizer, beside)


def tokenizer_beside(folder: Path) -> Path | None:
    """Returns the file of a Hugging Face folder's tokenizer, if there is one."""
    return folder / TOKENIZER if (folder / TOKENIZER).exists() else None


def _big_vision_source(arrays: Arrays) -> SourceCheckpoint:
    # Names first, then sizes, then shapes: a missing parameter is reported by its name, and not as
    # a size that cannot be read.
    whole = ForeignArrays(arrays, "big_vision", PALIGEMMA)
    model = model_config(whole.our_shapes, big_vision_facts(whole.shapes))
    return SourceCheckpoint(model, (whole,), model.text.vocab_size)


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
    arrays: Arrays, config: dict[str, Any], tokenizer: Path | None, beside: Path | None
) -> SourceCheckpoint:
    facts = read_config(config)
    # Names, sizes, shapes, as in `_big_vision_source`. Sizes come from the shapes of the first
    # layer; all others must then agree with the model that results.
    used = used_names(keys := hugging_face_keys(arrays), facts.vision["family"])
    entries = {key: arrays.entries[key] for name, key in keys.items() if name in used}
    whole = ForeignArrays(Arrays(entries, arrays.metadata), "Hugging Face", facts.names)
    model = model_config(whole.our_shapes, facts)
    pieces, rows = model.text.vocab_size, whole.our_shapes[EMBEDDING][0]
    if not facts.has_extra_tokens:
        # Its vocabulary gets the tokens of places and masks, which all of our tokenizers have.
        named = num_pieces(model.text.family, rows, tokenizer or beside)
        if named is not None:
            pieces = min(named, rows)
            model = with_extra_tokens(model, pieces)
    return SourceCheckpoint(model, (whole,), pieces, config=config, tokenizer=beside)


def with_extra_tokens(model: ModelConfig, pieces: int) -> ModelConfig:
    """Returns the model with a vocabulary of pieces, and the tokens of places and masks."""
    text = dataclasses.replace(model.text, vocab_size=pieces + len(EXTRA_TOKENS))
    return dataclasses.replace(model, text=text)


def import_checkpoint(source: SourceCheckpoint, out: Path, tokenizer: Path | None) -> str:
    """Writes an imported checkpoint as our checkpoint folder, and returns its digest.

    Args:
      source: the checkpoint to import.
      out: folder to make.
      tokenizer: its file; None takes the one beside the source, if there is one.

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
        if source.config is not None and is_paligemma(source.model):
            _keep_origin(source.config, source, folder)
        return save_checkpoint(
            folder, model=source.model, params=params, tokenizer=tokenizer, mask_codec=None
        )


def check_tokenizer(path: Path, model: ModelConfig | None = None) -> int:
    """Returns the size of a tokenizer's vocabulary, tokens of places and masks included.

    Raises:
      RequestError: if it does not load, or has more tokens than the model has embedding rows.
    """
    from model.text.tokenizer import Tokenizer

    if not path.is_file():
        raise RequestError(f"--tokenizer must be {_TOKENIZER_FILE}, got {path}.")
    # The size includes location and segmentation tokens, which `Tokenizer` appends where a file,
    # such as Gemma's own, lacks them.
    try:
        size = Tokenizer(path).vocab_size
    except (RuntimeError, ValueError) as error:
        raise RequestError(f"--tokenizer must be {_TOKENIZER_FILE}: {error}") from None
    if model is not None and size > model.text.vocab_size:
        raise RequestError(
            f"--tokenizer must have at most {model.text.vocab_size} tokens (rows of the "
            f"embedding), loc and seg included, got {size}: {path}."
        )
    return size


def _keep_origin(config: dict[str, Any], source: SourceCheckpoint, folder: Path) -> None:
    """Stores the config and the embedding's extra rows: an export then gives the same tensors."""
    (whole,) = source.parts
    dtype = "bfloat16" if whole.arrays.dtypes == {BFLOAT16} else "float32"
    config = {**config, "dtype": dtype}
    (folder / ORIGIN).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    embedding = whole[HUGGING_FACE_EMBEDDING]
    rows = np.asarray(embedding[source.model.text.vocab_size :], np.float32)
    if len(rows):
        np.save(folder / ORIGIN_ROWS, rows)
