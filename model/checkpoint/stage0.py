"""Stage 0: a checkpoint from an image tower and a decoder, pretrained separately.

Each is a file of its own codebase, so that SigLIP from big_vision goes with Llama from Hugging
Face; `importer` translates and joins them.
Source: big_vision `models/vit.py` and `models/ppp/gemma.py` (their `load`), recipes.md section 1.5.
"""

import re
import typing
from pathlib import Path
from typing import Any

import numpy as np

from infra.typed_json import parse_typed
from model.checkpoint import array_files
from model.checkpoint.array_files import Arrays, Entry
from model.checkpoint.foreign import ForeignArrays
from model.checkpoint.hugging_face_config import read_decoder, read_tower
from model.checkpoint.importer import (
    SourceCheckpoint,
    num_pieces,
    tokenizer_beside,
    with_extra_tokens,
)
from model.checkpoint.names import (
    LM_HEAD,
    PALIGEMMA,
    NamesError,
    decoder_table,
    hugging_face_keys,
    used_names,
)
from model.checkpoint.sizes import (
    big_vision_decoder,
    big_vision_tower,
    decoder_config,
    tower_config,
)
from model.checkpoint.target import RequestError
from model.config import ModelConfig, Projector
from model.layouts import HF_DECODER, HF_TOWER, Names
from model.text.config import TextConfig
from model.vision.config import VisionConfig
from model.vision.registry import tower_names

_UNSCANNED = re.compile(r"/encoderblock_(\d+)/")
_LAYER = re.compile(r"^layer_(\d+)/")
_GEMMA_W = ("attn/q_einsum", "attn/kv_einsum", "attn/attn_vec_einsum")
_VISION = "--vision must be an .npz file of big_vision, or a Hugging Face folder with a tower"
_TEXT = "--text must be an Orbax folder of Gemma 2, or a Hugging Face folder with a decoder"


class _Tower(typing.NamedTuple):
    """An image tower in its file."""

    config: VisionConfig
    arrays: ForeignArrays


class _Decoder(typing.NamedTuple):
    """A decoder in its file; its vocabulary is all rows there."""

    config: TextConfig
    arrays: ForeignArrays
    softcaps: tuple[float, float]
    tokenizer: Path | None = None


def open_towers(
    vision: Path,
    text: Path,
    *,
    tokenizer: Path | None = None,
    projector: Projector = "linear",
    seed: int = 0,
) -> SourceCheckpoint:
    """Returns a tower and a decoder as one checkpoint to import, whose projector is new.

    Rows of the embedding above the tokenizer's pieces are cut off, then 1152 rows of location and
    segmentation tokens are added; so it is with an output matrix of its own.

    Args:
      vision: big_vision's `.npz`, of two towers or the image tower, layers scanned or not; or a
        Hugging Face folder of a tower, or of a model with one.
      text: Orbax folder of Gemma 2; or a Hugging Face folder of a decoder, or of a model with one.
      tokenizer: file of the tokenizer; None takes the one beside the decoder, or else the number of
        pieces that the family has published.
      projector: layers between them. The last is zero, as published, so that soft tokens say
        nothing until it is trained.
      seed: seed of what is new.

    Raises:
      RequestError: if a path is not such a file or folder, or the tokenizer cannot be read.
      ValueError: naming parameters that are missing, unknown or of another shape, or a field of a
        `config.json` that our model does not support.
    """
    # Entries, not arrays: names and shapes of both are checked before the first array is read.
    tower, decoder = _open_tower(vision), _open_decoder(text)
    attn_softcap, final_softcap = decoder.softcaps
    model = ModelConfig(
        vision=tower.config,
        text=decoder.config,
        attn_softcap=attn_softcap,
        final_softcap=final_softcap,
        projector=projector,
    )
    rows = model.text.vocab_size
    pieces = min(
        num_pieces(model.text.family, rows, tokenizer or decoder.tokenizer) or rows,
        rows,
    )
    return SourceCheckpoint(
        with_extra_tokens(model, pieces),
        (tower.arrays, decoder.arrays),
        pieces,
        new=_fresh_projector_entries(model, seed),
        seed=seed,
        tokenizer=decoder.tokenizer,
    )


