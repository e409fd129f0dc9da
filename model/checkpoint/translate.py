"""Arrays of other codebases -> ours and back, parameter by parameter.

Arrays come as mappings, so that a file's can be read one at a time, and leave as iterators:
nothing here holds more than one parameter, unless the caller does.
"""

import collections
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from model import vlm
from model.checkpoint.digest import flatten, unflatten
from model.checkpoint.names import (
    LM_HEAD,
    TABLE,
    Name,
    NamesError,
    big_vision_keys,
    hugging_face_keys,
)
from model.config import ModelConfig

Params = dict[str, typing.Any]
Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]

_LISTED = 6
"""Names an error lists before it only counts."""


def from_big_vision(arrays: Arrays) -> Params:
    """Returns our nested dict, float32, from the arrays of a big_vision PaliGemma 2 checkpoint.

    Raises:
      NamesError: naming the keys that are missing, or left over.
    """
    return unflatten(dict(read_big_vision(arrays)))


def from_hugging_face(arrays: Arrays) -> Params:
    """Returns our nested dict, float32, from the tensors of a Hugging Face PaliGemma 2 checkpoint.

    Raises:
      NamesError: naming the keys that are missing, or left over.
    """
    return unflatten(dict(read_hugging_face(arrays)))


def read_big_vision(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (our path, float32 array) of every parameter; raises as `from_big_vision`."""
    found = big_vision_keys(arrays)
    check_big_vision(found)
    for name in TABLE:
        whole = arrays[found[name.big_vision]]
        piece = whole if name.part is None else whole[:, name.part]
        yield name.ours, _float32(name.big_vision_layout.read(piece))


def read_hugging_face(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (our path, float32 array) of every parameter; raises as `from_hugging_face`."""
    found = hugging_face_keys(arrays)
    check_hugging_face(found)
    for name in TABLE:
        count = _depth(name, found)
        if count is None:
            whole = arrays[found[name.hugging_face]]
            yield name.ours, _float32(name.hugging_face_layout.read(whole))
            continue
        stack = np.zeros((0,), np.float32)
        for i in range(count):
            layer = name.hugging_face_layout.read(arrays[found[_layer(name, i)]])
            stack = stack if i else np.empty((count, *layer.shape), np.float32)
            stack[i] = layer
        yield name.ours, stack


def to_big_vision(params: Arrays, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (big_vision key, array) of a whole checkpoint, given ours by path."""
    for key, pieces in _big_vision_pieces(params, cfg):
        yield f"params/{key}", np.stack(pieces, axis=1) if len(pieces) > 1 else pieces[0]


def to_hugging_face(params: Arrays, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (Hugging Face key, array) of a whole checkpoint, given ours by path."""
    for name in TABLE:
        ours = params[name.ours]
        if "{i}" not in name.hugging_face:
            yield name.hugging_face, name.hugging_face_layout.write(ours, cfg)
            continue
        for i, layer in enumerate(ours):
            yield _layer(name, i), name.hugging_face_layout.write(layer, cfg)


def big_vision_shapes(cfg: ModelConfig) -> dict[str, Shape]:
    """Returns the shape of every array of a big_vision checkpoint of a model, in no memory."""
    return {
        f"params/{key}": (one[0].shape[0], len(one), *one[0].shape[1:])
        if len(one) > 1
        else one[0].shape
        for key, one in _big_vision_pieces(_no_memory(cfg), cfg)
    }


def hugging_face_shapes(cfg: ModelConfig) -> dict[str, Shape]:
    """Returns the shape of every tensor of a Hugging Face checkpoint of a model, in no memory."""
    return {key: one.shape for key, one in to_hugging_face(_no_memory(cfg), cfg)}


def our_shapes(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the shape each of our parameters gets from a file of either codebase.

    Those whose source has too few axes are left out: `check_shapes` finds them.
    """
    theirs = hugging_face_keys(shapes)
    hugging_face = any(name.hugging_face in theirs for name in TABLE)
    found = theirs if hugging_face else big_vision_keys(shapes)
    ours: dict[str, Shape] = {}
    for name in TABLE:
        key = name.hugging_face.replace("{i}", "0") if hugging_face else name.big_vision
        blank = np.broadcast_to(np.int8(0), shapes[found[key]])
        try:
            if hugging_face:
                shape = name.hugging_face_layout.read(blank).shape
                depth = _depth(name, found)
                ours[name.ours] = shape if depth is None else (depth, *shape)
            else:
                piece = blank if name.part is None else blank[:, name.part]
                ours[name.ours] = name.big_vision_layout.read(piece).shape
        except (ValueError, IndexError):
            continue
    return ours


def check_big_vision(found: Collection[str]) -> None:
    """Raises an error naming the keys that are missing and unknown, if any are."""
    _check_names({name.big_vision for name in TABLE}, found, "big_vision")


def check_hugging_face(found: Collection[str]) -> None:
    """Raises an error naming the keys that are missing and unknown, if any are."""
    _check_names(_all_layers(found), set(found) - {LM_HEAD}, "Hugging Face")


def _check_names(expected: Collection[str], found: Collection[str], origin: str) -> None:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise NamesError(
            f"a {origin} checkpoint must hold each parameter once, got missing {_some(missing)} "
            f"and unknown {_some(extra)}."
        )


def check_shapes(expected: Mapping[str, Shape], found: Mapping[str, Shape], origin: str) -> None:
    """Raises an error naming what has another shape than the rest of the file asks for."""
    wrong = [
        f"{key}: {found[key]} for {expected[key]}"
        for key in expected
        if key in found and tuple(found[key]) != tuple(expected[key])
    ]
    if wrong:
        raise NamesError(f"a {origin} checkpoint has arrays of another shape: {_some(wrong)}.")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{names[:_LISTED]}{more}"


def _big_vision_pieces(params: Arrays, cfg: ModelConfig) -> Iterator[tuple[str, list[np.ndarray]]]:
    groups: dict[str, list[Name]] = collections.defaultdict(list)
    for name in TABLE:
        groups[name.big_vision].append(name)
    for key, group in groups.items():
        ordered = sorted(group, key=lambda name: name.part or 0)
        yield key, [name.big_vision_layout.write(params[name.ours], cfg) for name in ordered]


def _no_memory(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns zeros in every parameter's shape that share one byte."""
    shapes = flatten(vlm.abstract_params(cfg))
    return {path: np.broadcast_to(np.int8(0), leaf.shape) for path, leaf in shapes}


def _float32(x: np.ndarray) -> np.ndarray:
    return np.array(x, np.float32, order="C")


def _layer(name: Name, index: int) -> str:
    return name.hugging_face.replace("{i}", str(index))


def _depth(name: Name, found: Iterable[str]) -> int | None:
    """Returns how many layers of a parameter's tower a file has; None for one outside them."""
    before, _, after = name.hugging_face.partition("{i}")
    if not after:
        return None
    tower = re.compile(re.escape(before) + r"(\d+)\.")
    return 1 + max((int(m[1]) for m in map(tower.match, found) if m), default=0)


def _all_layers(found: Collection[str]) -> set[str]:
    """Returns every key a file with that many layers must have."""
    expected = set()
    for name in TABLE:
        count = _depth(name, found)
        expected |= {_layer(name, i) for i in range(1 if count is None else count)}
    return expected
