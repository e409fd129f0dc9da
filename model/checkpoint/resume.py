"""Points that a training stage can go on from: its whole state, written beside its next steps.

<points>/<step>-<start>/<rank>-params-….safetensors   parts of the state that a process holds
                        <rank>.json                   where each lies, and checksums; written last

<points> is a folder, or a place in a bucket. A point is whole once each of the processes has
written its `<rank>.json`. <start> is another word each time the stage is started: who was stopped,
and wakes, writes where nobody else does.

The files are written and read with the store's own verbs, as a checkpoint's are (`params_files`):
compared with what was sent, and tried again. What Orbax sends to a bucket has no checksum, and it
waits for ever for a server that stalls.
"""

import contextlib
import dataclasses
import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from infra.store.files import Content, Files
from infra.store.places import BUCKET, open_files
from model.checkpoint.params_files import ParamsReader, write_arrays

_KEPT = 2
_OFFERED = 8
"""Most points that are tried, the newest first."""
_AT_ONCE = 8
"""Arrays that are read at a time."""
_MOST_SAID = 512
"""Of what a process tells the others [bytes]."""
_LOOK_EVERY = 0.5
"""Between two looks for what the other processes have written [s]."""

Region = tuple[tuple[int, int], ...]
"""Of an array: first and last index + 1, for each axis."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an array of the state, in this process's own memory.

    Attributes:
      path: of the array in the state.
      start: index of its first element.
      data: its elements.
    """

    path: str
    start: tuple[int, ...]
    data: np.ndarray


def own_parts(state: Any) -> list[Part]:
    """Returns copies of the parts of a state that this process is to write.

    Of parts that several devices hold, one does. The state may be changed afterwards.
    """
    leaves = list(_leaves(state))
    for _, leaf in leaves:
        leaf.copy_to_host_async()
    return [
        # Copied: the next step takes over the memory that a CPU's arrays lie in.
        Part(
            path,
            tuple(start for start, _ in _region(shard.index, leaf.shape)),
            np.array(shard.data),
        )
        for path, leaf in leaves
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]


