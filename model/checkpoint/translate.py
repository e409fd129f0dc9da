"""Translation of other codebases' arrays to ours and back, parameter by parameter.

Inputs are mappings, which may read each array on access, and outputs are iterators. So a whole
checkpoint is in memory only if the caller collects it.
"""

import collections
import contextlib
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.names import (
    LM_HEAD,
    PALIGEMMA,
    NamesError,
    big_vision_keys,
    hugging_face_keys,
    names_of,
)
from model.config import ModelConfig
from model.layouts import Names, ParameterName

Params = dict[str, typing.Any]
Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]

_LISTED = 6
"""Number of names that an error lists; it only counts the rest."""


def from_big_vision(arrays: Arrays) -> Params:
    """Returns our nested dict, float32, from the arrays of a big_vision PaliGemma 2 checkpoint.

    Raises:
      NamesError: if keys are missing or unknown, naming them.
    """
    return unflatten_params(dict(read_big_vision(arrays)))


def from_hugging_face(arrays: Arrays, table: Names = PALIGEMMA) -> Params:
    """Returns our nested dict, float32, from the tensors of a Hugging Face checkpoint.

    Raises:
      NamesError: if keys are missing or unknown, naming them.
    """
    return unflatten_params(dict(read_hugging_face(arrays, table)))


def read_big_vision(arrays: Arrays, table: Names = PALIGEMMA) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (our path, float32 array) of every parameter; raises as `from_big_vision`."""
    keys = big_vision_keys(arrays)
    check_big_vision(keys, table)
    for name in table:
        array = arrays[keys[name.big_vision]]
        piece = array if name.part is None else array[:, name.part]
        yield name.ours, _copy_parameter_as_float32(name.big_vision_layout.read(piece))


def read_hugging_face(arrays: Arrays, table: Names = PALIGEMMA) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (our path, float32 array) of every parameter; raises as `from_hugging_face`."""
    keys = hugging_face_keys(arrays)
    check_hugging_face(keys, table)
    for name in table:
        count = _num_layers(name, keys)
        if count is None:
            # Outside the blocks: one array there, one here.
            array = arrays[keys[name.hugging_face]]
            yield name.ours, _copy_parameter_as_float32(name.hugging_face_layout.read(array))
            continue
        stack = np.zeros((0,), np.float32)
        for i in range(count):  # The stack is allocated at the first layer, which has the shape.
            layer = name.hugging_face_layout.read(arrays[keys[_layer_key(name, i)]])
            stack = stack if i else np.empty((count, *layer.shape), np.float32)
            stack[i] = layer
        yield name.ours, stack


