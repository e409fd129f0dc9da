"""Parameters in files: safetensors of about a gigabyte each, with one index.

params.json                        place of each array, and a checksum of each piece of each file
params-00000-of-00002.safetensors  the arrays by name; equal arrays give equal bytes

Files are written and read in pieces, on a disk or directly in a bucket: no file is first copied to
the node, and to read a part of an array, only the pieces that hold it are fetched.
"""

import dataclasses
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from infra.store.backend import ByteSource
from infra.store.manifest import validate_path
from infra.store.stored_folder import StoredFolder
from infra.typed_json import parse_typed, typed
from model.checkpoint.array_files import DTYPES, Arrays, Entry, Shape, safetensors_header
from model.checkpoint.digest import flatten_params
from model.files import PARAMS

Put = Callable[[str, ByteSource], None]
"""Stores a file under a name."""

FILE_BYTES = 2**30
"""Largest size of a file, unless one array is larger. Files are written in parallel."""

PIECE = 2**20
"""Length of the pieces of a file that have a checksum each [bytes]."""

_READ = 16 * PIECE
"""Largest range that one request reads [bytes]."""

_MAX_READS = 8
"""Number of files written, or ranges read, at the same time."""

_REREADS = 3
"""Number of times that a range is fetched again over a network if its checksums do not match."""


