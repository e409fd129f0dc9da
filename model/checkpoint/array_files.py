"""Files of named arrays, read and written one array at a time: npz, safetensors, Orbax.

Nothing is memory-mapped: every array that is read is a copy, so the caller controls the memory.
A safetensors file is a length, a JSON header and the bytes (github.com/huggingface/safetensors,
README). Its Python package is not used: to write a file it needs all tensors in memory at once,
which is too much for a 3B model.
"""

import dataclasses
import functools
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from infra.typed_json import parse_json
from model.checkpoint.digest import flatten_params
from model.npz import Member, read_members

Shape = tuple[int, ...]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
"""Array types by their code in a safetensors header."""
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_MAX_HEADER = 100_000_000
"""Largest header of a safetensors file [bytes]. Source: safetensors, `tensor.rs`."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: its shape and type, and a function that reads it."""

    shape: Shape
    dtype: np.dtype
    read: Callable[[], np.ndarray]


class Arrays(Mapping[str, np.ndarray]):
    """Named arrays in files; every access reads the array from its file.

    Attributes:
      entries: name -> entry of the array.
      metadata: texts from a safetensors file's header.
    """

    def __init__(self, entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None):
        self.entries = dict(entries)
        self.metadata = dict(metadata or {})

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every array by name, without reading any."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def dtypes(self) -> set[np.dtype]:
        """Set of all arrays' types, without reading any."""
        return {entry.dtype for entry in self.entries.values()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.entries[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_npz(path: Path) -> Arrays:
    """Returns the arrays of an `.npz`; its type V2 (two opaque bytes) is big_vision's bfloat16.

    Raises:
      ValueError: if the file is not an `.npz`, or a header in it is not to be believed.
    """
    return Arrays(
        {
            name: Entry(
                member.shape,
                BFLOAT16 if member.dtype == np.dtype("V2") else member.dtype,
                functools.partial(_npz_array, member),
            )
            for name, member in read_members(path).items()
        }
    )


def _npz_array(member: Member) -> np.ndarray:
    array = member.read()
    return array.view(BFLOAT16) if array.dtype == np.dtype("V2") else array


def write_npz(path: Path, arrays: Iterator[tuple[str, np.ndarray]], dtype: np.dtype) -> None:
    """Writes an `.npz` array by array, with bfloat16 as type V2 (two opaque bytes)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            stored = np.ascontiguousarray(array, dtype)
            if dtype == BFLOAT16:
                stored = stored.view("V2")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, stored, allow_pickle=False)


def read_safetensors(path: Path) -> Arrays:
    """Returns the tensors of a safetensors file.

    Its header is believed only if it is consistent: the tensors fill the rest of the file, one
    after the other, each with as many bytes as its shape and type take. Else a damaged or a
    malicious file would be read as other weights, without a word.

    Raises:
      ValueError: if it is not, the file is cut off, or a tensor's type is not in `DTYPES`.
    """
    # 8 bytes      length of the header, little-endian
    # length       the header: JSON, name -> dtype, shape, data_offsets
    # the rest     the tensors; offsets count from here
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            is_possible = length <= min(size, _MAX_HEADER)
            header = parse_json(file.read(length), "it") if is_possible else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path} must be a safetensors file, got no readable header.")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"{path.name}: __metadata__ must be an object, got {metadata!r}."[:200])
    entries, spans = {}, []
    for name, fact in header.items():
        try:
            dtype, shape, first, last = _checked_fact(fact)
        except ValueError as error:
            raise ValueError(f"{path.name}: {name} {error}"[:200]) from None
        if 8 + length + last > size:
            raise ValueError(f"{path.name}: {name} ends past the end of the file; fetch it again.")
        spans.append((first, last, name))
        # The file is opened again at each read. Offsets count from the header's end: 8 + length.
        read = functools.partial(_read_safetensors_array, path, dtype, shape, 8 + length + first)
        entries[name] = Entry(shape, dtype, read)
    end = 0
    for first, last, name in sorted(spans):
        if first != end:
            raise ValueError(
                f"{path.name}: {name} must begin at byte {end}, where the tensor before it ends, "
                f"got {first}."
            )
        end = last
    if 8 + length + end != size:
        raise ValueError(
            f"{path.name} must end with its last tensor, at byte {8 + length + end}, got {size} "
            f"bytes."
        )
    return Arrays(entries, metadata)


def _checked_fact(fact: Any) -> tuple[np.dtype, Shape, int, int]:
    """Returns type, shape and place of a tensor, as its entry in a header says them.

    Raises:
      ValueError: if they do not fit together, as the end of a sentence.
    """
    if not isinstance(fact, dict) or not {"dtype", "shape", "data_offsets"} <= fact.keys():
        raise ValueError(f"must have dtype, shape and data_offsets, got {fact!r}.")
    if not isinstance(fact["dtype"], str) or fact["dtype"] not in DTYPES:
        raise ValueError(f"must be one of {', '.join(DTYPES)}, got {fact['dtype']}.")
    dtype, shape, offsets = DTYPES[fact["dtype"]], fact["shape"], fact["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"must have shape and data_offsets of whole numbers, got {numbers!r}.")
    needed = math.prod(shape) * dtype.itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != needed:
        raise ValueError(f"must have {needed} bytes by its shape {shape}, got {offsets}.")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _read_safetensors_array(path: Path, dtype: np.dtype, shape: Shape, offset: int) -> np.ndarray:
    return np.fromfile(path, dtype, math.prod(shape), offset=offset).reshape(shape)


def read_safetensors_folder(folder: Path) -> Arrays:
    """Returns the tensors of `model.safetensors`, or of the shards its index names.

    Raises:
      ValueError: if there is neither, or a shard or tensor that the index names is missing.
    """
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise ValueError(f"{folder} must hold {SINGLE} or {INDEX}, got neither.")
        return read_safetensors(folder / SINGLE)
    # The index says where each tensor is: "…embed_tokens.weight": "model-00001-of-00002…". Both it
    # and the shards may be from a download that was cut off, so each is checked.
    index = parse_json((folder / INDEX).read_bytes(), str(folder / INDEX))
    places = index.get("weight_map") if isinstance(index, dict) else None
    # Shards lie beside their index: a name with a folder could lead anywhere.
    if not isinstance(places, dict) or not all(map(_is_file_name, places.values())):
        raise ValueError(f"{folder / INDEX} must have a weight_map of tensor -> name of a shard.")
    absent = sorted(file for file in set(places.values()) if not (folder / file).exists())
    if absent:
        raise ValueError(f"{folder / INDEX} names shards that are absent: {absent}.")
    shards = {file: read_safetensors(folder / file) for file in sorted(set(places.values()))}
    missing = sorted(name for name, file in places.items() if name not in shards[file].entries)
    if missing:
        raise ValueError(f"{folder / INDEX} names tensors its shards do not hold: {missing[:6]}.")
    return Arrays({name: shards[file].entries[name] for name, file in places.items()})


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value == Path(value).name != ""


def safetensors_header(
    shapes: Mapping[str, Shape], dtypes: Mapping[str, np.dtype], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Returns the header of a safetensors file, and the offset of each tensor in that file.

    Raises:
      ValueError: if a type is not in `DTYPES`.
    """
    # Two tensors, a of (2, 3) and b of (4,), both float32; offsets count from the header's end:
    #
    #     {"a": {…, "data_offsets": [0, 24]}, "b": {…, "data_offsets": [24, 40]}}
    codes = {dtype_: code for code, dtype_ in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    starts, end = {}, 0
    # By name, so that equal tensors give equal bytes in whatever order they come.
    for name in sorted(shapes):
        if dtypes[name] not in codes:
            accepted = ", ".join(dtype_.name for dtype_ in codes)
            raise ValueError(f"{name} must be one of {accepted}, got {dtypes[name]}.")
        starts[name] = end
        end += math.prod(shapes[name]) * dtypes[name].itemsize
        header[name] = {
            "dtype": codes[dtypes[name]],
            "shape": list(shapes[name]),
            "data_offsets": [starts[name], end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # Readers that map the file want aligned tensors.
    # From here on offsets count from the file's start; the header's length is known only now.
    begin = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {n: begin + at for n, at in starts.items()}


class SafetensorsWriter:
    """Writer of a safetensors file that accepts its tensors in any order."""

    def __init__(
        self, path: Path, shapes: Mapping[str, Shape], dtype: np.dtype, metadata: Mapping[str, str]
    ) -> None:
        header, self._starts = safetensors_header(shapes, dict.fromkeys(shapes, dtype), metadata)
        self._shapes, self._dtype = dict(shapes), dtype
        self._file = path.open("wb")
        self._file.write(header)
        # The file has its full length from the start. So a tensor can be written to its place
        # before those in front of it.
        sizes = (math.prod(shape) * dtype.itemsize for shape in shapes.values())
        self._file.truncate(len(header) + sum(sizes))

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes one tensor to its place."""
        shape = tuple(self._shapes[name])
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
        # `pop`: a tensor that is written twice is an error, and `close` sees what is left.
        self._file.seek(self._starts.pop(name))
        flat = np.ascontiguousarray(array, self._dtype).reshape(-1)
        self._file.write(flat.view(np.uint8).data)

    def close(self) -> None:
        """Closes the file.

        Raises:
          ValueError: if a tensor was not written.
        """
        self._file.close()
        if self._starts:
            raise ValueError(
                f"tensors are in the header but were never written: {sorted(self._starts)[:6]}."
            )


def read_orbax(folder: Path) -> Arrays:
    """Returns the arrays of an Orbax checkpoint by path, parts joined by "/".

    Raises:
      ValueError: if the folder is not an Orbax checkpoint.
    """
    import orbax.checkpoint as ocp

    # Metadata only. Each leaf is restored when it is asked for, without the others.
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as loader:
        metadata = loader.metadata(folder.absolute()).item_metadata
    # The metadata is the tree, or an object that holds it.
    tree = getattr(metadata, "tree", metadata)
    if not isinstance(tree, Mapping):
        raise ValueError(f"{folder} must be an Orbax checkpoint, got no _METADATA in it.")
    return Arrays(
        {
            "/".join(keys): Entry(
                tuple(leaf.shape),
                np.dtype(leaf.dtype),
                functools.partial(_orbax_leaf, folder.absolute(), keys),
            )
            for keys, leaf in _orbax_tree_leaves(tree)
        }
    )


def _orbax_tree_leaves(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _orbax_tree_leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _orbax_leaf(folder: Path, keys: tuple[str, ...]) -> np.ndarray:
    import jax
    import orbax.checkpoint as ocp

    # A template with this leaf only: with `partial_restore`, Orbax leaves out all others.
    item: Any = jax.ShapeDtypeStruct((), np.float32)
    want: Any = ocp.RestoreArgs(restore_type=np.ndarray)
    for key in reversed(keys):
        item, want = {key: item}, {key: want}
    args = ocp.args.PyTreeRestore(item=item, restore_args=want, partial_restore=True)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as loader:
        restored = loader.restore(folder, args=args)
    ((_, leaf),) = flatten_params(restored)
    return np.asarray(leaf)
