"""Stage 0: a checkpoint from a SigLIP image tower and a Gemma-2 decoder, pretrained separately.

Both get big_vision's PaliGemma names here; `importer` does the rest.
Source: big_vision `models/vit.py` and `models/ppp/gemma.py` (their `load`), recipes.md section 1.5.
"""

import re
from pathlib import Path

import numpy as np

from model.checkpoint import array_files
from model.checkpoint.array_files import Arrays, Entry
from model.checkpoint.hugging_face_config import GEMMA_PIECES
from model.checkpoint.importer import SourceCheckpoint, big_vision_source
from model.checkpoint.names import NamesError
from model.checkpoint.target import RequestError
from pipelines.records.codes import EXTRA_TOKENS

EXTRA_STD = 0.02
"""Standard deviation of new tokens' rows. Source: PaliGemma, arXiv 2407.07726, section 5.3."""

_UNSCANNED = re.compile(r"/encoderblock_(\d+)/")
_LAYER = re.compile(r"^layer_(\d+)/")
_GEMMA_W = ("attn/q_einsum", "attn/kv_einsum", "attn/attn_vec_einsum")


def open_towers(
    siglip: Path, gemma: Path, *, pieces: int = GEMMA_PIECES, seed: int = 0
) -> SourceCheckpoint:
    """Returns both towers as one checkpoint to import; the projector is zero, as published.

    Args:
      siglip: big_vision's `.npz`: two towers or the image tower, layers scanned or not.
      gemma: Orbax folder of Gemma 2.
      pieces: number of the tokenizer's pieces: embedding rows above are cut off, then 1152 loc and
        seg rows are added.
      seed: seed of the added rows.

    Raises:
      RequestError: if a path is not such a file or folder.
      ValueError: naming parameters that are missing, unknown or of another shape.
    """
    if not (siglip.suffix == ".npz" and siglip.is_file()):
        raise RequestError(f"--siglip must be an .npz file of big_vision, got {siglip}.")
    if not gemma.is_dir():
        raise RequestError(f"--gemma must be an Orbax folder of Gemma 2, got {gemma}.")
    # Entries, not arrays: names and shapes of both towers are checked at the end, before the first
    # array is read.
    image = _image_tower(array_files.read_npz(siglip))
    try:
        gemma_arrays = array_files.read_orbax(gemma)
    except (FileNotFoundError, ValueError) as error:
        raise RequestError(f"--gemma must be an Orbax folder of Gemma 2: {error}") from None
    text = _decoder(gemma_arrays, pieces, seed)
    widths = _width(image, "img/pos_embedding"), _width(text, "llm/embedder/input_embedding")
    # The projector is new, and zero: soft tokens say nothing until it is trained.
    head = {
        "img/head/kernel": _zeros(widths),
        "img/head/bias": _zeros(widths[1:]),
    }
    return big_vision_source(Arrays({**image, **text, **head}))


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
    return _stacked(tower, _UNSCANNED, "/encoderblock/")


def _decoder(arrays: Arrays, pieces: int, seed: int) -> dict[str, Entry]:
    """Returns Gemma 2 under big_vision's names, its embedding cut and extended."""
    entries = {}
    for key, entry in arrays.entries.items():
        name = key.removeprefix("params/").removeprefix("transformer/")
        entries[name.removesuffix("/w")] = entry
    stacked = _stacked(entries, _LAYER, "layers/")
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
    embedding = "llm/embedder/input_embedding"
    if embedding in renamed:
        renamed[embedding] = _add_token_rows(renamed[embedding], pieces, seed)
    return renamed


def _stacked(entries: dict[str, Entry], layer: re.Pattern, scanned: str) -> dict[str, Entry]:
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
        together[name] = _stack([group[i] for i in range(depth)])
    return together


def _stack(layers: list[Entry]) -> Entry:
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


def _add_token_rows(entry: Entry, pieces: int, seed: int) -> Entry:
    rows, width = min(entry.shape[0], pieces), entry.shape[1]
    shape = rows + len(EXTRA_TOKENS), width

    def read() -> np.ndarray:
        table = np.empty(shape, np.float32)
        # Rows from `pieces` on are unused in Gemma's file; the new tokens take their ids.
        table[:rows] = entry.read()[:rows]
        fresh = np.random.default_rng(seed).standard_normal((len(EXTRA_TOKENS), width))
        table[rows:] = EXTRA_STD * fresh
        return table

    return Entry(shape, np.dtype(np.float32), read)


def _zeros(shape: tuple[int, ...]) -> Entry:
    return Entry(shape, np.dtype(np.float32), lambda: np.zeros(shape, np.float32))


def _width(entries: dict[str, Entry], key: str) -> int:
    if key not in entries:
        raise NamesError(f"Stage 0 needs {key}, which neither file holds.")
    return entries[key].shape[-1]