class ParamsFile:
    """A safetensors file that is not written yet, but whose bytes can already be read in ranges.

    Attributes:
      size: size of the file [bytes].
      starts: array name -> offset of its first byte.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        types = {name: array.dtype for name, array in arrays.items()}
        header, self.starts = safetensors_header(
            {name: array.shape for name, array in arrays.items()}, types, {}
        )
        self._parts = [(0, memoryview(header))]
        for name in sorted(arrays):  # The header has the same order.
            flat = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
            self._parts.append((self.starts[name], flat.data))
        self.size = max(start + len(part) for start, part in self._parts)

    def read(self, start: int, length: int) -> bytes:
        """Returns a range of its bytes."""
        # A range that starts at `start` in the file starts at `start - at` in a part that begins at
        # `at`.
        # A part outside the range gives an empty cut.
        cuts = (part[max(start - at, 0) : max(start + length - at, 0)] for at, part in self._parts)
        return b"".join(cuts)


def write_params(params: Mapping[str, Any], put: Put) -> str:
    """Writes a nested dict of arrays, and returns the text of the index.

    Args:
      params: the arrays.
      put: stores one file; called by several threads.
    """
    arrays = {path: np.asarray(leaf) for path, leaf in flatten_params(params)}
    return json.dumps(write_arrays(arrays, put)) + "\n"


def write_arrays(arrays: Mapping[str, np.ndarray], put: Put) -> dict[str, Any]:
    """Writes named arrays, and returns their index, which `ParamsReader` takes.

    Args:
      arrays: arrays by name, in the order in which they fill the files.
      put: stores one file; called by several threads.
    """
    groups = _group_arrays_by_file(arrays)
    files = {
        f"params-{number:05d}-of-{len(groups):05d}.safetensors": ParamsFile(group)
        for number, group in enumerate(groups)
    }

    # Checksums are of pieces and not of arrays: a reader of a part of an array can check what it
    # fetched without the rest of the array.
    def write(name: str) -> list[int]:
        put(name, files[name])
        starts = range(0, files[name].size, PIECE)
        return [zlib.crc32(files[name].read(start, PIECE)) for start in starts]

    with ThreadPoolExecutor(_MAX_READS) as pool:
        checksums = dict(zip(files, pool.map(write, files), strict=True))
    # The index, of which `start` counts from the file's first byte: no header is needed to read.
    #
    #     "text/embedding": {"file": "params-0000…", "start": 4096, "dtype": "float32",
    #                        "shape": [257152, 2304]}
    places = {
        path: {
            "file": name,
            "start": start,
            "dtype": array.dtype.name,
            "shape": array.shape,
        }
        for name, file in files.items()
        for path, start in file.starts.items()
        for array in [arrays[path]]
    }
    return {"arrays": places, "piece": PIECE, "crc32": checksums}


def _group_arrays_by_file(arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    groups: list[dict[str, np.ndarray]] = [{}]
    filled = 0
    for path, array in arrays.items():
        if groups[-1] and filled + array.nbytes > FILE_BYTES:
            groups.append({})
            filled = 0
        groups[-1][path] = array
        filled += array.nbytes
    return groups


_DTYPE_OF_NAME = {dtype.name: dtype for dtype in DTYPES.values()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an array lies, as the index says it."""

    file: str
    start: int
    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if self.start < 0 or any(side < 0 for side in self.shape):
            raise ValueError(f"start and shape must be >= 0, got {self.start} and {self.shape}.")
        if self.dtype not in _DTYPE_OF_NAME:
            accepted = ", ".join(_DTYPE_OF_NAME)
            raise ValueError(f"dtype must be one of {accepted}, got {self.dtype!r:.60}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Index:
    """The parts of an index that a reader needs."""

    arrays: dict[str, _Place]
    piece: int
    crc32: dict[str, list[int]]

    def __post_init__(self) -> None:
        if self.piece < 1:
            raise ValueError(f"piece must be >= 1, got {self.piece}.")


@dataclasses.dataclass(frozen=True)
class _Range:
    """A range of a file, and the buffer that its bytes fill."""

    file: str
    start: int
    out: memoryview


class RangeSource(Protocol):
    """A reader of files in ranges, such as a `StoredFolder`.

    Attributes:
      uri: address of the files, for messages.
      is_local: whether reading costs no request.
    """

    uri: str
    is_local: bool

    def size(self, name: str) -> int:
        """Returns a file's size [bytes]."""
        ...

    def read(self, name: str, start: int, length: int, *, fresh: bool = False) -> bytes:
        """Returns a range; `fresh` bypasses any cache, after an earlier read gave wrong bytes."""
        ...


def read_index(place: StoredFolder) -> dict[str, Any]:
    """Returns the index of a checkpoint's parameters.

    Raises:
      FileNotFoundError: if it has none.
    """
    path = place.local_folder(PARAMS) / PARAMS
    return parse_typed(dict[str, Any], path.read_bytes(), str(path))


class ParamsReader:
    """A reader of arrays in files, each on request. Safe to share between threads.

    Args:
      source: reader of the files.
      index: index of the arrays, from `write_arrays`.

    Raises:
      ValueError: if the index does not fit the files.
      FileNotFoundError: if it names one that is not there.
    """

    def __init__(self, source: RangeSource, index: Mapping[str, Any]) -> None:
        own = {field.name: index.get(field.name) for field in dataclasses.fields(_Index)}
        checked: _Index = typed(_Index, own)
        self._place, self._arrays = source, checked.arrays
        self._piece, self._checksums = checked.piece, checked.crc32
        # Believed only if every array lies in its file, and every byte of that has a checksum: an
        # absurd shape would be taken from memory before the first byte is read.
        sizes = {}
        for name, checksums in self._checksums.items():
            validate_path(name)
            try:
                sizes[name] = source.size(name)
            except FileNotFoundError:
                raise FileNotFoundError(f"{source.uri} lacks {name}, a file of its index") from None
            if len(checksums) != -(-sizes[name] // self._piece):
                raise ValueError(f"{source.uri}/{name} has other pieces than its index says.")
        for path, place in self._arrays.items():
            end = place.start + math.prod(place.shape) * self.dtype(path).itemsize
            if end > sizes.get(place.file, -1):
                raise ValueError(
                    f"{path} of {source.uri} must lie in {place.file!r:.60}, by its index."
                )

    @property
    def arrays(self) -> Arrays:
        """All arrays by path, none of them read yet."""
        return Arrays(
            {
                path: Entry(self.shape(path), self.dtype(path), lambda path=path: self.read(path))
                for path in self._arrays
            }
        )

    def shape(self, path: str) -> Shape:
        """Returns an array's shape."""
        return self._arrays[path].shape

    def dtype(self, path: str) -> np.dtype:
        """Returns an array's type."""
        return _DTYPE_OF_NAME[self._arrays[path].dtype]

    def read(self, path: str, index: Sequence[slice] = ()) -> np.ndarray:
        """Returns an array, or a part of it, reading the pieces that hold that part.

        Args:
          path: path of the array.
          index: a slice per axis, without steps, as `jax.make_array_from_callback` gives them;
            axes without a slice are read whole.

        Raises:
          ValueError: if a checksum does not match.
          OSError: if it cannot be read.
        """
        (array,) = self.read_all({path: index}).values()
        return array

    def read_all(self, slices: Mapping[str, Sequence[slice]]) -> dict[str, np.ndarray]:
        """Returns several arrays, or parts of them, read in parallel; see `read`."""
        # First an empty array for each, then all ranges together: a thread fills its part of one.
        arrays, ranges = {}, []
        for path, index in slices.items():
            arrays[path] = self._prepare_array_ranges(path, index, ranges)
        with ThreadPoolExecutor(_MAX_READS) as pool:
            list(pool.map(self._fill_array_range, ranges))
        return arrays

    def _prepare_array_ranges(
        self, path: str, index: Sequence[slice], ranges: list[_Range]
    ) -> np.ndarray:
        """Returns an array to be filled, and appends the file ranges that fill it to `ranges`."""
        shape, dtype = self.shape(path), self.dtype(path)
        cuts = [*index, *[slice(None)] * (len(shape) - len(index))]
        bounds = [cut.indices(n)[:2] for cut, n in zip(cuts, shape, strict=True)]
        lengths = [stop - start for start, stop in bounds]
        out = np.empty(lengths, dtype)
        if not out.size:
            return out
        # `cut` is the last axis that is not read whole. What is wanted of it and of all axes after
        # it is contiguous: one run in the file for each index of the axes before.
        # Of shape (4, 6, 5), [1:3, 2:4, :] has `cut` = 1: for rows 1 and 2, a run of 2 * 5
        # elements, from elements 1 * 30 + 10 and 2 * 30 + 10.
        cut = max((i for i, n in enumerate(shape) if lengths[i] != n), default=-1)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        run = math.prod(lengths[cut:]) if cut >= 0 else out.size
        above = [range(*bound) for bound in bounds[: max(cut, 0)]]
        first = bounds[cut][0] * strides[cut] if cut >= 0 else 0
        flat = memoryview(out.reshape(-1).view(np.uint8).data)
        entry = self._arrays[path]
        for number, place in enumerate(itertools.product(*above)):
            offset = first + sum(i * stride for i, stride in zip(place, strides, strict=False))
            start = entry.start + offset * dtype.itemsize
            part = flat[number * run * dtype.itemsize :][: run * dtype.itemsize]
            ranges += self._split_file_range(entry.file, start, part)
        return out

    @staticmethod
    def _split_file_range(file: str, start: int, out: memoryview) -> Iterator[_Range]:
        """Yields a range in parts that end where pieces end and fit one request each."""
        while len(out):
            length = min(_READ - start % _READ, len(out))
            yield _Range(file, start, out[:length])
            start, out = start + length, out[length:]

    def _fill_array_range(self, target: _Range) -> None:
        # Checksums are of whole pieces, so the range is widened to piece boundaries.
        first = target.start // self._piece
        stop = -(-(target.start + len(target.out)) // self._piece)
        skipped = target.start - first * self._piece
        pieces = self._checked(target.file, first, stop)
        target.out[:] = memoryview(pieces)[skipped : skipped + len(target.out)]

    def _checked(self, file: str, first: int, stop: int) -> bytes:
        """Returns pieces `first` to `stop` of a file, after comparing their checksums."""
        begin = first * self._piece
        length = min(stop * self._piece, self._place.size(file)) - begin
        # A wrong checksum may come from the network, so a range of a bucket is fetched again, past
        # any cache. A local disk would give the same bytes.
        for number in range(1 if self._place.is_local else 1 + _REREADS):
            data = self._place.read(file, begin, length, fresh=number > 0)
            pieces = [data[at : at + self._piece] for at in range(0, length, self._piece)]
            if [zlib.crc32(piece) for piece in pieces] == self._checksums[file][first:stop]:
                return data
        raise ValueError(
            f"{self._place.uri}/{file} is damaged between bytes {begin} and {begin + length}; "
            f"convert or train the checkpoint again."
        )


class StoredArray:
    """An array in a checkpoint; indexing reads the requested part only.

    Args:
      reader: reader of the checkpoint.
      path: path of the array.
    """

    def __init__(self, reader: ParamsReader, path: str) -> None:
        self._reader, self._path = reader, path
        self.shape, self.dtype = reader.shape(path), reader.dtype(path)

    def __getitem__(self, index: Sequence[slice]) -> np.ndarray:
        return self._reader.read(self._path, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # Every read gives a new array.
        return np.asarray(self[()], dtype)


def put_into(folder: Path) -> Put:
    """Returns a function that stores files in a local folder."""

    def put(name: str, data: ByteSource) -> None:
        with (folder / name).open("wb") as file:
            for start in range(0, data.size, _READ):
                file.write(data.read(start, _READ))

    return put
