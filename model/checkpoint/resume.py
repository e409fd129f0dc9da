"""Resume points of a training stage: its whole state, written while the next steps run.

<points>/<step>-<start>/<rank>-params-….safetensors   parts of the state that a process holds
                        <rank>.json                   index of the parts, checksums; written last

<points> is a folder, or a place in a bucket. A point is complete once every process has written
its `<rank>.json`. <start> is a random word, new each time the stage starts: a process that was
stopped and wakes up later still writes to its own folder, not to that of its successor.

The files are written and read through the store, as a checkpoint's are (`params_files`), with
checksums and retries. Orbax is not used: it sends no checksums to a bucket, and waits forever for
a server that stalls.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from infra.store.backend import ByteSource, StoreBackend
from infra.store.stored_folder import BUCKET_SCHEME, open_backend
from model.checkpoint.params_files import ParamsReader, write_arrays

_MAX_POINTS = 2
"""Number of complete points that are kept."""
_MAX_CANDIDATES = 8
"""Largest number of points that a restore tries, the newest first."""
_MAX_READS = 8
"""Number of arrays that are read at the same time."""
_MAX_MESSAGE = 512
"""Longest message between processes; the rest is cut off [bytes]."""
_POLL_SECONDS = 0.5
"""Time between two checks of what the other processes have written [s]."""

Region = tuple[tuple[int, int], ...]
"""A block of an array: first index, and last index + 1, for each axis."""


@dataclasses.dataclass(frozen=True)
class StatePart:
    """A part of an array of the state, in this process's own memory.

    Attributes:
      path: path of the array in the state.
      start: index of the part's first element in the array.
      data: its elements.
    """

    path: str
    start: tuple[int, ...]
    data: np.ndarray


def process_parts(state: Any) -> list[StatePart]:
    """Returns copies of the parts of a state that this process is to write.

    A part that several devices hold is returned for one of them only. The state may change later:
    the next update is given its memory, so this waits until all of it has been copied. Only a
    second copy on the devices would spare the wait.
    """
    shards = [
        (path, leaf.shape, shard)
        for path, leaf in _training_state_leaves(state)
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]
    # All transfers are started before the first one is waited for. A copy of the state that
    # another process writes is not transferred.
    for _, _, shard in shards:
        shard.data.copy_to_host_async()
    return [
        StatePart(
            path,
            tuple(start for start, _ in _region_of_index(shard.index, shape)),
            _host_copy(shard.data),
        )
        for path, shape, shard in shards
    ]


def _host_copy(data: jax.Array) -> np.ndarray:
    """Returns an array of one device in memory of the host that nothing else writes to."""
    array = np.asarray(data)
    # What came from an accelerator is a copy already. On a CPU it shares memory, which the next
    # step is given to overwrite.
    (device,) = data.devices()
    return array.copy() if device.platform == "cpu" else array


class ResumePoints:
    """The resume points of a stage; incomplete or damaged ones are never used.

    If several processes train together, each has its own instance, and all make the same calls.

    Attributes:
      damaged: messages about points that are newer than the restored one and could not be used;
        they are deleted.
    """

    def __init__(self, place: str | Path, newest: float = math.inf) -> None:
        """Opens the points in a place.

        Args:
          place: a folder, or gs://bucket/prefix.
          newest: most updates of a point that may be restored.

        Raises:
          OSError: if the bucket cannot be read.
        """
        self._place = str(place)
        if not self._place.startswith(BUCKET_SCHEME):
            Path(place).mkdir(parents=True, exist_ok=True)
        self._files = open_backend(self._place)
        self._rank, self._size = jax.process_index(), jax.process_count()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="points")
        self._saving: Future[None] | None = None
        self._leaving = threading.Event()
        self._news = threading.Event()
        # The first process chooses <start> and the points to try, so that all of them agree.
        offer = (
            " ".join([uuid.uuid4().hex[:8], *self._point_names(newest)[:_MAX_CANDIDATES]])
            if not self._rank
            else ""
        )
        self._start, *self._candidates = _gather_messages(offer)[0].split()
        self._complete_points: list[str] = []
        self.damaged: tuple[str, ...] = ()

    @property
    def may_restore(self) -> bool:
        """Whether there is a point to try; the same in all processes."""
        return bool(self._candidates)

    def restore(self, template: Any) -> tuple[int, Any, Mapping[str, str]] | None:
        """Returns (updates done, state, notes) of the newest usable point; None if there is none.

        Args:
          template: the state's tree of shapes, types and shardings, such as
            `jax.ShapeDtypeStruct`s; shardings may differ from those of the saved state.

        Raises:
          OSError: if a point cannot be read.
        """
        while self._candidates:
            name, restored, reason = self._candidates[0], None, ""
            # A point that is damaged is passed over: the one before it is good. Other errors of the
            # store, such as a bucket that refuses, are raised: they say nothing about the point.
            try:
                point = _Point(self._files, name)
                restored = _step_of_point(name), point.read(template), point.notes
            except ValueError as error:
                reason = str(error)
            except KeyError as error:
                reason = f"its index has no {error}"
            except TypeError as error:
                reason = f"its index is damaged: {error}"
            except FileNotFoundError as error:
                reason = f"{error} is not there any more"
            # Each process reads its own parts only; if one finds damage, all skip the point.
            reason = next(filter(None, _gather_messages(reason)), "")
            if not reason:
                # Oldest first: `_write_resume_point` deletes from the front.
                self._complete_points = self._candidates[::-1]
                return restored
            warning = f"resumable checkpoint of step {_step_of_point(name)} is not used: {reason}"
            self.damaged = (*self.damaged, warning)
            if self._rank == 0:
                self._files.remove(name)
            self._candidates.pop(0)
        return None

    def save(self, step: int, parts: Sequence[StatePart], notes: Mapping[str, Path]) -> None:
        """Starts to write the state after `step` updates, in a thread; see `has_new_point`.

        Args:
          step: updates done.
          parts: this process's parts of the state, from `process_parts`.
          notes: name -> local file whose current text is stored with the point, if it exists; the
            first process's notes are used.

        Raises:
          OSError: if the point before could not be written.
        """
        self.wait()
        existing_notes = (
            {} if self._rank else {n: path for n, path in notes.items() if path.exists()}
        )
        texts = {name: path.read_text() for name, path in existing_notes.items()}
        name = f"{step}-{self._start}"
        self._saving = self._writer.submit(self._write_resume_point, name, parts, texts)

    def has_new_point(self) -> bool:
        """Returns whether a point was completed since the last call.

        Raises:
          OSError: if a point could not be written.
        """
        if self._saving is not None and self._saving.done():
            self.wait()
        is_new = self._news.is_set()
        self._news.clear()
        return is_new

    def wait(self) -> None:
        """Waits until this process has written its parts; the first one, until all others have.

        Raises:
          OSError: if the point could not be written.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        """Waits until this process has written its parts."""
        self._leaving.set()
        self._writer.shutdown()

    def _write_resume_point(
        self, name: str, parts: Sequence[StatePart], notes: Mapping[str, str]
    ) -> None:
        part_of_key = {f"{part.path} {list(part.start)}": part for part in parts}
        sizes = {}

        def put(file: str, data: ByteSource) -> None:
            self._check_held()
            sizes[file] = self._files.upload_bytes(f"{name}/{self._rank}-{file}", data).file.size

        # Arrays first, index last: where an index lies, the parts that it names are complete.
        index = write_arrays({key: part.data for key, part in part_of_key.items()}, put)
        index["of"], index["notes"], index["sizes"] = self._size, notes, sizes
        index["parts"] = {key: (part.path, part.start) for key, part in part_of_key.items()}
        self._check_held()
        self._files.put(f"{name}/{self._rank}.json", json.dumps(index).encode())
        if self._rank:
            return
        # The first process alone finds out when a point is complete, and deletes older ones.
        while len(_ranks_of_point(self._files.listing(name))) < self._size:
            if self._leaving.wait(_POLL_SECONDS):
                return
        self._complete_points.append(name)
        self._news.set()
        while len(self._complete_points) > _MAX_POINTS:
            with contextlib.suppress(OSError):  # A point that stays does no harm.
                self._files.remove(self._complete_points[0])
            del self._complete_points[0]

    def _check_held(self) -> None:
        """Raises an error if the folder is gone: another process has taken over the stage."""
        if not self._place.startswith(BUCKET_SCHEME) and not Path(self._place).is_dir():
            raise FileNotFoundError(
                f"{self._place} is gone: another process has taken over this stage."
            )

    def _point_names(self, newest: float) -> list[str]:
        """Returns the names of folders that may be points, the newest first."""
        names = [n for n in self._files.folders("") if n.partition("-")[0].isdigit()]
        names = [name for name in names if _step_of_point(name) <= newest]
        return sorted(names, key=_step_of_point, reverse=True)