def _open_tower(path: Path) -> _Tower:
    if path.suffix == ".npz" and path.is_file():
        entries = _image_tower(array_files.read_npz(path))
        arrays = ForeignArrays(Arrays(entries), "big_vision", _names_below("vision/"))
        return _Tower(tower_config(arrays.our_shapes, big_vision_tower(arrays.shapes)), arrays)
    config, arrays = _hugging_face(path, f"{_VISION}, got {path}.")
    fields = read_tower(config)
    # A model has more than its tower: the half that reads text, a pooling head, a projector.
    keys = {n: key for n, key in hugging_face_keys(arrays).items() if n.startswith(HF_TOWER)}
    used = used_names(keys, fields["family"])
    arrays = _select_foreign_arrays(
        arrays, {keys[name] for name in used}, tower_names(fields["family"])
    )
    return _Tower(tower_config(arrays.our_shapes, fields), arrays)


def _open_decoder(path: Path) -> _Decoder:
    if path.is_dir() and not (path / "config.json").exists():
        try:
            entries = _rename_gemma_arrays(array_files.read_orbax(path))
        except (FileNotFoundError, ValueError) as error:
            raise RequestError(f"{_TEXT}, got {path}: {error}") from None
        arrays = ForeignArrays(Arrays(entries), "big_vision", _names_below("text/"))
        config = decoder_config(arrays.our_shapes, big_vision_decoder(arrays.shapes))
        return _Decoder(config, arrays, (ModelConfig.attn_softcap, ModelConfig.final_softcap))
    config, arrays = _hugging_face(path, f"{_TEXT}, got {path}.")
    facts = read_decoder(config)
    keys = {
        name: key
        for name, key in hugging_face_keys(arrays).items()
        if name.startswith(HF_DECODER) or name == LM_HEAD
    }
    table = decoder_table(facts.fields["family"], tied=facts.fields.get("tied", True))
    arrays = _select_foreign_arrays(arrays, set(keys.values()), table)
    text = decoder_config(arrays.our_shapes, facts.fields)
    return _Decoder(text, arrays, facts.softcaps, tokenizer_beside(path))


def _names_below(prefix: str) -> Names:
    return tuple(name for name in PALIGEMMA if name.ours.startswith(prefix))


def _hugging_face(folder: Path, wrong: str) -> tuple[dict[str, Any], Arrays]:
    """Returns the `config.json` and the arrays of a Hugging Face folder."""
    if not (folder / "config.json").is_file():
        raise RequestError(wrong)
    config = parse_typed(
        dict[str, Any], (folder / "config.json").read_bytes(), str(folder / "config.json")
    )
    return config, array_files.read_safetensors_folder(folder)


def _select_foreign_arrays(arrays: Arrays, keys: set[str], table: Names) -> ForeignArrays:
    entries = {key: entry for key, entry in arrays.entries.items() if key in keys}
    return ForeignArrays(Arrays(entries, arrays.metadata), "Hugging Face", table)


def _fresh_projector_entries(model: ModelConfig, seed: int) -> dict[str, Entry]:
    """Returns a projector whose last layer is zero; a layer before it is drawn (Xavier)."""
    fan_in, width = model.vision.width, model.text.width
    if model.projector == "linear":
        return {
            "projector/kernel": _zero_array_entry((fan_in, width)),
            "projector/bias": _zero_array_entry((width,)),
        }

    def first() -> np.ndarray:
        limit = (6 / (fan_in + width)) ** 0.5
        drawn = np.random.default_rng([seed, 2]).uniform(-limit, limit, (fan_in, width))
        return drawn.astype(np.float32)

    return {
        "projector/first/kernel": Entry((fan_in, width), np.dtype(np.float32), first),
        "projector/first/bias": _zero_array_entry((width,)),
        "projector/second/kernel": _zero_array_entry((width, width)),
        "projector/second/bias": _zero_array_entry((width,)),
    }