class ResumePoints:
    """The points of a stage; one that is not whole, or was changed, is never gone on from.

    Where several processes train together, each of them makes one of these and calls the same.

    Attributes:
      damaged: what was wrong with points newer than the one to go on from; they are deleted.
    """

    def __init__(self, place: str | Path) -> None:
        """Opens them.

        Args:
          place: a folder, or gs://bucket/prefix.

        Raises:
          OSError: if the bucket cannot be read.
        """
        self._place = str(place)
        if not self._place.startswith(BUCKET):
            Path(place).mkdir(parents=True, exist_ok=True)
        self._files = open_files(self._place)
        self._rank, self._size = jax.process_index(), jax.process_count()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="points")
        self._saving: Future[None] | None = None
        self._leaving = threading.Event()
        self._news = threading.Event()
        said = " ".join([uuid.uuid4().hex[:8], *self._found()[:_OFFERED]]) if not self._rank else ""
        self._start, *self._offered = _of_all(said)[0].split()
        self._kept: list[str] = []
        self.damaged: tuple[str, ...] = ()

    def restore(self, template: Any) -> tuple[int, Any, Mapping[str, str]] | None:
        """Returns (updates done, state, notes) of the newest whole point; None if there is none.

        Args:
          template: a state of the same tree, shapes and types; its shardings may be others than
            those of the state that was saved.

        Raises:
          OSError: if what is there cannot be read.
        """
        while self._offered:
            name, found, reason = self._offered[0], None, ""
            try:
                point = _Point(self._files, name)
                found = _step(name), point.read(template), point.notes
            except ValueError as error:
                reason = str(error)
            except (KeyError, TypeError) as error:
                reason = f"its index has no {error}"
            except FileNotFoundError as error:
                reason = f"{error} is not there any more"
            # Each reads its own parts: what one of them finds damaged, none goes on from.
            reason = next(filter(None, _of_all(reason)), "")
            if not reason:
                self._kept = self._offered[::-1]  # Those before it go when there is a newer one.
                return found
            told = f"resumable checkpoint of step {_step(name)} is not used: {reason}"
            self.damaged = (*self.damaged, told)
            if self._rank == 0:
                self._files.remove(name)
            self._offered.pop(0)
        return None

    def save(self, step: int, parts: Sequence[Part], notes: Mapping[str, Path]) -> None:
        """Begins to write the state as it is after `step` updates; `news` tells of its end.

        Args:
          step: updates done.
          parts: of the state, see `own_parts`.
          notes: name -> file of this process whose text, as it is now, belongs to the point.

        Raises:
          OSError: if the one before could not be written.
        """
        self.wait()
        there = {} if self._rank else {n: path for n, path in notes.items() if path.exists()}
        texts = {name: path.read_text() for name, path in there.items()}
        name = f"{step}-{self._start}"
        self._saving = self._writer.submit(self._write, name, parts, texts)

    def news(self) -> bool:
        """Returns whether a point has become whole since this was asked last.

        Raises:
          OSError: if one could not be written.
        """
        if self._saving is not None and self._saving.done():
            self.wait()
        is_new = self._news.is_set()
        self._news.clear()
        return is_new

    def wait(self) -> None:
        """Waits until what is being written is whole, or is all that this process has of it.

        Raises:
          OSError: if it could not be written.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        """Waits for what this process writes."""
        self._leaving.set()
        self._writer.shutdown()

    def _write(self, name: str, parts: Sequence[Part], notes: Mapping[str, str]) -> None:
        named = {f"{part.path} {list(part.start)}": part for part in parts}
        sizes = {}

        def put(file: str, data: Content) -> None:
            self._check_held()
            sizes[file] = self._files.send(f"{name}/{self._rank}-{file}", data).file.size

        index = write_arrays({key: part.data for key, part in named.items()}, put)
        index["of"], index["notes"], index["sizes"] = self._size, notes, sizes
        index["parts"] = {key: (part.path, part.start) for key, part in named.items()}
        self._check_held()
        self._files.put(f"{name}/{self._rank}.json", json.dumps(index).encode())
        if self._rank:
            return
        while len(_ranks(self._files.listing(name))) < self._size:
            if self._leaving.wait(_LOOK_EVERY):
                return
        self._kept.append(name)
        self._news.set()
        while len(self._kept) > _KEPT:
            with contextlib.suppress(OSError):  # What stays is in nobody's way.
                self._files.remove(self._kept[0])
            del self._kept[0]

    def _check_held(self) -> None:
        """Refuses to write where another process has taken the stage over, and its folder."""
        if not self._place.startswith(BUCKET) and not Path(self._place).is_dir():
            raise FileNotFoundError(f"{self._place} is another process's now.")

    def _found(self) -> list[str]:
        """Returns the names of what may be points, the newest first."""
        names = self._files.folders("")
        return sorted((n for n in names if n.partition("-")[0].isdigit()), key=_step, reverse=True)


class _Point:
    """A point that was found.

    Args:
      files: of all points.
      name: its name.

    Raises:
      ValueError: if it is not whole.
    """

    def __init__(self, files: Files, name: str) -> None:
        there = files.listing(name)
        indices: dict[int, dict[str, Any]] = {}
        for rank in _ranks(there):
            try:
                indices[rank] = json.loads(files.read(f"{name}/{rank}.json"))
            except ValueError:
                raise ValueError(f"{rank}.json is no JSON") from None
        of = indices[0]["of"] if 0 in indices else 0
        if set(indices) != set(range(of)) or not of:
            raise ValueError("it was not finished")
        for rank, index in indices.items():
            for file, size in index["sizes"].items():
                stat = there.get(f"{rank}-{file}")
                if stat is None or stat.size != size:
                    raise ValueError(f"{rank}-{file} is not what was written")
        self.notes: dict[str, str] = indices[0]["notes"]
        self._readers = {
            rank: ParamsReader(_Source(files, name, rank, index["sizes"]), index)
            for rank, index in indices.items()
        }
        self._parts: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
        for rank, index in indices.items():
            for key, (path, start) in index["parts"].items():
                self._parts.setdefault(path, []).append((rank, key, tuple(start)))

    def read(self, template: Any) -> Any:
        """Returns the state, of which only what this process's devices hold is read.

        Raises:
          ValueError: if it does not have all of it, or a checksum does not match.
        """
        leaves = dict(_leaves(template))
        devices = {
            path: leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
            for path, leaf in leaves.items()
        }
        wanted = sorted(
            {
                (path, _region(index, leaves[path].shape))
                for path in leaves
                for index in devices[path]
            }
        )

        def read(one: tuple[str, Region]) -> np.ndarray:
            path, region = one
            return self._read(path, region, leaves[path].dtype)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(wanted, pool.map(read, wanted), strict=True))

        def leaf_of(path: str, leaf: jax.Array) -> jax.Array:
            def part(index: Sequence[slice] | None) -> np.ndarray:
                return found[path, _region(index or (), leaf.shape)]

            return jax.make_array_from_callback(leaf.shape, leaf.sharding, part)

        restored = [leaf_of(path, leaf) for path, leaf in leaves.items()]
        return jax.tree.unflatten(jax.tree.structure(template), restored)

    def _read(self, path: str, region: Region, dtype: np.dtype) -> np.ndarray:
        """Returns a region of an array, from the parts that it was written in."""
        out = np.empty([stop - start for start, stop in region], dtype)
        filled = 0
        for rank, key, start in self._parts.get(path, ()):
            reader = self._readers[rank]
            ends = zip(region, start, reader.shape(key), strict=True)
            overlap = [(max(a, at), min(b, at + size)) for (a, b), at, size in ends]
            if all(a < b for a, b in overlap):
                part = reader.read(key, _slices(overlap, start))
                out[_slices(overlap, [a for a, _ in region])] = part
                filled += part.size
        if filled != out.size:
            raise ValueError(f"it has not all of {path}")
        return out


class _Source:
    """The files that one process wrote of a point; see `params_files.Source`."""

    def __init__(self, files: Files, point: str, rank: int, sizes: Mapping[str, int]) -> None:
        self.uri, self.is_local = f"{files.uri}/{point}", not files.uri.startswith(BUCKET)
        self._files, self._begins, self._sizes = files, f"{point}/{rank}-", sizes

    def size(self, name: str) -> int:
        return self._sizes[name]

    def read(self, name: str, start: int, length: int, *, fresh: bool = False) -> bytes:
        del fresh  # Nothing is kept of what came before.
        return self._files.read_range(self._begins + name, start, length)


def _step(name: str) -> int:
    return int(name.partition("-")[0])


def _ranks(there: Iterable[str]) -> list[int]:
    """Returns the processes that have written all of their parts, from a point's files."""
    return sorted(int(file.removesuffix(".json")) for file in there if file.endswith(".json"))


def _leaves(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields (path, array) of a state, in its tree's order."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        yield jax.tree_util.keystr(keys, simple=True, separator="/"), leaf


def _region(index: Sequence[slice], shape: Sequence[int]) -> Region:
    bounds = (cut.indices(size) for cut, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in bounds)


def _slices(region: Iterable[tuple[int, int]], start: Iterable[int]) -> tuple[slice, ...]:
    """Returns where a region lies in an array whose first element has the index `start`."""
    return tuple(slice(a - at, b - at) for (a, b), at in zip(region, start, strict=True))


def _of_all(word: str) -> list[str]:
    """Returns the words of all processes, by rank; all of them call this together."""
    if jax.process_count() == 1:
        return [word]
    said = np.zeros(_MOST_SAID, np.uint8)
    encoded = word.encode()[:_MOST_SAID]
    said[: len(encoded)] = list(encoded)
    return [
        bytes(row).rstrip(b"\0").decode(errors="replace")
        for row in np.asarray(multihost_utils.process_allgather(said))
    ]