class _Point:
    """A complete point that was found.

    Args:
      files: the files of all points.
      name: name of the point.

    Raises:
      ValueError: if it is not complete.
    """

    def __init__(self, files: StoreBackend, name: str) -> None:
        file_sizes = files.listing(name)
        indices: dict[int, dict[str, Any]] = {}
        for rank in _ranks_of_point(file_sizes):
            try:
                indices[rank] = json.loads(files.read(f"{name}/{rank}.json"))
            except ValueError:
                raise ValueError(f"{rank}.json is no JSON") from None
        # Every process writes its files first and its index last. A point is complete if all
        # indices are there and every file has the size that its index says:
        #
        #     120-9f3c/  0.json 0-params…  1.json 1-params…   complete, of 2 processes
        #     140-07aa/  0.json 0-params…  1-params…          process 1 stopped before its index
        num_processes = indices[0]["of"] if 0 in indices else 0
        if set(indices) != set(range(num_processes)) or not num_processes:
            raise ValueError("it was not finished")
        for rank, index in indices.items():
            for file, size in index["sizes"].items():
                stat = file_sizes.get(f"{rank}-{file}")
                if stat is None or stat.size != size:
                    raise ValueError(f"{rank}-{file} is not what was written")
        self.notes: dict[str, str] = indices[0]["notes"]
        self._readers = {
            rank: ParamsReader(_Source(files, name, rank, index["sizes"]), index)
            for rank, index in indices.items()
        }
        # An array's parts may be in the files of several processes, and be read by a mesh of
        # another shape: each part is listed with the place where it starts in its array.
        self._parts: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
        for rank, index in indices.items():
            for key, (path, start) in index["parts"].items():
                self._parts.setdefault(path, []).append((rank, key, tuple(start)))

    def read(self, template: Any) -> Any:
        """Returns the state; only the regions that this process's devices hold are read.

        Raises:
          ValueError: if a part of the state is missing, or a checksum does not match.
        """
        # Of each array, the regions that this process's devices hold; those that hold the same one
        # share a read. A few arrays are read ahead, but never the whole state: the host would hold
        # it beside the devices.
        leaves = _training_state_leaves(template)
        with ThreadPoolExecutor(_MAX_READS) as pool:

            def begin(path: str, leaf: Any) -> tuple[Any, dict[Region, Future[np.ndarray]]]:
                indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
                regions = {_region_of_index(index or (), leaf.shape) for index in indices}
                return leaf, {
                    region: pool.submit(self._read_region, path, region, leaf.dtype)
                    for region in regions
                }

            reading = collections.deque(
                begin(*pair) for pair in itertools.islice(leaves, _MAX_READS)
            )
            restored = []
            while reading:
                leaf, pieces = reading.popleft()
                reading.extend(begin(*pair) for pair in itertools.islice(leaves, 1))
                restored.append(_array_of(leaf, pieces))
        return jax.tree.unflatten(jax.tree.structure(template), restored)

    def _read_region(self, path: str, region: Region, dtype: np.dtype) -> np.ndarray:
        """Returns a region of an array, put together from the parts that were written."""
        # Written parts do not overlap, so the region is complete once as many elements are filled.
        out = np.empty([stop - start for start, stop in region], dtype)
        filled = 0
        # A state that two devices wrote, read by a mesh with other borders (rows of one array):
        #
        #     written    [0 1 2 3] [4 5 6 7]
        #     wanted         [2 3   4 5]          [2 3] from the first part, [4 5] from the second
        for rank, key, start in self._parts.get(path, ()):
            reader = self._readers[rank]
            ends = zip(region, start, reader.shape(key), strict=True)
            overlap = [(max(a, at), min(b, at + size)) for (a, b), at, size in ends]
            if all(a < b for a, b in overlap):
                part = reader.read(key, _state_region_slices(overlap, start))
                out[_state_region_slices(overlap, [a for a, _ in region])] = part
                filled += part.size
        if filled != out.size:
            raise ValueError(f"parts of {path} are missing")
        return out