def to_big_vision(params: Arrays, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (big_vision key, array) of a whole checkpoint, given our parameters by path.

    Raises:
      NamesError: if big_vision lacks the tower or the decoder.
    """
    for key, pieces in _big_vision_pieces(params, cfg, names_of(cfg)):
        yield f"params/{key}", np.stack(pieces, axis=1) if len(pieces) > 1 else pieces[0]


def to_hugging_face(params: Arrays, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (Hugging Face key, array) of a whole checkpoint, given our parameters by path."""
    for name in names_of(cfg):
        array = params[name.ours]
        if "{i}" not in name.hugging_face:
            yield name.hugging_face, name.hugging_face_layout.write(array, cfg)
            continue
        for i, layer in enumerate(array):
            yield _layer_key(name, i), name.hugging_face_layout.write(layer, cfg)


def big_vision_shapes(cfg: ModelConfig, table: Names = PALIGEMMA) -> dict[str, Shape]:
    """Returns the shape of every array in a model's big_vision checkpoint, without any data.

    Args:
      cfg: config of the model.
      table: names of its parameters, or of those of one part.
    """
    # Pieces of one array are stacked after the layers: (layers, 2, …).
    return {
        f"params/{key}": (pieces[0].shape[0], len(pieces), *pieces[0].shape[1:])
        if len(pieces) > 1
        else pieces[0].shape
        for key, pieces in _big_vision_pieces(_no_memory(cfg), cfg, table)
    }


def hugging_face_shapes(cfg: ModelConfig) -> dict[str, Shape]:
    """Returns the shape of every tensor in a model's Hugging Face checkpoint, without any data."""
    return {key: array.shape for key, array in to_hugging_face(_no_memory(cfg), cfg)}


def other_shapes(cfg: ModelConfig, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the shapes in a Hugging Face file that are read, though we would write others.

    Args:
      cfg: config of the model.
      shapes: shape of every tensor, by name.
    """
    # A tower that takes images of any aspect ratio has the kernel of its patches as a matrix.
    ours = {path: leaf.shape for path, leaf in flatten_params(vlm.abstract_params(cfg))}
    other = {}
    for name in names_of(cfg):
        if "{i}" not in name.hugging_face and name.hugging_face in shapes:
            shape = shapes[name.hugging_face]
            blank = np.broadcast_to(np.int8(0), shape)
            with contextlib.suppress(ValueError, IndexError):
                if name.hugging_face_layout.read(blank).shape == ours[name.ours]:
                    other[name.hugging_face] = shape
    return other


def our_shapes(shapes: Mapping[str, Shape], table: Names = PALIGEMMA) -> dict[str, Shape]:
    """Returns the shape of each of our parameters, given the shapes in a file of either codebase.

    Parameters whose source has too few axes are left out: `check_shapes` finds them.
    """
    # Which codebase a file is from shows in its names.
    hugging_face_names = hugging_face_keys(shapes)
    hugging_face = any(name.hugging_face in hugging_face_names for name in table)
    keys = hugging_face_names if hugging_face else big_vision_keys(shapes)
    our: dict[str, Shape] = {}
    for name in table:
        key = name.hugging_face.replace("{i}", "0") if hugging_face else name.big_vision
        # Layouts convert arrays, so a zero that is broadcast to the shape stands in for the data.
        blank = np.broadcast_to(np.int8(0), shapes[keys[key]])
        try:
            if hugging_face:
                shape = name.hugging_face_layout.read(blank).shape
                depth = _num_layers(name, keys)
                our[name.ours] = shape if depth is None else (depth, *shape)
            else:
                piece = blank if name.part is None else blank[:, name.part]
                our[name.ours] = name.big_vision_layout.read(piece).shape
        except (ValueError, IndexError):
            continue
    return our


def check_big_vision(names: Collection[str], table: Names = PALIGEMMA) -> None:
    """Raises an error if keys are missing or unknown, naming them."""
    _check_names({name.big_vision for name in table}, names, "big_vision")


def check_hugging_face(names: Collection[str], table: Names = PALIGEMMA) -> None:
    """Raises an error if keys are missing or unknown, naming them."""
    expected = _expected_keys(names, table)
    _check_names(expected, set(names) - ({LM_HEAD} - expected), "Hugging Face")


def _check_names(expected: Collection[str], names: Collection[str], origin: str) -> None:
    missing, extra = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
    if missing or extra:
        raise NamesError(
            f"a {origin} checkpoint must hold each parameter once, got missing "
            f"{_format_names(missing)} and unknown {_format_names(extra)}."
        )


def check_shapes(expected: Mapping[str, Shape], shapes: Mapping[str, Shape], origin: str) -> None:
    """Raises an error if arrays' shapes do not fit the rest of the file, naming them."""
    wrong = [
        f"{key}: {shapes[key]} for {expected[key]}"
        for key in expected
        if key in shapes and tuple(shapes[key]) != tuple(expected[key])
    ]
    if wrong:
        raise NamesError(
            f"a {origin} checkpoint has arrays of another shape: {_format_names(wrong)}."
        )


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{names[:_LISTED]}{more}"


def _big_vision_pieces(
    params: Arrays, cfg: ModelConfig, table: Names
) -> Iterator[tuple[str, list[np.ndarray]]]:
    # One array of big_vision may hold several of our parameters, such as keys and values. They are
    # put together in the order of their index in it.
    groups: dict[str, list[ParameterName]] = collections.defaultdict(list)
    if any(not name.big_vision for name in table):
        raise NamesError(
            f"big_vision has siglip with gemma2 and a linear projector, got {cfg.vision.family} "
            f"with {cfg.text.family} and projector {cfg.projector}."
        )
    for name in table:
        groups[name.big_vision].append(name)
    for key, group in groups.items():
        ordered = sorted(group, key=lambda name: name.part or 0)
        yield key, [name.big_vision_layout.write(params[name.ours], cfg) for name in ordered]


def _no_memory(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns an array of every parameter's shape, each a zero byte that is broadcast to it."""
    shapes = flatten_params(vlm.abstract_params(cfg))
    return {path: np.broadcast_to(np.int8(0), leaf.shape) for path, leaf in shapes}


def _copy_parameter_as_float32(x: np.ndarray) -> np.ndarray:
    return np.array(x, np.float32, order="C")


def _layer_key(name: ParameterName, index: int) -> str:
    return name.hugging_face.replace("{i}", str(index))


def _num_layers(name: ParameterName, keys: Iterable[str]) -> int | None:
    """Returns how many layers a file has in a parameter's tower; None if it belongs to no layer."""
    tower_prefix, _, layer_suffix = name.hugging_face.partition("{i}")
    if not layer_suffix:
        return None
    # Any parameter of the tower counts, so that a layer that lacks only this one is found missing.
    tower = re.compile(re.escape(tower_prefix) + r"(\d+)\.")
    return 1 + max((int(m[1]) for m in map(tower.match, keys) if m), default=0)


def _expected_keys(keys: Collection[str], table: Names) -> set[str]:
    """Returns every key that a file must have, given the number of layers that it shows."""
    expected = set()
    for name in table:
        count = _num_layers(name, keys)
        expected |= {_layer_key(name, i) for i in range(1 if count is None else count)}
    return expected