def _image_tower(arrays: Arrays) -> dict[str, Entry]:
    """Returns a SigLIP file's image tower, layers stacked, without its pooling head."""
    entries = {key.removeprefix("params/"): entry for key, entry in arrays.entries.items()}
    if any(key.startswith("img/") for key in entries):
        entries = {key: entry for key, entry in entries.items() if key.startswith("img/")}
    else:
        entries = {f"img/{key}": entry for key, entry in entries.items()}
    tower = {
        key: entry
        for key, entry in entries.items()
        if not key.startswith(("img/MAPHead_0/", "img/head/"))
    }
    return _stack_single_layers(tower, _UNSCANNED, "/encoderblock/")


def _rename_gemma_arrays(arrays: Arrays) -> dict[str, Entry]:
    """Returns Gemma 2 under big_vision's names."""
    entries = {}
    for key, entry in arrays.entries.items():
        name = key.removeprefix("params/").removeprefix("transformer/")
        entries[name.removesuffix("/w")] = entry
    stacked = _stack_single_layers(entries, _LAYER, "layers/")
    # Keys come with or without a last part `/w`; big_vision has it on attention kernels only.
    renamed = {
        f"llm/{key}{'/w' if key.endswith(_GEMMA_W) else ''}": entry
        for key, entry in stacked.items()
    }
    gating, linear = "llm/layers/mlp/gating_einsum", "llm/layers/mlp/linear"
    if gating in renamed and linear in renamed and len(renamed[gating].shape) == 4:
        # Some files have the gating kernel transposed, as (hidden, width); the down projection,
        # which is always (hidden, width), shows which number is which.
        hidden, width = renamed[linear].shape[-2:]
        if renamed[gating].shape[-2:] == (hidden, width) and hidden != width:
            renamed[gating] = _transposed_entry(renamed[gating])
    return renamed


def _stack_single_layers(
    entries: dict[str, Entry], layer: re.Pattern, scanned: str
) -> dict[str, Entry]:
    """Returns the entries with the arrays of single layers stacked on a new first axis."""
    # What carries a layer's number is stacked; all else is passed on:
    #
    #     Transformer/encoderblock_0/…, encoderblock_1/…   ->   Transformer/encoderblock/…   (2, …)
    #     layer_0/mlp/linear, layer_1/mlp/linear           ->   layers/mlp/linear            (2, …)
    together: dict[str, Entry] = {}
    groups: dict[str, dict[int, Entry]] = {}
    for key, entry in entries.items():
        match = layer.search(key)
        if match is None:
            together[key] = entry
        else:
            name = key.replace(match[0], scanned, 1)
            groups.setdefault(name, {})[int(match[1])] = entry
    # The longest group says how many layers there are, so a gap in any other is found.
    depth = max((len(group) for group in groups.values()), default=0)
    for name, group in groups.items():
        shapes = {entry.shape for entry in group.values()}
        if set(group) != set(range(depth)) or len(shapes) > 1 or name in together:
            raise NamesError(
                f"{name} must come once for each of {depth} layers in one shape, got layers "
                f"{sorted(group)} of shapes {sorted(shapes)}."
            )
        together[name] = _stacked_layers_entry([group[i] for i in range(depth)])
    return together


def _stacked_layers_entry(layers: list[Entry]) -> Entry:
    shape, dtype = (len(layers), *layers[0].shape), layers[0].dtype

    def read() -> np.ndarray:
        stacked = np.empty(shape, dtype)
        for i, layer in enumerate(layers):
            stacked[i] = layer.read()
        return stacked

    return Entry(shape, dtype, read)


def _transposed_entry(entry: Entry) -> Entry:
    *first, a, b = entry.shape
    return Entry((*first, b, a), entry.dtype, lambda: entry.read().swapaxes(-1, -2))


def _zero_array_entry(shape: tuple[int, ...]) -> Entry:
    return Entry(shape, np.dtype(np.float32), lambda: np.zeros(shape, np.float32))