def _array_of(leaf: Any, pieces: Mapping[Region, Future[np.ndarray]]) -> jax.Array:
    """Returns an array of the shape and sharding of `leaf`, from its regions."""

    # JAX asks once for each of its devices; those with the same region get the same array.
    def part(index: Sequence[slice] | None) -> np.ndarray:
        return pieces[_region_of_index(index or (), leaf.shape)].result()

    return jax.make_array_from_callback(leaf.shape, leaf.sharding, part)


class _Source:
    """A reader of the files that one process wrote for a point; see `params_files.Source`."""

    def __init__(
        self, files: StoreBackend, point: str, rank: int, sizes: Mapping[str, int]
    ) -> None:
        self.uri, self.is_local = f"{files.uri}/{point}", not files.uri.startswith(BUCKET_SCHEME)
        self._files, self._begins, self._sizes = files, f"{point}/{rank}-", sizes

    def size(self, name: str) -> int:
        return self._sizes[name]

    def read(self, name: str, start: int, length: int, *, fresh: bool = False) -> bytes:
        del fresh  # Nothing is cached.
        return self._files.read_range(self._begins + name, start, length)


def _step_of_point(name: str) -> int:
    return int(name.partition("-")[0])


def _ranks_of_point(file_names: Iterable[str]) -> list[int]:
    """Returns the ranks that have written all their parts, according to a point's files."""
    return sorted(int(file.removesuffix(".json")) for file in file_names if file.endswith(".json"))


def _training_state_leaves(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields (path, array) of a state, in its tree's order."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        yield jax.tree_util.keystr(keys, simple=True, separator="/"), leaf


def _region_of_index(index: Sequence[slice], shape: Sequence[int]) -> Region:
    bounds = (cut.indices(size) for cut, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in bounds)


def _state_region_slices(
    region: Iterable[tuple[int, int]], start: Iterable[int]
) -> tuple[slice, ...]:
    """Returns the slices of a region in an array whose first element has the index `start`."""
    return tuple(slice(a - at, b - at) for (a, b), at in zip(region, start, strict=True))


def _gather_messages(message: str) -> list[str]:
    """Returns the messages of all processes, by rank; all of them must call this together."""
    if jax.process_count() == 1:
        return [message]
    # Only arrays of one shape can be gathered, so a message travels as bytes of fixed length.
    buffer = np.zeros(_MAX_MESSAGE, np.uint8)
    encoded = message.encode()[:_MAX_MESSAGE]
    buffer[: len(encoded)] = list(encoded)
    return [
        bytes(row).rstrip(b"\0").decode(errors="replace")
        for row in np.asarray(multihost_utils.process_allgather(buffer))
    ]
